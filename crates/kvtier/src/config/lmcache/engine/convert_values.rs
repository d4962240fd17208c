//! A raw value becomes a setting's value, by the rules of its kind.

use serde_json::Value as Json;

use super::python::{self, Misfit};
use crate::config::settings::ValueKind;
use crate::config::value::Value;

/// What LMCache makes of a value that is not null.
pub(super) fn convert(kind: ValueKind, raw: &Value) -> Result<Value, Misfit> {
    match kind {
        ValueKind::Bool => Ok(Value::Bool(python::switch(raw))),
        ValueKind::Int => python::int(raw).map(Value::Int),
        ValueKind::Float => python::float(raw).map(Value::Float),
        ValueKind::Ints => list(raw, matches!(raw, Value::Int(_) | Value::Bool(_)), |v| {
            python::int(v).map(Value::Int)
        }),
        ValueKind::Floats => {
            list(raw, matches!(raw, Value::Float(_)), |v| python::float(v).map(Value::Float))
        }
        ValueKind::Texts => texts(raw),
        ValueKind::Locations => Ok(locations(raw)),
        ValueKind::Paths => paths(raw),
        ValueKind::Dict => dict(raw),
        ValueKind::Mode => mode(raw),
        // The rest are texts, or kinds that only adapters and the native form have.
        _ => Ok(Value::Text(python::text(raw))),
    }
}

/// A list of numbers, a single number, or text with commas.
fn list(
    raw: &Value,
    single: bool,
    one: impl Fn(&Value) -> Result<Value, Misfit>,
) -> Result<Value, Misfit> {
    let all: Result<Vec<Value>, Misfit> = match raw {
        Value::List(list) => list.iter().map(one).collect(),
        // LMCache puts a single number into a list, without converting it.
        same if single => return Ok(Value::List(vec![same.clone()])),
        other => {
            python::split(&python::text(other)).map(|part| one(&Value::Text(part.into()))).collect()
        }
    };
    all.map(Value::List)
}

fn texts(raw: &Value) -> Result<Value, Misfit> {
    match raw {
        Value::List(_) => Ok(raw.clone()),
        Value::Text(text) => {
            Ok(Value::List(python::split(text).map(|part| Value::Text(part.into())).collect()))
        }
        other => Err(Misfit::Type(format!("a {} is no list", other.type_name()))),
    }
}

fn locations(raw: &Value) -> Value {
    match raw {
        Value::List(_) => raw.clone(),
        other if other.is_truthy() => Value::List(vec![other.clone()]),
        _ => Value::List(Vec::new()),
    }
}

/// Paths without their scheme, joined by commas; none is null.
fn paths(raw: &Value) -> Result<Value, Misfit> {
    let parts: Vec<String> = match raw {
        Value::List(list) => list.iter().map(python::text).collect(),
        Value::Text(text) => vec![text.clone()],
        other => return Err(Misfit::Type(format!("a {} is no path", other.type_name()))),
    };
    let parts = parts.iter().flat_map(|part| python::split(part));
    let plain: Vec<&str> = parts
        // Older files of LMCache have URLs here, today's have plain paths.
        .map(|path| path.strip_prefix("file://").unwrap_or(path))
        .filter(|path| !path.is_empty())
        .collect();
    Ok(if plain.is_empty() { Value::Null } else { Value::Text(plain.join(",")) })
}

/// A mapping, or JSON text of anything, as LMCache takes it; what is empty is null.
fn dict(raw: &Value) -> Result<Value, Misfit> {
    match raw {
        Value::Map(_) => Ok(raw.clone()),
        // As Python has it: an empty text, 0 and false are no mapping, and no error.
        other if !other.is_truthy() => Ok(Value::Null),
        Value::Text(text) => match serde_json::from_str::<Json>(text) {
            Ok(json) => Ok(json.into()),
            Err(e) => Err(Misfit::Value(format!("it is no JSON: {e}"))),
        },
        other => Err(Misfit::Type(format!("a {} is no mapping", other.type_name()))),
    }
}

fn mode(raw: &Value) -> Result<Value, Misfit> {
    let word = python::text(raw).trim().to_lowercase().replace('-', "_");
    let mode = match word.as_str() {
        "prefix_strict" | "prefixstrict" => "prefix_strict",
        "skip_missing_chunks" | "skipmissingchunks" | "legacy" => "skip_missing_chunks",
        _ => return Err(Misfit::Value("there is no such mode".into())),
    };
    Ok(Value::Text(mode.into()))
}

/// Why a value that LMCache takes in silence is hardly what was meant, if so.
pub(super) fn why_suspicious(kind: ValueKind, raw: &Value) -> Option<&'static str> {
    match kind {
        ValueKind::Bool => {
            let known = matches!(
                python::text(raw).trim().to_lowercase().as_str(),
                "true" | "1" | "false" | "0"
            );
            (!known).then_some("LMCache reads every word but true and 1 as false")
        }
        ValueKind::Int => matches!(raw, Value::Float(n) if n.fract() != 0.0)
            .then_some("LMCache cuts off what is behind the point"),
        ValueKind::Dict => {
            let empty = raw.as_text().is_some_and(|text| text.trim().is_empty());
            let other = raw.as_text().and_then(|text| serde_json::from_str::<Json>(text).ok());
            (!empty && other.is_some_and(|json| !json.is_object() && !json.is_null()))
                .then_some("it is no mapping")
        }
        _ => None,
    }
}
