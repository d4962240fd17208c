//! What the tests over golden vectors share.
#![allow(clippy::unwrap_used, dead_code, unused_imports)]

use kvtier_key::{ChunkHash, InvalidKey, KvRank, ObjectKey};
use serde_json::Value;

#[path = "../../../testkit/tests/vectors/load.rs"]
mod load;

pub use load::is_committed;

/// The cases of one file of vectors.
pub fn cases(file: &str) -> Vec<Value> {
    load::cases(&format!("{file}.json"))
}

/// Checks a result of ours against `{"ok": ...}` or `{"error": ...}` of the real code.
#[track_caller]
pub fn check<T: std::fmt::Debug>(
    ours: Result<T, InvalidKey>,
    theirs: &Value,
    show: impl Fn(T) -> Value,
) {
    match (ours, theirs.get("ok")) {
        (Ok(ours), Some(theirs)) => assert_eq!(&show(ours), theirs),
        (Err(_), None) => assert!(theirs.get("error").is_some(), "neither ok nor error: {theirs}"),
        (ours, _) => panic!("we say {ours:?}, LMCache says {theirs}"),
    }
}

/// As [`check`], for names: where LMCache's name is too long for a file system or S3, we must
/// refuse it.
#[track_caller]
pub fn check_name(ours: Result<String, InvalidKey>, theirs: &Value, bytes_max: usize) {
    match theirs.get("ok").and_then(Value::as_str) {
        Some(name) if name.len() > bytes_max => assert!(ours.is_err(), "too long, yet {ours:?}"),
        _ => check(ours, theirs, Value::String),
    }
}

/// A key from the five fields that LMCache shows it as. Fields beyond our limits (64-bit ranks,
/// 32-bit groups) are errors.
pub fn object_key(fields: &Value) -> Result<ObjectKey, InvalidKey> {
    let model = fields["model_name"].as_str().unwrap();
    let beyond = || ObjectKey::new("@", KvRank(0), 0, ChunkHash::new(&[]), "").unwrap_err();
    let rank = KvRank(fields["kv_rank"].as_i64().ok_or_else(beyond)?);
    let group = fields["object_group_id"]
        .as_i64()
        .and_then(|group| u32::try_from(group).ok())
        .ok_or_else(beyond)?;
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
    text.as_bytes()
        .chunks(2)
        .map(|two| u8::from_str_radix(str::from_utf8(two).unwrap(), 16).unwrap())
        .collect()
}

pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
