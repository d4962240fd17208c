//! Encodings, and chunks that become smaller by them.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kvtier_codec::{
    Aes256Gcm, Chain, Decoder, Keyring, MasterKey, Stage, TierEncoding, stage_by_name,
};
use kvtier_core::{Key, Load, Loaded, MissReason, Save, Saved};
use kvtier_key::Facts;
use kvtier_mem::View;

use super::tier::{PREFIX, World};

fn zstd_stage() -> Arc<dyn Stage> {
    stage_by_name("zstd").unwrap()
}

/// Encryption by key 1; `keys` are the ids of the keys that are loaded.
pub fn aes_stage(keys: &[u32]) -> Arc<dyn Stage> {
    let ring = Arc::new(Keyring::new());
    for id in keys {
        ring.insert(MasterKey::new(*id, &[*id as u8; 32]).unwrap());
    }
    Arc::new(Aes256Gcm::new(ring, 1))
}

/// Saves through `stages`, and loads what needs a key if `aes` is there.
pub fn encoding(stages: Vec<Arc<dyn Stage>>, aes: Option<Arc<dyn Stage>>) -> Arc<TierEncoding> {
    let decoder = aes.into_iter().fold(Decoder::new(), Decoder::with_stage);
    Arc::new(TierEncoding::new(Chain::new(stages).unwrap(), decoder))
}

pub fn zstd() -> Arc<TierEncoding> {
    encoding(vec![zstd_stage()], None)
}

pub fn aes() -> Arc<TierEncoding> {
    let aes = aes_stage(&[1]);
    encoding(vec![aes.clone()], Some(aes))
}

pub fn zstd_aes() -> Arc<TierEncoding> {
    let aes = aes_stage(&[1]);
    encoding(vec![zstd_stage(), aes.clone()], Some(aes))
}

/// Bytes that become much smaller, and differ from chunk to chunk and from place to place.
pub fn compressible(n: u64, len: usize) -> Vec<u8> {
    let word = |at: usize| (at as u64 / 256).wrapping_mul(n * 2 + 1).to_le_bytes()[at % 2];
    (0..len).map(word).collect()
}

pub fn view(world: &World, bytes: &[u8]) -> View {
    let mut lease = world.suite.lease(bytes.len());
    lease.write_at(0, bytes).unwrap();
    lease.freeze()
}

pub fn store(world: &World, key: &Key, raw: &[u8]) {
    store_as(world, key, raw, Saved::Stored);
}

pub fn store_as(world: &World, key: &Key, raw: &[u8], expected: Saved) {
    let op = Save { key: key.clone(), from: vec![view(world, raw)] };
    assert_eq!(world.suite.save_with(op).result.unwrap(), expected);
}

/// Loads into memory of these lengths; leases of a miss hold nothing.
pub fn load_bytes(world: &World, key: &Key, lens: &[usize]) -> Result<Vec<u8>, MissReason> {
    let into = lens.iter().map(|len| world.suite.lease(*len)).collect();
    let done = world.suite.load_with(Load { key: key.clone(), into });
    let filled = done.op.into.iter().flat_map(|lease| lease.as_host().unwrap());
    let filled: Vec<u8> = filled.copied().collect();
    match done.result.unwrap() {
        Loaded::Hit { len } => {
            assert_eq!(filled.len() as u64, len);
            Ok(filled)
        }
        Loaded::Miss(reason) => {
            assert!(filled.is_empty());
            Err(reason)
        }
        Loaded::Throttled => panic!("throttled"),
        other => panic!("{other:?}"),
    }
}

/// Deletes the journals and snapshots of the nodes: the next start has only the listing.
pub fn forget_own_objects(world: &World) {
    for name in world.server.keys(&format!("{PREFIX}/.kvtier/")) {
        world.server.remove_object(&name);
    }
}

/// The facts in the header of an object.
pub fn facts_in_bucket(world: &World, name: &str) -> Facts {
    let head = world.runtime.block_on(world.outside.head(name)).unwrap().unwrap();
    Facts::decode(&STANDARD.decode(head.meta("kvtier").unwrap()).unwrap()).unwrap()
}

/// Facts as the header has them.
pub fn text(facts: &Facts) -> String {
    base64_text(&facts.encode())
}

pub fn base64_text(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}
