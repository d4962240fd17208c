//! The frames that are on media: all versions of each stage, byte by byte. `KVTIER_WRITE_GOLDEN=1`
//! writes the files that are missing, for a new version.
#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use kvtier_codec::{
    Aes256Gcm, Bf16Split, Chain, Chunk, Decoder, ElementType, Keyring, Lz4, MasterKey, Scratch,
    Stage, Stored, TierEncoding, Zstd, stage_by_name,
};
use kvtier_key::{BlockSums, CodecId, Facts, Key, Namespace};
use support::{decoded, encoded, kv_like, noise};

struct Case {
    name: &'static str,
    stage: Box<dyn Stage>,
    chunk: Chunk<'static>,
    raw: Vec<u8>,
    version: u8,
    /// Whether the same bytes always encode to the same frame, whatever the library's version. Frames
    /// of an earlier version of ours are only read.
    is_stable: bool,
}

fn cases() -> Vec<Case> {
    let keys = Arc::new(Keyring::new());
    keys.insert(MasterKey::new(7, b"golden secret of thirty-two byte").unwrap());
    let plain = Chunk::default();
    let case = |name, stage: Box<dyn Stage>, chunk, raw| {
        let is_stable = stage.id() == Bf16Split.id();
        Case { name, stage, chunk, raw, version: 1, is_stable }
    };
    let text = b"a chunk that repeats, repeats, repeats, repeats, repeats, repeats ".repeat(3);
    let split =
        |name, element, raw| case(name, Box::new(Bf16Split), plain.with_element_type(element), raw);
    let kv = |element, len| kv_like(element, len, 42);
    let tenant = plain.with_tenant(b"tenant").with_associated_data(b"digest and facts");
    let fp8 = |version, name, element| {
        let case = split(name, element, kv(element, 4103));
        Case { version, is_stable: version == 2, ..case }
    };
    vec![
        case("lz4-v1", Box::new(Lz4), plain, text.clone()),
        case("zstd-v1", Box::new(Zstd::with_level(1).unwrap()), plain, text.clone()),
        case("aes-256-gcm-v1", Box::new(Aes256Gcm::new(keys, 7)), tenant, text),
        split("bf16-split-v1-bf16", ElementType::Bf16, kv(ElementType::Bf16, 4103)),
        split("bf16-split-v1-fp16", ElementType::Fp16, kv(ElementType::Fp16, 4103)),
        fp8(1, "bf16-split-v1-fp8-e4m3", ElementType::Fp8E4M3),
        fp8(1, "bf16-split-v1-fp8-e5m2", ElementType::Fp8E5M2),
        fp8(2, "bf16-split-v2-fp8-e4m3", ElementType::Fp8E4M3),
        fp8(2, "bf16-split-v2-fp8-e5m2", ElementType::Fp8E5M2),
        split("bf16-split-v1-constant", ElementType::Bf16, vec![0x3f; 100]),
    ]
}

fn path(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "golden", &format!("{name}.bin")].iter().collect()
}

#[test]
fn frames_are_those_on_media() {
    for case in cases() {
        let Case { name, stage, chunk, raw, version, is_stable } = case;
        let now = encoded(&*stage, &chunk, &raw).unwrap();
        if std::env::var_os("KVTIER_WRITE_GOLDEN").is_some() && !path(name).exists() {
            fs::write(path(name), &now).unwrap();
        }
        let stored = fs::read(path(name)).unwrap();
        assert!(decoded(&*stage, &chunk, &stored, raw.len()).unwrap() == raw, "{name}");
        assert!(!is_stable || stored == now, "{name} is encoded differently now");
        assert_eq!(stored[..2], [stage.id().number(), version], "{name}");
    }
}

/// The tag covers the stages before the encryption, in this order of bytes.
#[test]
fn an_encrypted_chain_is_that_on_media() {
    let keys = Arc::new(Keyring::new());
    keys.insert(MasterKey::new(7, b"golden secret of thirty-two byte").unwrap());
    let aes: Arc<dyn Stage> = Arc::new(Aes256Gcm::new(keys, 7));
    let name = "encrypted-chain-v1";
    let stages = vec![stage_by_name("bf16-split").unwrap(), Arc::new(Lz4), aes.clone()];
    let chain = Chain::new(stages).unwrap();
    let chunk = Chunk::default()
        .with_element_type(ElementType::Bf16)
        .with_tenant(b"tenant")
        .with_associated_data(b"digest and facts");
    let raw = vec![0x3f; 2000];
    let mut scratch = Scratch::new();
    let mut now = vec![0; chain.bound(raw.len()).unwrap()];
    let encoded = chain.encode(&chunk, &[&raw], &mut now, &mut scratch).unwrap();
    assert_eq!((encoded.codec, encoded.key_id), (CodecId(0x413), 7));
    if std::env::var_os("KVTIER_WRITE_GOLDEN").is_some() && !path(name).exists() {
        fs::write(path(name), &now[..encoded.len]).unwrap();
    }
    let bytes = fs::read(path(name)).unwrap();
    let stored = Stored { codec: encoded.codec, key_id: encoded.key_id, bytes: &bytes };
    let mut back = vec![0; raw.len()];
    let decoder = Decoder::new().with_stage(aes);
    decoder.decode(&chunk, &stored, &mut [&mut back], &mut scratch).unwrap();
    assert_eq!(back, raw);
}

/// A tier adds zeros behind the frame, which the tag does not cover.
#[test]
fn what_a_tier_stores_is_that_on_media() {
    let keys = Arc::new(Keyring::new());
    keys.insert(MasterKey::new(7, b"golden secret of thirty-two byte").unwrap());
    let aes: Arc<dyn Stage> = Arc::new(Aes256Gcm::new(keys, 7));
    let key = Key::from_name(&Namespace::from_name("golden"), "chunk");
    let raw = b"a chunk that repeats, repeats, repeats, repeats, repeats, repeats ".repeat(3);
    for (name, stages) in [
        ("tier-lz4-v1", vec![Arc::new(Lz4) as Arc<dyn Stage>]),
        ("tier-encrypted-v1", vec![Arc::new(Lz4), aes.clone()]),
    ] {
        let decoder = Decoder::new().with_stage(aes.clone());
        let tier = TierEncoding::new(Chain::new(stages).unwrap(), decoder);
        let mut now = vec![0; tier.bound(raw.len()).unwrap()];
        let (payload, len) = tier.encode(&key, &[&raw], &mut now).unwrap().unwrap();
        if std::env::var_os("KVTIER_WRITE_GOLDEN").is_some() {
            fs::write(path(name), &now[..len]).unwrap();
        }
        let bytes = fs::read(path(name)).unwrap();
        assert!(bytes[3] > 0 && bytes.len() % 64 == 63 && bytes.len() == len, "{name}");
        let namespace = key.namespace().digest();
        let facts =
            Facts::encoded(*key.digest(), namespace, payload, BlockSums::from_bytes(&bytes));
        let mut back = vec![0; raw.len()];
        tier.decode(&facts, &bytes, &mut [&mut back]).unwrap();
        assert_eq!(back, raw, "{name}");
    }
}

/// A block that would not become smaller is stored as it is, in a frame whose other blocks do.
#[test]
fn a_raw_block_is_read() {
    let raw = noise(48 + 5, 1);
    let mut stored = vec![3, 1, 1, 0, 0, 0, 0, 0];
    stored.extend(53u64.to_le_bytes());
    stored.extend([0, 0, 0, 0, 48, 0, 0, 0]);
    stored.extend(&raw);
    assert_eq!(decoded(&Bf16Split, &Chunk::default(), &stored, raw.len()).unwrap(), raw);
}
