//! A key as JSON: its fields, and its names in other forms.

use kvtier::core::key::names::NameForm;
use kvtier::core::key::{CacheEngineKey, EngineHash, KeyId, KvRank};
use serde_json::{Map, Value};

use super::forms;
use crate::json::json;

/// The key's name in each form asked for, or an error there; where none is asked for, in each form
/// that has one for it.
pub fn names(key: &KeyId, to: &[NameForm]) -> Value {
    let wanted = if to.is_empty() { &forms::all()[..] } else { to };
    let mut names = Map::new();
    for form in wanted {
        match form.format(key) {
            Ok(name) => drop(names.insert(forms::name(form), name.into())),
            // A form that was asked for gets its error; others are left out.
            Err(e) if !to.is_empty() => {
                drop(names.insert(forms::name(form), json!({"error": e.to_string()})))
            }
            Err(_) => {}
        }
    }
    names.into()
}

/// The fields of a key.
pub fn key(key: &KeyId) -> Value {
    match key {
        KeyId::Object(key) => json!({
            "mode": "multi-process",
            "model": &*key.model,
            "kv_rank": rank(key.rank),
            "object_group": key.group,
            "chunk_hash": format!("{:?}", key.hash),
            "cache_salt": &*key.salt,
        }),
        KeyId::Engine(key) => engine(key, None),
        KeyId::Layer(layer) => engine(&layer.key, Some(layer.layer)),
        other => json!({"mode": format!("{other:?}")}),
    }
}

fn rank(rank: KvRank) -> Value {
    let byte = |shift: u32| (rank.0 >> shift) & 0xff;
    json!({
        "packed": rank.0, "world_size": byte(24), "rank": byte(16), "local_world_size": byte(8), "local_rank": byte(0),
    })
}

fn engine(key: &CacheEngineKey, layer: Option<i64>) -> Value {
    let hash = match &key.hash {
        EngineHash::Int(number) => json!({"int": number.to_string()}),
        EngineHash::Bytes(bytes) => json!({"bytes": format!("{bytes:?}")}),
    };
    let tags: Map<String, Value> =
        key.tags.iter().map(|(name, value)| (name.to_string(), (&**value).into())).collect();
    json!({
        "mode": "in-process",
        "model": &*key.model,
        "world_size": key.world_size,
        "worker_id": key.worker_id,
        "chunk_hash": hash,
        "dtype": key.dtype.name(),
        "layer": layer,
        "tags": tags,
    })
}
