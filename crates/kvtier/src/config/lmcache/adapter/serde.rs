//! `serde` beside `adapter_params` of a plugin: LMCache encodes chunks in front of kvtier, which
//! stores what it gets.

use super::{Adapter, Dialect};
use crate::config::value::Value;

/// The casts of one byte for each value. LMCache takes any type of torch here, and others fail
/// with each chunk or keep no numbers.
const FP8_TYPES: [&str; 4] = ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"];

/// Why `serde` cannot be used here; nothing if it can, or is not set.
pub(super) fn refusal(adapter: &Adapter) -> Option<String> {
    let serde = adapter.fields.value("serde");
    if serde.is_null() {
        return None;
    }
    if !is_wrapped(adapter) {
        let next =
            "leave it out, or name it beside adapter_params of a plugin: LMCache applies it there";
        return Some(format!("serde = {serde}: kvtier stores chunks as they are; {next}"));
    }
    match kind(serde) {
        "fp8" => fp8(serde),
        "aesgcm" => aesgcm(serde),
        _ => Some(format!(
            "serde = {serde}: kvtier is tested with fp8 and aesgcm alone; write one of them, or leave it out"
        )),
    }
}

/// What `serde` does to chunks.
pub(super) fn note(adapter: &Adapter) -> Option<String> {
    let serde = adapter.fields.value("serde");
    let said = match kind(serde) {
        "fp8" => format!(
            "fp8 is lossy: LMCache casts each value to {} before it passes chunks to kvtier, so loaded chunks differ from what the model \
             computed; chunks of two such types have one length, so give each its own directory or prefix",
            fp8_type(serde).unwrap_or(FP8_TYPES[0])
        ),
        "aesgcm" => "aesgcm: LMCache encrypts chunks under one key per cache salt before it passes them to kvtier, so the medium shows no \
             contents and changed ones are misses; names, lengths and times stay readable, and chunks of one salt can be exchanged"
            .to_owned(),
        _ => return None,
    };
    Some(format!("serde: {said}"))
}

/// Whether chunks that are loaded differ from those that were saved.
pub(super) fn is_lossy(adapter: &Adapter) -> bool {
    kind(adapter.fields.value("serde")) == "fp8"
}

/// Whether LMCache's server makes the adapter, and encodes in front of it.
fn is_wrapped(adapter: &Adapter) -> bool {
    let is_plugin = matches!(adapter.kind, "plugin" | "native_plugin");
    is_plugin && adapter.dialect != Dialect::Native
}

fn kind(serde: &Value) -> &str {
    serde.field("type").and_then(Value::as_text).unwrap_or_default()
}

fn fp8_type(serde: &Value) -> Option<&str> {
    match serde.field("fp8_dtype") {
        None => Some(FP8_TYPES[0]),
        Some(name) => FP8_TYPES.into_iter().find(|known| name.as_text() == Some(known)),
    }
}

fn fp8(serde: &Value) -> Option<String> {
    if fp8_type(serde).is_none() {
        let types = FP8_TYPES.join(", ");
        return Some(format!("serde.fp8_dtype is none of {types}; write one of them"));
    }
    workers(serde)
}

fn aesgcm(serde: &Value) -> Option<String> {
    let text = |name| serde.field(name).map(Value::to_string).unwrap_or_default();
    if serde.field("key_provider").is_some_and(|name| name.as_text() != Some("hkdf")) {
        let next = "write \"hkdf\", the only one of LMCache's, or leave it out";
        return Some(format!("serde.key_provider = {}: {next}", text("key_provider")));
    }
    if whole(serde, "aes_bits", 128).is_none_or(|bits| bits != 128 && bits != 256) {
        return Some(format!("serde.aes_bits = {}: write 128 or 256", text("aes_bits")));
    }
    if serde.field("master_key_path").and_then(Value::as_text).is_none_or(str::is_empty) {
        return Some(
            "serde.master_key_path is missing; name the file with the master key".to_owned(),
        );
    }
    workers(serde)
}

fn workers(serde: &Value) -> Option<String> {
    let is_one = whole(serde, "max_workers", 1).is_some_and(|count| count > 0);
    (!is_one).then(|| "serde.max_workers is no number of threads; write 1 or more".to_owned())
}

/// A whole number, also as a text: LMCache takes both.
fn whole(serde: &Value, name: &str, default: i64) -> Option<i64> {
    match serde.field(name) {
        None => Some(default),
        Some(Value::Text(text)) => text.trim().parse().ok(),
        Some(value) => value.as_int(),
    }
}
