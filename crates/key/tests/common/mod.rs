//! What the tests over golden vectors share. The folder is `KVTIER_VECTORS`, or else the copy in this repository.
#![allow(clippy::unwrap_used, clippy::print_stderr, dead_code)]

use std::path::PathBuf;

use kvtier_key::{ChunkHash, InvalidKey, KvRank, ObjectKey};
use serde_json::Value;

const FILES: [&str; 11] = [
    "chunk_hashes",
    "enums",
    "gds_metadata",
    "ipc_key_expand",
    "keys_cache_engine",
    "keys_cache_engine_parse",
    "kv_rank",
    "object_keys",
    "object_keys_fs_parse",
    "object_keys_s3_parse",
    "raw_block_layout",
];

fn folder() -> PathBuf {
    let committed = concat!(env!("CARGO_MANIFEST_DIR"), "/../testkit/vectors");
    std::env::var_os("KVTIER_VECTORS").map_or_else(|| committed.into(), PathBuf::from)
}

/// The cases of one file of vectors. A folder may lack some files, never all.
pub fn cases(file: &str) -> Vec<Value> {
    assert!(FILES.contains(&file), "{file} is not in the list of files");
    let folder = folder();
    let path = |file: &str| folder.join(format!("{file}.json"));
    let Ok(text) = std::fs::read_to_string(path(file)) else {
        assert!(FILES.iter().any(|file| path(file).exists()), "no vectors in {}", folder.display());
        eprintln!("no {file}.json in {}: nothing to check there", folder.display());
        return Vec::new();
    };
    let whole: Value = serde_json::from_str(&text).unwrap();
    let cases = whole["cases"].as_array().unwrap().clone();
    assert!(!cases.is_empty(), "{file}.json has no cases");
    cases
}

/// Checks a result of ours against `{"ok": ...}` or `{"error": ...}` of the real code.
#[track_caller]
pub fn check<T: std::fmt::Debug>(ours: Result<T, InvalidKey>, theirs: &Value, show: impl Fn(T) -> Value) {
    match (ours, theirs.get("ok")) {
        (Ok(ours), Some(theirs)) => assert_eq!(&show(ours), theirs),
        (Err(_), None) => assert!(theirs.get("error").is_some(), "neither ok nor error: {theirs}"),
        (ours, _) => panic!("we say {ours:?}, LMCache says {theirs}"),
    }
}

/// As [`check`], for names: where LMCache's name is too long for a file system or S3, we must refuse it.
#[track_caller]
pub fn check_name(ours: Result<String, InvalidKey>, theirs: &Value, bytes_max: usize) {
    match theirs.get("ok").and_then(Value::as_str) {
        Some(name) if name.len() > bytes_max => assert!(ours.is_err(), "too long, yet {ours:?}"),
        _ => check(ours, theirs, Value::String),
    }
}

/// A key from the five fields that LMCache shows it as. Fields beyond our limits (64-bit ranks, 32-bit groups) are errors.
pub fn object_key(fields: &Value) -> Result<ObjectKey, InvalidKey> {
    let model = fields["model_name"].as_str().unwrap();
    let beyond = || ObjectKey::new("@", KvRank(0), 0, ChunkHash::new(&[]), "").unwrap_err();
    let rank = KvRank(fields["kv_rank"].as_i64().ok_or_else(beyond)?);
    let group = fields["object_group_id"].as_i64().and_then(|group| u32::try_from(group).ok()).ok_or_else(beyond)?;
    let hash = ChunkHash::new(&hex(fields["chunk_hash_hex"].as_str().unwrap()));
    ObjectKey::new(model, rank, group, hash, fields["cache_salt"].as_str().unwrap())
}

/// The five fields that LMCache shows a key as.
pub fn object_fields(key: ObjectKey) -> Value {
    serde_json::json!({
        "chunk_hash_hex": to_hex(key.hash.as_bytes()), "model_name": &*key.model, "kv_rank": key.rank.0,
        "object_group_id": key.group, "cache_salt": &*key.salt,
    })
}

pub fn hex(text: &str) -> Vec<u8> {
    text.as_bytes().chunks(2).map(|two| u8::from_str_radix(str::from_utf8(two).unwrap(), 16).unwrap()).collect()
}

pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
