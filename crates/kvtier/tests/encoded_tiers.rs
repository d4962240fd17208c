//! Host memory over a directory and over a bucket that encode: promotion has raw lengths and bytes,
//! whatever the medium below stores.
#![cfg(all(feature = "config", feature = "file", feature = "s3"))]
#![allow(clippy::unwrap_used)]

mod common;

use std::path::Path;
use std::sync::Arc;

use common::{ABSENT, LEN, ctx, eventually, hit, key, load, view};
use kvtier::config::{Config, OpenTiers};
use kvtier::core::Presence;
use kvtier::key::{BlockSums, DType};
use kvtier::prelude::*;
use kvtier_testkit::s3::{Server, Setup};

const ZSTD: &str = r#""encode": ["zstd"]"#;

/// A medium for the lower tier.
enum Medium {
    Directory(tempfile::TempDir),
    Bucket(Server),
}

impl Medium {
    fn all() -> [Medium; 2] {
        let server = Server::start(Setup::default()).unwrap();
        [Medium::Directory(tempfile::tempdir().unwrap()), Medium::Bucket(server)]
    }

    /// Opens host memory over a tier of this medium with these settings.
    fn open(&self, settings: &str) -> OpenTiers {
        let tier = match self {
            Medium::Directory(dir) => {
                format!(
                    r#"{{"type": "file", "path": {:?}, "bytes": "64MiB", {settings}}}"#,
                    dir.path()
                )
            }
            Medium::Bucket(server) => {
                let Setup { bucket, access_key, secret_key, region, .. } = Setup::default();
                format!(
                    r#"{{"type": "s3", "s3_endpoint": "{}/{bucket}", "s3_region": "{region}", "prefix": "p", "max_capacity_gb": 1,
                        "aws_access_key_id": "{access_key}", "aws_secret_access_key": "{secret_key}", {settings}}}"#,
                    server.url()
                )
            }
        };
        let text = format!(r#"{{"tiers": [{{"type": "host", "bytes": "8MiB"}}, {tier}]}}"#);
        Config::from_json(&text, "kv.json").unwrap().open().unwrap()
    }
}

/// The settings of a tier that encrypts with this key file.
fn aes(dir: &Path) -> String {
    let path = dir.join("key");
    if !path.exists() {
        kvtier::config::write_new_key_file(&path).unwrap();
    }
    format!(r#""encode": ["zstd", {{"name": "aes-256-gcm", "key_file": {path:?}, "key_id": 7}}]"#)
}

fn arena() -> Arena {
    Arena::new(ArenaConfig::heap(8 << 20)).unwrap()
}

fn save(tier: &dyn Tier, from: &View) -> Saved {
    let op = Save { key: key(1), from: vec![from.clone()] };
    tier.save(&ctx(), vec![op]).wait().remove(0).result.unwrap()
}

fn look(tier: &dyn Tier) -> Presence {
    let keys = Arc::from([key(1)]);
    tier.lookup(&ctx(), keys, Mode::Each, Hold::None).wait().unwrap().found[0]
}

#[test]
fn a_promoted_chunk_has_its_raw_length_and_bytes() {
    let (arena, keys) = (arena(), tempfile::tempdir().unwrap());
    let raw = common::bytes(1, LEN);
    for settings in [ZSTD.to_owned(), aes(keys.path())] {
        for medium in Medium::all() {
            let from = view(&arena, 1, LEN);
            let first = medium.open(&settings);
            assert_eq!(save(&*first.top, &from), Saved::Stored);
            let sums = from.memo(|| BlockSums::from_bytes(&raw));
            assert_eq!(
                sums,
                Some(&BlockSums::from_bytes(&raw)),
                "stored sums became those of the view"
            );
            let status = first.tiers[1].status();
            assert_eq!(status.counter("encoded_chunks"), 1);
            assert!(status.counter("encoded_stored_bytes") < LEN as u64 / 2, "{status:?}");
            first.top.close().wait().unwrap();
            drop(first);

            let again = medium.open(&settings);
            assert_eq!(load(&*again.tiers[0], &arena, 1, LEN), ABSENT);
            assert_eq!(load(&*again.top, &arena, 1, LEN), hit(LEN));
            assert_eq!(look(&*again.top), Presence::Hit { len: LEN as u64 });
            eventually("it is promoted", || load(&*again.tiers[0], &arena, 1, LEN) == hit(LEN));
            assert_eq!(again.top.status().counter("promoted"), 1);
            assert_eq!(again.tiers[1].status().counter("decoded_chunks"), 1);
            again.top.close().wait().unwrap();
        }
    }
}

#[test]
fn chunks_that_are_written_later_are_encoded_too() {
    let arena = arena();
    for rule in ["back", "spill"] {
        let settings = format!(r#"{ZSTD}, "write": "{rule}""#);
        for medium in Medium::all() {
            let first = medium.open(&settings);
            assert_eq!(save(&*first.top, &view(&arena, 1, LEN)), Saved::Stored);
            // What is spilled is evicted from memory first.
            for n in 2..if rule == "spill" { 120 } else { 2 } {
                common::save(&*first.top, &arena, n, LEN);
            }
            eventually("it is below", || {
                look(&*first.tiers[1]) == Presence::Hit { len: LEN as u64 }
            });
            first.top.close().wait().unwrap();
            assert!(first.tiers[1].status().counter("encoded_chunks") > 0);
            drop(first);
            let again = medium.open(ZSTD);
            assert_eq!(load(&*again.top, &arena, 1, LEN), hit(LEN), "{rule}");
            again.top.close().wait().unwrap();
        }
    }
}

#[test]
fn without_its_key_a_chunk_is_a_miss_that_the_next_save_replaces() {
    let (arena, keys) = (arena(), tempfile::tempdir().unwrap());
    for medium in Medium::all() {
        let first = medium.open(&aes(keys.path()));
        assert_eq!(save(&*first.top, &view(&arena, 1, LEN)), Saved::Stored);
        first.top.close().wait().unwrap();
        drop(first);

        let without = medium.open(ZSTD);
        let missed = load(&*without.top, &arena, 1, LEN);
        assert_eq!(missed, Loaded::Miss(MissReason::KeyMissing));
        assert_eq!(without.tiers[1].status().counter("misses_key"), 1);
        assert_eq!(save(&*without.top, &view(&arena, 1, LEN)), Saved::Stored);
        without.top.close().wait().unwrap();
        drop(without);

        // A tier that encrypts loads no chunk that is not encrypted, and replaces it too.
        let again = medium.open(&aes(keys.path()));
        assert_eq!(load(&*again.top, &arena, 1, LEN), Loaded::Miss(MissReason::Codec));
        assert_eq!(save(&*again.top, &view(&arena, 1, LEN)), Saved::Stored);
        again.top.close().wait().unwrap();
        drop(again);
        let last = medium.open(&aes(keys.path()));
        assert_eq!(load(&*last.top, &arena, 1, LEN), hit(LEN));
        last.top.close().wait().unwrap();
    }
}

/// 2 layers of 16 elements, 256 tokens, keys and values, bf16.
const KV_LEN: usize = 2 * 2 * 16 * 256 * 2;

/// KV data that the engine declares as bf16.
fn kv_key(name: &str) -> Key {
    let namespace = Namespace::new("tests", Default::default()).with_dtype(DType::BFloat16);
    Key::from_name(&Arc::new(namespace), name)
}

/// Numbers between 0.5 and 2, of either sign.
fn kv_bytes(len: usize) -> Vec<u8> {
    let number = |n: u32| {
        let random = n.wrapping_mul(2_654_435_761) >> 16;
        [random as u8, 0x3f | (random >> 8) as u8 & 0x80]
    };
    (0..len as u32 / 2).flat_map(number).collect()
}

fn save_kv(tier: &dyn Tier, arena: &Arena, name: &str, raw: &[u8]) -> Saved {
    let mut lease = arena.lease(raw.len()).unwrap();
    lease.write_at(0, raw).unwrap();
    let op = Save { key: kv_key(name), from: vec![lease.freeze()] };
    tier.save(&ctx(), vec![op]).wait().remove(0).result.unwrap()
}

/// Loads a chunk; the reason where it is a miss.
fn load_kv(tier: &dyn Tier, arena: &Arena, name: &str, len: usize) -> Result<Vec<u8>, MissReason> {
    let op = Load { key: kv_key(name), into: vec![arena.lease(len).unwrap()] };
    let done = tier.load(&ctx(), vec![op]).wait().remove(0);
    match done.result.unwrap() {
        Loaded::Hit { len: found } => {
            assert_eq!(found as usize, len);
            Ok(done.op.into[0].as_host().unwrap().to_vec())
        }
        Loaded::Miss(reason) => Err(reason),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_lossy_chunk_loads_as_the_same_values_each_time_and_only_where_it_is_named() {
    const LOSSY: &str = r#""encode": [{"name": "cachegen", "layers": 2, "kv_width": 16}, "zstd"]"#;
    let (arena, raw) = (arena(), kv_bytes(KV_LEN));
    for medium in Medium::all() {
        let first = medium.open(LOSSY);
        let below = &*first.tiers[1];
        assert_eq!(save_kv(below, &arena, "full", &raw), Saved::Stored);
        // Other lengths are exact: they are no full chunks of that shape.
        assert_eq!(save_kv(below, &arena, "partial", &raw[..KV_LEN / 2]), Saved::Stored);
        let near = load_kv(below, &arena, "full", KV_LEN).unwrap();
        assert_ne!(near, raw);
        let bytes_are_near = near.chunks_exact(2).zip(raw.chunks_exact(2)).all(|(near, raw)| {
            let number = |x: &[u8]| f32::from_bits(u32::from_be_bytes([x[1], x[0], 0, 0]));
            (number(near) - number(raw)).abs() < 0.07
        });
        assert!(bytes_are_near, "32 bins of numbers up to 2");
        first.top.close().wait().unwrap();
        drop(first);

        let again = medium.open(LOSSY);
        assert!(load_kv(&*again.tiers[1], &arena, "full", KV_LEN).unwrap() == near);
        assert!(load_kv(&*again.top, &arena, "partial", KV_LEN / 2).unwrap() == raw[..KV_LEN / 2]);
        again.top.close().wait().unwrap();
        drop(again);

        let lossless = medium.open(ZSTD);
        let below = &*lossless.tiers[1];
        assert_eq!(load_kv(below, &arena, "full", KV_LEN), Err(MissReason::Codec));
        assert_eq!(save_kv(below, &arena, "full", &raw), Saved::Stored);
        assert!(load_kv(below, &arena, "full", KV_LEN).unwrap() == raw);
        lossless.top.close().wait().unwrap();
    }
}
