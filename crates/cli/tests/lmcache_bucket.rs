//! The real LMCache and our tier on one bucket: what its S3 adapter (aws-crt) wrote is served by
//! us, and what we wrote by it. Only where `KVTIER_LMCACHE_PYTHON` names an interpreter that has
//! LMCache 0.5.6, as `cargo xtask nightly --only lmcache-bucket` makes one.
#![allow(clippy::unwrap_used)]
#![allow(clippy::print_stderr)]

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use kvtier::config::{Adapter, TierSpec};
use kvtier::core::{
    Ctx, Digest, Hold, Key, Load, Loaded, Mode, Namespace, Observe, Save, Saved, Tier,
};
use kvtier::key::{ChunkHash, KeyId, KvRank, ObjectKey};
use kvtier::mem::{Arena, ArenaConfig};
use kvtier::s3_tier::S3Tier;
use kvtier_testkit::s3::{Server, Setup};

/// A bucket of this name is part of our server's host, 127.0.0.1, as LMCache wants it. Our tier
/// calls the host another name.
const BUCKET: &str = "127.0.0";
const COUNT: u8 = 20;
/// Of 8 MiB and more aws-crt writes and reads in parts.
const LENGTHS: [usize; 3] = [300_000, 4 << 20, 10 << 20];

fn lmcache(python: &str, mode: &str, server: &Server, len: usize) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/lmcache_bucket.py");
    let mut command = Command::new(python);
    command.args([
        script,
        mode,
        &server.address().to_string(),
        &COUNT.to_string(),
        &len.to_string(),
    ]);
    command.env("PYTHONWARNINGS", "ignore").env("LMCACHE_LOG_LEVEL", "ERROR");
    let out = command.output().unwrap();
    assert!(
        out.status.success(),
        "{}{:?}",
        String::from_utf8_lossy(&out.stderr),
        server.seen().iter().rev().take(8).collect::<Vec<_>>()
    );
    assert!(String::from_utf8_lossy(&out.stdout).contains(&format!("{mode} {COUNT}")));
}

/// With LMCache's own configuration of the bucket.
fn tier(server: &Server) -> S3Tier {
    let spec = format!(
        r#"{{"type": "s3", "s3_endpoint": "http://localhost:{}", "bucket": "{BUCKET}", "s3_region": "us-east-1", "s3_num_io_threads": 4,
            "aws_access_key_id": "AKIDTEST", "aws_secret_access_key": "secret/test+key", "max_capacity_gb": 4}}"#,
        server.address().port()
    );
    let TierSpec::S3(spec) = Adapter::list(&[&spec], false).unwrap()[0].tiers().unwrap().remove(0)
    else {
        panic!("no bucket")
    };
    S3Tier::open(spec.tier(spec.client().unwrap()).unwrap()).unwrap()
}

fn key(n: u8, len: usize) -> Key {
    let mut ns = Namespace::new("", Digest::default()).with_partial(false);
    for group in 0..3 {
        ns = ns.with_chunk_bytes(group, len as u64);
    }
    let id = ObjectKey::new(
        "org/model",
        KvRank(i64::from(n) << 24 | 1),
        u32::from(n) % 3,
        ChunkHash::new(&[n; 32]),
        "",
    );
    Key::new(Arc::new(ns), KeyId::Object(id.unwrap()))
}

fn content(n: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251 + usize::from(n) * 13) as u8).collect()
}

fn ctx() -> Ctx {
    Ctx::within(Duration::from_secs(600))
}

fn read_all(tier: &S3Tier, len: usize) {
    let arena = Arena::new(ArenaConfig::heap(len.next_multiple_of(4096))).unwrap();
    let keys: Arc<[Key]> = (0..COUNT).map(|n| key(n, len)).collect();
    let found = tier.lookup(&ctx(), keys, Mode::Prefix, Hold::None).wait().unwrap().found;
    assert!(found.iter().all(|presence| presence.is_hit()), "{found:?}");
    for n in 0..COUNT {
        let load = Load { key: key(n, len), into: vec![arena.lease(len).unwrap()] };
        let done = tier.load(&ctx(), vec![load]).wait().remove(0);
        assert_eq!(done.result.unwrap(), Loaded::Hit { len: len as u64 }, "chunk {n}");
        assert!(done.op.into[0].as_host().unwrap() == content(n, len), "chunk {n} has other bytes");
    }
}

#[test]
fn what_lmcache_wrote_is_served_by_us_and_what_we_wrote_by_it() {
    let Some(python) =
        std::env::var("KVTIER_LMCACHE_PYTHON").ok().filter(|python| !python.is_empty())
    else {
        eprintln!("skipped: KVTIER_LMCACHE_PYTHON names no interpreter with LMCache");
        return;
    };
    for len in LENGTHS {
        let server = || {
            let mut setup = Setup::default();
            (setup.bucket, setup.plain_uploads) = (BUCKET.into(), true);
            Server::start(setup).unwrap()
        };
        let theirs = server();
        lmcache(&python, "write", &theirs, len);
        assert_eq!(theirs.keys("").len(), usize::from(COUNT));
        let ours = tier(&theirs);
        read_all(&ours, len);
        assert_eq!(
            ours.status().counter("unverified"),
            u64::from(COUNT),
            "nothing proves them, and that is counted"
        );
        drop(ours);

        let server = server();
        let ours = tier(&server);
        let arena = Arena::new(ArenaConfig::heap(len.next_multiple_of(4096))).unwrap();
        for n in 0..COUNT {
            let mut lease = arena.lease(len).unwrap();
            lease.write_at(0, &content(n, len)).unwrap();
            let save = Save { key: key(n, len), from: vec![lease.freeze()] };
            assert_eq!(
                ours.save(&ctx(), vec![save]).wait().remove(0).result.unwrap(),
                Saved::Stored
            );
        }
        let chunks = |server: &Server| -> Vec<String> {
            server.keys("").into_iter().filter(|name| !name.starts_with(".kvtier/")).collect()
        };
        assert_eq!(
            chunks(&server),
            theirs
                .keys("")
                .into_iter()
                .filter(|name| !name.starts_with(".kvtier/"))
                .collect::<Vec<_>>()
        );
        lmcache(&python, "read", &server, len);
        // And both at once: it writes over what we wrote, and we still serve it.
        lmcache(&python, "write", &server, len);
        read_all(&ours, len);
    }
}
