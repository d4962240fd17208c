//! Encoded chunks that were damaged, exchanged or forged, and keys that are missing: a miss, never a
//! wrong byte, and the next save repairs it.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;

use kvtier_codec::{Decoder, Keyring, MasterKey, TierEncoding};
use kvtier_core::{ErrorKind, Key, MissReason, Presence, Save, Saved};
use kvtier_key::{BlockSums, CodecId, Facts};
use support::encoded::*;
use support::tier::*;

const LEN: usize = 100_000;

/// A tier that has one chunk, and the chunk's object.
struct Stored {
    world: World,
    key: Key,
    name: String,
    raw: Vec<u8>,
    bytes: Vec<u8>,
    facts: Facts,
}

impl Stored {
    fn new(encoding: Arc<TierEncoding>) -> Self {
        let world = World::with(|config| config.with_encoding(encoding));
        let (key, raw) = (world.suite.key(1), compressible(1, LEN));
        store(&world, &key, &raw);
        let name = world.name(&key);
        let bytes = world.server.object(&name).unwrap().to_vec();
        let facts = facts_in_bucket(&world, &name);
        assert_eq!((facts.raw_len, facts.stored_len()), (LEN as u64, bytes.len() as u64));
        Stored { world, key, name, raw, bytes, facts }
    }

    /// Loads what another program put there, then what was there first.
    fn load_with(&self, bytes: &[u8], facts: Option<&str>) -> Result<Vec<u8>, MissReason> {
        self.world.write(&self.name, bytes, facts);
        let loaded = load_bytes(&self.world, &self.key, &[LEN]);
        self.world.write(&self.name, &self.bytes, Some(&text(&self.facts)));
        assert_eq!(load_bytes(&self.world, &self.key, &[LEN]), Ok(self.raw.clone()), "restored");
        loaded
    }
}

fn damaged(loaded: Result<Vec<u8>, MissReason>) -> bool {
    loaded == Err(MissReason::Corrupt)
}

#[test]
fn damaged_objects_and_headers_are_corrupt() {
    for encoding in [zstd(), zstd_aes()] {
        let stored = Stored::new(encoding);
        let (len, good) = (stored.bytes.len(), text(&stored.facts));
        for at in (0..len).step_by(len / 5 + 1).chain([len - 1]) {
            let mut bytes = stored.bytes.clone();
            bytes[at] ^= 0x10;
            assert!(damaged(stored.load_with(&bytes, Some(&good))), "a flipped bit at {at}");
        }
        assert!(damaged(stored.load_with(&stored.bytes[1..], Some(&good))), "cut");
        let longer = [&stored.bytes[..], &[0]].concat();
        assert!(damaged(stored.load_with(&longer, Some(&good))), "longer");
        assert!(damaged(stored.load_with(&stored.bytes, None)), "no facts");
        let record = stored.facts.encode();
        for at in 0..record.len() {
            let mut record = record.clone();
            record[at] ^= 0x04;
            let header = base64_text(&record);
            if at % 61 == 0 {
                assert!(damaged(stored.load_with(&stored.bytes, Some(&header))), "byte {at}");
            }
        }
    }
}

#[test]
fn forged_facts_never_lead_to_other_bytes() {
    for encoding in [zstd(), aes(), zstd_aes()] {
        let stored = Stored::new(encoding);
        let changes: [(&str, fn(&mut Facts)); 8] = [
            ("codec", |facts| facts.codec.0 ^= 3),
            ("an unknown codec", |facts| facts.codec = CodecId(9)),
            ("key id", |facts| facts.key_id ^= 1),
            ("another key id", |facts| facts.key_id += 7),
            ("shorter", |facts| facts.raw_len -= 1),
            ("longer", |facts| facts.raw_len += 1),
            ("no bytes", |facts| facts.raw_len = 0),
            ("raw checksum", |facts| facts.raw_crc = Some(facts.raw_crc.unwrap_or(5) ^ 1)),
        ];
        for (what, change) in changes {
            let mut facts = stored.facts.clone();
            change(&mut facts);
            let loaded = stored.load_with(&stored.bytes, Some(&text(&facts)));
            assert!(loaded.is_err(), "{what}: {loaded:?}");
        }
        // Of another chunk, under this one's name, with its own facts and with this one's.
        let other = stored.world.suite.key(2);
        store(&stored.world, &other, &compressible(2, LEN));
        let name = stored.world.name(&other);
        let bytes = stored.world.server.object(&name).unwrap();
        let facts = facts_in_bucket(&stored.world, &name);
        assert!(damaged(stored.load_with(&bytes, Some(&text(&facts)))));
        let mut facts = stored.facts.clone();
        facts.sums = BlockSums::from_bytes(&bytes);
        // Ciphertext that matches its checksums may be of another key with the same id.
        let reason = if facts.key_id == 0 { MissReason::Corrupt } else { MissReason::KeyMissing };
        assert_eq!(stored.load_with(&bytes, Some(&text(&facts))), Err(reason));
    }
}

#[test]
fn what_decodes_to_more_than_it_says_is_corrupt_and_more_than_the_memory_a_miss() {
    let stored = Stored::new(zstd());
    let encoding = zstd();
    let bomb = vec![0; 16 << 20];
    let mut out = vec![0; encoding.bound(bomb.len()).unwrap()];
    let (mut payload, len) = encoding.encode(&stored.key, &[&bomb], &mut out).unwrap().unwrap();
    let (namespace, sums) = (stored.facts.namespace, BlockSums::from_bytes(&out[..len]));
    let facts = |payload| Facts::encoded(*stored.key.digest(), namespace, payload, sums.clone());
    payload.raw_len = LEN as u64;
    assert!(damaged(stored.load_with(&out[..len], Some(&text(&facts(payload))))));
    payload.raw_len = 1 << 40;
    let loaded = stored.load_with(&out[..len], Some(&text(&facts(payload))));
    assert_eq!(loaded, Err(MissReason::Length));
}

#[test]
fn a_chunk_whose_key_is_missing_is_a_miss_until_the_key_or_a_save_comes() {
    let first = Stored::new(zstd_aes());
    let server = || Arc::clone(&first.world.server);
    // This one has the stage, and no key yet.
    let ring = Arc::new(Keyring::new());
    let stage = Arc::new(kvtier_codec::Aes256Gcm::new(Arc::clone(&ring), 1));
    let keyless =
        World::over(server(), |config| config.with_encoding(encoding(vec![], Some(stage))));
    assert_eq!(load_bytes(&keyless, &first.key, &[LEN]), Err(MissReason::KeyMissing));
    assert_eq!(keyless.lookup(&first.key), Presence::Miss);
    ring.insert(MasterKey::new(1, &[1; 32]).unwrap());
    assert_eq!(load_bytes(&keyless, &first.key, &[LEN]), Ok(first.raw.clone()));
    assert_eq!(keyless.lookup(&first.key), Presence::Hit { len: LEN as u64 });
    assert_eq!((keyless.count("misses_key"), keyless.count("corrupt_objects")), (1, 0));

    // This one has no key at all. Its save overwrites the object.
    let plain = World::over(server(), |config| config);
    assert_eq!(load_bytes(&plain, &first.key, &[LEN]), Err(MissReason::KeyMissing));
    assert_eq!((plain.count("misses_key"), plain.count("corrupt_objects")), (1, 0));
    assert_eq!(plain.in_bucket(), first.bytes.len() as u64, "the object stays");
    store(&plain, &first.key, &first.raw);
    assert_eq!(load_bytes(&plain, &first.key, &[LEN]), Ok(first.raw.clone()));

    // In clear it is none for the tier that encrypts, which encrypts it again.
    assert_eq!(load_bytes(&first.world, &first.key, &[LEN]), Err(MissReason::Codec));
    assert_eq!(first.world.count("misses_codec"), 1);
    store(&first.world, &first.key, &first.raw);
    assert_eq!(load_bytes(&first.world, &first.key, &[LEN]), Ok(first.raw.clone()));
    assert_ne!(facts_in_bucket(&first.world, &first.name).key_id, 0);
}

#[test]
fn another_key_with_the_same_number_decodes_nothing() {
    let first = Stored::new(aes());
    let ring = Arc::new(Keyring::new());
    ring.insert(MasterKey::new(1, &[0xbb; 32]).unwrap());
    let stage: Arc<dyn kvtier_codec::Stage> = Arc::new(kvtier_codec::Aes256Gcm::new(ring, 1));
    let other = World::over(Arc::clone(&first.world.server), |config| {
        config.with_encoding(encoding(vec![stage.clone()], Some(stage)))
    });
    assert_eq!(load_bytes(&other, &first.key, &[LEN]), Err(MissReason::KeyMissing));
    assert_eq!(other.count("corrupt_objects"), 0);
    store(&other, &first.key, &first.raw);
    assert_eq!(load_bytes(&other, &first.key, &[LEN]), Ok(first.raw.clone()));
}

#[test]
fn without_its_key_a_save_fails_and_stores_nothing() {
    let stage = aes_stage(&[]);
    let encoding = encoding(vec![stage.clone()], Some(stage));
    let world = World::with(|config| config.with_encoding(encoding));
    let key = world.suite.key(1);
    let from = vec![view(&world, &compressible(1, LEN))];
    let done = world.suite.save_with(Save { key: key.clone(), from });
    let error = done.result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(error.to_string().contains("key"), "{error}");
    assert_eq!((world.used(), world.objects().len()), (0, 0));
    assert_eq!(world.lookup(&key), Presence::Miss);
}

#[test]
fn a_conditional_put_keeps_what_can_be_decoded_and_overwrites_the_rest() {
    let first = Stored::new(zstd_aes());
    let over = |encoding: Arc<TierEncoding>| {
        forget_own_objects(&first.world);
        World::over(Arc::clone(&first.world.server), |mut config| {
            config.if_absent = true;
            config.fresh_hit_max = std::time::Duration::ZERO;
            config.with_encoding(encoding)
        })
    };
    // Another process stores the object after this node found none.
    let save_over = |world: &World, bytes: &[u8], facts: &Facts| {
        world.delete(&first.name);
        assert_eq!(world.lookup(&first.key), Presence::Miss);
        world.write(&first.name, bytes, Some(&text(facts)));
        let from = vec![view(world, &first.raw)];
        world.suite.save_with(Save { key: first.key.clone(), from }).result.unwrap()
    };
    let save_unseen = |world: &World| save_over(world, &first.bytes, &first.facts);
    // It encodes in another way, and can decode this.
    let same_keys = over(aes());
    same_keys.suite.eventually("conditional PUTs", || {
        same_keys.status().reasons.iter().all(|reason| !reason.contains("probe"))
    });
    assert_eq!(save_unseen(&same_keys), Saved::Present);
    assert_eq!(same_keys.used(), first.bytes.len() as u64, "what is there counts");
    assert_eq!(load_bytes(&same_keys, &first.key, &[LEN]), Ok(first.raw.clone()));
    // One without the key cannot decode it, and overwrites it.
    let no_keys = over(Arc::new(TierEncoding::new(Default::default(), Decoder::new())));
    assert_eq!(save_unseen(&no_keys), Saved::Stored);
    assert_eq!(load_bytes(&no_keys, &first.key, &[LEN]), Ok(first.raw.clone()));
    // In clear it is none for a tier that encrypts.
    let plain = first.world.server.object(&first.name).unwrap();
    let facts = facts_in_bucket(&first.world, &first.name);
    assert_eq!(save_over(&same_keys, &plain, &facts), Saved::Stored);
    assert_eq!(load_bytes(&same_keys, &first.key, &[LEN]), Ok(first.raw.clone()));
}
