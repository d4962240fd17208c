//! The five example configurations of LMCache's documents, each as it stands there, each run whole against a server of ours that is reached
//! under the bucket's production host name. Only TLS is left out: that server has no certificate for those names.
#![cfg(all(feature = "config", feature = "file", feature = "s3"))]
#![allow(clippy::unwrap_used)]

mod common;

use std::time::{Duration, Instant};

use common::{arena, ctx};
use kvtier::Compat;
use kvtier::config::lmcache::{Inputs, LmcacheConfig};
use kvtier::config::{Adapter, Capacity, S3Spec, TierSpec};
use kvtier::evict::PolicyKind;
use kvtier::key::{CacheEngineKey, DType, EngineHash};
use std::sync::Arc;

use kvtier::prelude::*;
use kvtier::s3::tier::{Layout, S3Tier};
use kvtier::s3::{Credentials, FixedNames};
use kvtier_testkit::s3::{Server, Setup};

const LEN: usize = 192 << 10;

const BASIC: &str = "chunk_size: 256\nlocal_cpu: False\nsave_unfull_chunk: False\nremote_url: \"s3://your-bucket-name\"\nremote_serde: \"naive\"\n\
    blocking_timeout_secs: 10\nextra_config:\n  s3_region: \"us-east-1\"\n  s3_num_io_threads: 64\n  save_chunk_meta: False\n";

const EXPRESS: &str = "chunk_size: 256\nlocal_cpu: False\nsave_unfull_chunk: False\nenable_async_loading: True\n\
    remote_url: \"s3://kv--use1-az4--x-s3.s3express-use1-az4.us-east-1.amazonaws.com\"\nremote_serde: \"naive\"\nblocking_timeout_secs: 10\n\
    extra_config:\n  s3_num_io_threads: 320\n  s3_prefer_http2: False\n  s3_region: \"us-east-1\"\n  s3_enable_s3express: True\n  \
    save_chunk_meta: False\n";

const COREWEAVE_OLD: &str = "chunk_size: 256\nlocal_cpu: False\nmax_local_cpu_size: 50\nsave_unfull_chunk: False\nenable_async_loading: True\n\
    remote_url: \"s3://test-127.cwlota.com\"\nremote_serde: \"naive\"\nblocking_timeout_secs: 100\nextra_config:\n  s3_max_io_concurrency: 320\n  \
    s3_max_inflight_reqs: 320\n  s3_prefer_http2: False\n  s3_region: \"US-WEST-04A\"\n  s3_enable_s3express: False\n  save_chunk_meta: False\n  \
    s3_file_prefix: \"test-2\"\n";

const COREWEAVE_NEW: &str = "chunk_size: 256\nlocal_cpu: False\nmax_local_cpu_size: 50\nremote_url: \"s3://test-127.cwlota.com\"\n\
    blocking_timeout_secs: 100\nextra_config:\n  s3_num_io_threads: 320\n  s3_prefer_http2: False\n  s3_region: \"US-WEST-04A\"\n  \
    s3_enable_s3express: False\n  save_chunk_meta: False\n  disable_tls: True\n  aws_access_key_id: \"AKIDTEST\"\n  \
    aws_secret_access_key: \"secret/test+key\"\n";

const MP: &str = r#"{"type": "s3", "s3_endpoint": "s3://my-bucket", "s3_region": "us-east-1", "s3_num_io_threads": 64,
    "s3_prefer_http2": true, "s3_enable_s3express": false, "disable_tls": false, "max_capacity_gb": 500,
    "eviction": {"eviction_policy": "LRU", "trigger_watermark": 0.85, "eviction_ratio": 0.2}}"#;

fn engine(yaml: &str) -> S3Spec {
    let config = LmcacheConfig::read(&Inputs::new().with_file("lmcache.yaml", yaml)).unwrap();
    assert!(config.notes().is_empty(), "{:?}", config.notes());
    bucket(config.stack(0).unwrap().config.tiers)
}

fn bucket(mut tiers: Vec<TierSpec>) -> S3Spec {
    assert_eq!(tiers.len(), 1);
    match tiers.remove(0) {
        TierSpec::S3(spec) => *spec,
        other => panic!("{other:?} is no bucket"),
    }
}

fn chunk(layout: Layout) -> Key {
    let ns = Arc::new(Namespace::new("tests", Digest::of("layout", b"tests")).with_chunk_bytes(0, LEN as u64));
    let hash = ChunkHash::new(Digest::of("chunk", b"1").as_bytes());
    let id = match layout {
        Layout::Lmcache => {
            let key =
                CacheEngineKey::new("meta/llama", 1, 0, EngineHash::Int(0x1234_5678_9abc_i64.into()), DType::BFloat16);
            KeyId::Engine(key.unwrap())
        }
        _ => KeyId::Object(ObjectKey::new("meta/llama", KvRank(0), 0, hash, "").unwrap()),
    };
    Key::new(ns, id)
}

/// Saves, looks up, loads, starts again and loads, removes.
fn live(mut spec: S3Spec, (name, region, host): (&str, &str, &str), wanted: &str) {
    let mut setup = Setup::default();
    (setup.bucket, setup.region) = (name.into(), region.into());
    let server = Server::start(setup).unwrap();
    spec.tls = false;
    spec.credentials.get_or_insert(Credentials::new("AKIDTEST", "secret/test+key"));
    let open = || {
        let mut client = spec.client().unwrap();
        client.resolver = Box::new(FixedNames(server.address()));
        S3Tier::open(spec.tier(client)).unwrap()
    };
    let (tier, arena, key) = (open(), arena(), chunk(spec.layout));
    let save = Save { key: key.clone(), from: vec![common::view(&arena, 1, LEN)] };
    assert_eq!(tier.save(&ctx(), vec![save]).wait().remove(0).result.unwrap(), Saved::Stored);
    let names = server.keys("");
    assert!(names.iter().any(|name| name.starts_with(wanted)), "{names:?}");
    let look = |tier: &S3Tier| {
        let found = tier.lookup(&ctx(), Arc::from([key.clone()]), Mode::Each, Hold::None).wait().unwrap();
        found.found[0]
    };
    assert_eq!(look(&tier), Presence::Hit { len: LEN as u64 });
    for tier in [&tier, &open()] {
        let load = Load { key: key.clone(), into: vec![arena.lease(LEN).unwrap()] };
        let done = tier.load(&ctx(), vec![load]).wait().remove(0);
        assert_eq!(done.result.unwrap(), common::hit(LEN));
        assert!(done.op.into[0].as_host().unwrap() == common::bytes(1, LEN));
    }
    tier.remove(&ctx(), Arc::from([key.clone()])).wait().unwrap();
    let begun = Instant::now();
    while server.keys("").iter().any(|name| name.starts_with(wanted)) {
        assert!(begun.elapsed() < Duration::from_secs(30), "still there: {:?}", server.keys(""));
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(look(&tier), Presence::Miss);
    let seen = server.seen();
    let strangers = seen.iter().filter(|request| request.header("host") != Some(host)).count();
    assert_eq!((strangers, seen.iter().filter(|request| request.status == 403).count()), (0, 0));
}

#[test]
fn basic() {
    let spec = engine(BASIC);
    assert_eq!((spec.requests_max, spec.deadline.as_secs(), spec.layout, spec.tls), (64, 10, Layout::Lmcache, true));
    let host = "your-bucket-name.s3.us-east-1.amazonaws.com";
    live(spec, ("your-bucket-name", "us-east-1", host), "meta_llama@1@0@");
}

#[test]
fn express() {
    let spec = engine(EXPRESS);
    assert_eq!((spec.requests_max, spec.provider), (320, Some(kvtier::s3::Provider::Express)));
    let host = "kv--use1-az4--x-s3.s3express-use1-az4.us-east-1.amazonaws.com";
    live(spec, ("kv--use1-az4--x-s3", "us-east-1", host), "meta_llama@1@0@");
}

#[test]
fn coreweave_old() {
    let spec = engine(COREWEAVE_OLD);
    assert_eq!((spec.requests_max, spec.deadline.as_secs(), spec.prefix.as_str()), (320, 100, "test-2"));
    live(spec, ("test-127", "US-WEST-04A", "test-127.cwlota.com"), "test-2/meta_llama@1@0@");
}

#[test]
fn coreweave_new() {
    let spec = engine(COREWEAVE_NEW);
    assert!(!spec.tls && spec.credentials.is_some());
    live(spec, ("test-127", "US-WEST-04A", "test-127.cwlota.com"), "meta_llama@1@0@");
}

#[test]
fn multi_process() {
    let spec = bucket(Adapter::list(&[MP], false).unwrap()[0].tiers().unwrap());
    assert_eq!((spec.layout, spec.capacity_bytes, spec.high_mark), (Layout::LmcacheMp, Some(500 << 30), 0.85));
    assert!(spec.http2, "asked for, and spoken where the server chooses it");
    live(spec, ("my-bucket", "us-east-1", "my-bucket.s3.us-east-1.amazonaws.com"), "meta/llama@00000000@0@");
}

#[test]
fn defect_7_of_lmcaches_an_invalid_value_is_an_error_that_names_it_and_never_none() {
    let read = |yaml: &str| LmcacheConfig::read(&Inputs::new().with_file("lmcache.yaml", yaml));
    let error =
        read(&BASIC.replace("blocking_timeout_secs: 10", "blocking_timeout_secs: soon")).unwrap_err().to_string();
    assert!(error.contains("blocking_timeout_secs") && error.contains("lmcache.yaml"), "{error}");
    let error = read(&BASIC.replace("chunk_size: 256", "chunk_size: many")).unwrap_err().to_string();
    assert!(error.contains("chunk_size"), "{error}");
}

#[test]
fn a_bucket_evicts_by_the_policy_and_the_quotas_that_are_written() {
    let spec = |more: &str| {
        let text = format!(
            r#"{{"type": "s3", "s3_endpoint": "s3://b", "s3_region": "eu-west-1", "max_capacity_gb": 1{more}}}"#
        );
        Adapter::list(&[&text], false).unwrap()[0].tiers().map(|mut tiers| match tiers.remove(0) {
            TierSpec::S3(spec) => spec,
            other => panic!("{other:?}"),
        })
    };
    assert_eq!(spec("").unwrap().policy, PolicyKind::Default);
    assert_eq!(spec(r#", "policy": "s3-fifo""#).unwrap().policy, PolicyKind::S3Fifo);
    let theirs = r#", "eviction": {"eviction_policy": "ARC"}"#;
    assert_eq!(spec(theirs).unwrap().policy, PolicyKind::Arc);
    let both = spec(&format!(r#", "policy": "lru"{theirs}"#)).unwrap_err().to_string();
    assert!(both.contains("policy") && both.contains("eviction_policy"), "{both}");
    let limited = spec(r#", "policy": "isolated-lru", "quotas": {"team-a": "1GiB", "*": 5}"#).unwrap().quotas;
    assert_eq!((limited.of["team-a"], limited.others, limited.fair), (1 << 30, Some(5), false));
    assert!(spec(r#", "quotas": {"team-a": "1GiB"}, "fair": true"#).unwrap().quotas.fair);
    assert!(spec(r#", "quotas": {"a": "lots"}"#).unwrap_err().to_string().contains("lots"));
    assert!(spec(r#", "policy": "best""#).unwrap_err().to_string().contains("best"));
}

#[test]
fn compat_takes_lmcaches_watermark_and_ratio_to_the_letter() {
    let spec = |eviction: &str| {
        let text = MP.replace("\"eviction_ratio\": 0.2", &format!("\"eviction_ratio\": 0.2{eviction}"));
        bucket(Adapter::list(&[&text], false).unwrap()[0].tiers().unwrap())
    };
    assert_eq!(spec("").compat, None);
    let compat = spec(", \"compat\": true").compat.unwrap();
    assert_eq!((compat.watermark, compat.ratio), (0.85, 0.2));
    let file = |compat: bool| {
        let eviction = format!(r#"{{"eviction_policy": "LRU", "trigger_watermark": 0.5, "compat": {compat}}}"#);
        let text = format!(
            r#"{{"type": "fs_native", "base_path": "/nowhere", "max_capacity_gb": 1, "eviction": {eviction}}}"#
        );
        match Adapter::list(&[&text], false).unwrap()[0].tiers().unwrap().remove(0) {
            TierSpec::File(spec) => (spec.bytes, spec.compat),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(file(false), (Capacity::Bytes(1 << 29), None), "the watermark is the cap");
    assert_eq!(file(true), (Capacity::Bytes(1 << 30), Some(Compat::new().with(0.5, 0.2))));
}
