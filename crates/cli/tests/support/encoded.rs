//! Tiers that encode, over a directory or a bucket, and the chunks of a test.
#![allow(dead_code)]

use std::path::Path;

use kvtier::config::Config;
use kvtier::{Blocking, Key, Namespace, Tier};
use kvtier_testkit::s3::{Server, Setup};

pub const CHUNKS: u8 = 3;

pub fn key(n: u8) -> Key {
    Key::from_name(&Namespace::from_name("model"), format!("chunk {n}"))
}

pub fn bytes(n: u8) -> Vec<u8> {
    (0..30_001_u32).map(|at| (at / 100) as u8 ^ n).collect()
}

/// Opens one tier.
pub fn open(tier: &str) -> kvtier::config::OpenTiers {
    Config::from_json(&format!(r#"{{"tiers": [{tier}]}}"#), "kv.json").unwrap().open().unwrap()
}

pub fn bucket(server: &Server, prefix: &str, encoding: &str) -> kvtier::config::OpenTiers {
    let Setup { bucket, access_key, secret_key, region, .. } = Setup::default();
    open(&format!(
        r#"{{"type": "s3", "s3_endpoint": "{}/{bucket}", "s3_region": "{region}", "prefix": "{prefix}",
            "aws_access_key_id": "{access_key}", "aws_secret_access_key": "{secret_key}"{encoding}}}"#,
        server.url()
    ))
}

/// How a tier encrypts with one of the keys of a directory.
pub fn aes(keys: &Path, id: u32) -> String {
    let path = keys.join(id.to_string());
    format!(
        r#", "encode": ["zstd", {{"name": "aes-256-gcm", "key_file": {path:?}, "key_id": {id}}}]"#
    )
}

pub fn save(tier: &dyn Tier) {
    (0..CHUNKS).for_each(|n| assert!(tier.save_bytes(&key(n), bytes(n)).is_ok()));
}

/// How many chunks a tier has, all with the right bytes.
pub fn count(tier: &dyn Tier) -> usize {
    let loaded = (0..CHUNKS).filter_map(|n| tier.load_bytes(&key(n)).unwrap().map(|got| (n, got)));
    loaded.inspect(|(n, got)| assert!(*got == bytes(*n), "wrong bytes in chunk {n}")).count()
}

/// The config of a directory's tier.
pub fn files(path: &Path, encoding: &str) -> kvtier::config::OpenTiers {
    open(&format!(r#"{{"type": "file", "path": {path:?}, "bytes": "1GiB"{encoding}}}"#))
}
