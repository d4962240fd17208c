//! What a name says, as JSON and as text.

use kvtier::core::key::names::{Form, detect};
use kvtier::core::key::{CacheEngineKey, EngineHash, KeyId, KvRank};
use serde_json::{Map, Value, json};

use super::forms;

/// A name, how to read it, and what to make of it.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// The name.
    pub name: String,
    /// The form to read it as; all that fit if there is none.
    pub from: Option<String>,
    /// The forms to convert it to.
    #[serde(default)]
    pub to: Vec<String>,
}

/// Answers a question: `name` and `readings`, or `name` and `error`. Errors are those of the question, not of the name.
pub fn answer(question: &Question) -> Result<Value, crate::BadInput> {
    let name = question.name.as_str();
    let to = question.to.iter().map(|form| forms::parse(form)).collect::<Result<Vec<_>, _>>()?;
    let readings = match &question.from {
        Some(form) => {
            let form = forms::parse(form)?;
            match form.parse(name) {
                Ok(parsed) => vec![(form, parsed)],
                Err(e) => return Ok(json!({"name": name, "error": e.to_string()})),
            }
        }
        None => detect(name),
    };
    let mut all: Vec<Value> = Vec::with_capacity(readings.len());
    for (form, parsed) in readings {
        all.push(json!({
            "form": forms::name(&form),
            "key": key(parsed.key()),
            "loss": parsed.loss().map(|loss| loss.to_string()),
            "names": names(parsed.key(), &to),
        }));
    }
    all.extend(own_file(name));
    if all.is_empty() {
        return Ok(json!({"name": name, "error": format!("not the name of a chunk in any form ({})", forms::ALL)}));
    }
    Ok(json!({"name": name, "readings": all}))
}

/// The key's name in each form asked for, or an error there; where none is asked for, in each form that has one for it.
fn names(key: &KeyId, to: &[Form]) -> Value {
    let wanted = if to.is_empty() { &forms::all()[..] } else { to };
    let mut names = Map::new();
    for form in wanted {
        match form.format(key) {
            Ok(name) => drop(names.insert(forms::name(form), name.into())),
            Err(e) if !to.is_empty() => drop(names.insert(forms::name(form), json!({"error": e.to_string()}))),
            Err(_) => {}
        }
    }
    names.into()
}

fn key(key: &KeyId) -> Value {
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
    let tags: Map<String, Value> = key.tags.iter().map(|(name, value)| (name.to_string(), (&**value).into())).collect();
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

/// A file of our own layout: its name tells the key's digest and the length; the key itself stands in the file's footer.
fn own_file(name: &str) -> Option<Value> {
    let (digest, len) = name.rsplit('/').next()?.split_once('-')?;
    let hex = |text: &str| text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    if digest.len() != 64 || !hex(digest) || !hex(len) || len.starts_with('0') {
        return None;
    }
    let len = u64::from_str_radix(len, 16).ok()?;
    Some(
        json!({"form": "kvtier-file", "key": {"mode": "kvtier", "digest": digest, "payload_bytes": len}, "loss": null, "names": {}}),
    )
}
