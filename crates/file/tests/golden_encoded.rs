//! A golden directory of format 4: encoded and plain chunks that each build opens, lists and decodes.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use common::as_left_by_the_dead;
use kvtier_core::key::{CodecId, DType, Digest, Namespace};
use kvtier_core::{Key, Loaded, MissReason, Save, Saved};
use kvtier_disk::inspect::{Directory, Upgrade};
use kvtier_disk::kvtier_codec::{
    Aes256Gcm, Chain, Decoder, Keyring, MasterKey, Stage, stage_by_name,
};
use kvtier_file::{FileConfig, FileTier, TierEncoding};
use kvtier_testkit::conformance::Fixture;

/// Raw bytes of each chunk: no multiple of a page.
const LEN: usize = 20_002;
/// The id of the key, whose 32 bytes are all 9.
const KEY_ID: u32 = 3;

/// The chunks by how they are stored: plain, `zstd`, and `bf16-split` with `aes-256-gcm`.
const PLAIN: [u64; 2] = [0, 1];
const ZSTD: [u64; 2] = [2, 3];
const SPLIT_AES: [u64; 2] = [4, 5];
/// Codec ids: the first stage is in the lowest bits.
const CODECS: [(&[u64], u16); 3] = [(&PLAIN, 0), (&ZSTD, 0x2), (&SPLIT_AES, 0x43)];

fn key(n: u64) -> Key {
    let namespace = Namespace::new("golden", Digest([4; 32])).with_dtype(DType::BFloat16);
    Key::from_name(&Arc::new(namespace), format!("chunk {n}"))
}

/// Elements of bf16 whose exponents are few.
fn raw(n: u64) -> Vec<u8> {
    let mut state = n;
    let mut element = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let [sign_and_mantissa, exponent] = [(state >> 56) as u16, (state >> 40) as u16 % 4];
        (sign_and_mantissa & 0x80) << 8 | (0x7c + exponent) << 7 | sign_and_mantissa & 0x7f
    };
    (0..LEN / 2).flat_map(|_| element().to_le_bytes()).collect()
}

fn aes(id: u32, byte: u8) -> Arc<dyn Stage> {
    let keys = Arc::new(Keyring::new());
    keys.insert(MasterKey::new(id, &[byte; 32]).unwrap());
    Arc::new(Aes256Gcm::new(keys, id))
}

fn open(dir: &Path, chain: Vec<Arc<dyn Stage>>, decoder: Decoder) -> Fixture {
    let encoding = Arc::new(TierEncoding::new(Chain::new(chain).unwrap(), decoder));
    let config = FileConfig::new(dir, 1 << 20).with_free_min(0).with_encoding(encoding);
    Fixture::new(FileTier::open(config.with_flush_every(Duration::from_millis(20))).unwrap())
}

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/format-4")
}

fn load(f: &Fixture, n: u64) -> Loaded {
    let done = f.load_with(f.load_op(&key(n), LEN));
    let loaded = done.result.unwrap();
    if matches!(loaded, Loaded::Hit { .. }) {
        assert!(f.read(&done.op.into[0]) == raw(n), "chunk {n}");
    }
    loaded
}

#[test]
fn a_golden_directory_of_format_4_is_opened_listed_and_decoded() {
    let dir = as_left_by_the_dead(&golden());
    let plan = Upgrade::plan(dir.path()).unwrap();
    assert_eq!(plan.from, plan.to, "nothing to upgrade");
    let directory = Directory::open(dir.path()).unwrap();
    let chunks = directory.chunks().unwrap();
    assert!(chunks.iter().all(|chunk| directory.verify(chunk).unwrap() == Ok(())));
    let f = open(dir.path(), Vec::new(), Decoder::new().with_stage(aes(KEY_ID, 9)));
    let bytes: u64 = common::files_bytes(dir.path());
    assert_eq!((f.tier.usage().chunks, f.tier.usage().used_bytes), (6, Some(bytes)));
    for n in 0..6 {
        assert_eq!(load(&f, n), Loaded::Hit { len: LEN as u64 }, "chunk {n}");
    }
    // Without the key, and with another secret under its id, the encrypted ones are misses.
    drop(f);
    for decoder in [Decoder::new(), Decoder::new().with_stage(aes(KEY_ID, 8))] {
        let f = open(dir.path(), Vec::new(), decoder);
        for n in 0..6 {
            let expected = match SPLIT_AES.contains(&n) {
                true => Loaded::Miss(MissReason::KeyMissing),
                false => Loaded::Hit { len: LEN as u64 },
            };
            assert_eq!(load(&f, n), expected, "chunk {n}");
        }
    }
}

#[test]
fn the_golden_chunks_have_the_codecs_that_their_footers_state() {
    let mut found = BTreeMap::new();
    for shard in std::fs::read_dir(golden()).unwrap().flatten() {
        if shard.file_name() == ".kvtier" {
            continue;
        }
        for file in std::fs::read_dir(shard.path()).unwrap().flatten() {
            let bytes = std::fs::read(file.path()).unwrap();
            let (facts, _) = kvtier_disk::footer::decode(&bytes[bytes.len() - 4096..]).unwrap();
            found.insert(facts.key, (facts.codec, facts.key_id, facts.raw_len));
        }
    }
    assert_eq!(found.len(), 6);
    for (chunks, codec) in CODECS {
        let key_id = if chunks == SPLIT_AES { KEY_ID } else { 0 };
        for n in chunks {
            let expected = (CodecId(codec), key_id, LEN as u64);
            assert_eq!(found[key(*n).digest()], expected, "chunk {n}");
        }
    }
}

/// With `KVTIER_WRITE_GOLDEN=DIR` this writes a golden directory into DIR/format-4, as the one in
/// `golden/` was written.
#[test]
fn a_directory_with_the_same_chunks_is_written() {
    let scratch = tempfile::tempdir().unwrap();
    let to = std::env::var_os("KVTIER_WRITE_GOLDEN").map_or(scratch.path().into(), PathBuf::from);
    let dir = tempfile::tempdir().unwrap();
    let stage = |name| stage_by_name(name).unwrap();
    let ways: [(_, Vec<Arc<dyn Stage>>); 3] = [
        (PLAIN, vec![]),
        (ZSTD, vec![stage("zstd")]),
        (SPLIT_AES, vec![stage("bf16-split"), aes(KEY_ID, 9)]),
    ];
    for (chunks, chain) in ways {
        let f = open(dir.path(), chain, Decoder::new());
        for n in chunks {
            let mut lease = f.lease(LEN);
            f.write(&mut lease, &raw(n));
            let save = Save { key: key(n), from: vec![lease.freeze()] };
            assert_eq!(f.save_with(save).result.unwrap(), Saved::Stored);
        }
    }
    let copy = to.join("format-4");
    let copied = std::process::Command::new("cp").arg("-a").arg(dir.path()).arg(&copy).status();
    assert!(copied.unwrap().success());
    let f = open(&copy, Vec::new(), Decoder::new().with_stage(aes(KEY_ID, 9)));
    (0..6).for_each(|n| assert_eq!(load(&f, n), Loaded::Hit { len: LEN as u64 }));
}
