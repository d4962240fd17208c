//! The fields of one object, checked against the table.

use crate::config::common_values::size;
use crate::config::secrets::is_secret;
use crate::config::settings::{Setting, ValueKind};
use crate::config::suggest;
use crate::config::value::Value;

/// A field, checked.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Field {
    /// Which.
    pub definition: &'static Setting,
    /// Its value.
    pub value: Value,
    /// Whether it was written; otherwise it is the default.
    pub given: bool,
}

/// All fields of an object, and its unknown names.
#[derive(Clone, Debug, Default)]
pub(crate) struct AdapterFields {
    pub all: Vec<Field>,
    pub unknown: Vec<String>,
}

impl AdapterFields {
    /// Reads an object's fields by the table. What is required and missing is an error here, unless
    /// it is in `optional`.
    pub fn read(
        keys: impl Iterator<Item = &'static Setting>,
        object: &[(String, Value)],
        optional: &[&str],
    ) -> Result<Self, String> {
        let mut all = Vec::new();
        for key in keys {
            let raw =
                object.iter().rev().find(|(name, _)| name == key.name).map(|(_, value)| value);
            let value = match raw {
                // A null that is written counts as an absent setting only where the default is
                // null. Elsewhere LMCache fails on it, and so does `check`.
                Some(raw) if !(raw.is_null() && key.default == "null") => check(key, raw)?,
                _ => default(key, optional.contains(&key.name))?,
            };
            all.push(Field {
                definition: key,
                value,
                // Whether it was written decides later whether a default of ours may replace
                // LMCache's.
                given: raw.is_some_and(|raw| !raw.is_null()),
            });
        }
        let known = |name: &str| all.iter().any(|field: &Field| field.definition.name == name);
        let unknown =
            object.iter().map(|(name, _)| name.clone()).filter(|name| !known(name)).collect();
        Ok(AdapterFields { all, unknown })
    }

    pub fn value(&self, name: &str) -> &Value {
        self.all
            .iter()
            .find(|field| field.definition.name == name)
            .map_or(&Value::Null, |field| &field.value)
    }

    /// The value, where it was written.
    #[cfg(feature = "s3")]
    pub fn given(&self, name: &str) -> Option<&Value> {
        self.all
            .iter()
            .find(|field| field.definition.name == name && field.given)
            .map(|field| &field.value)
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        self.value(name).as_text().filter(|text| !text.is_empty())
    }

    pub fn is_on(&self, name: &str) -> bool {
        self.value(name).as_bool() == Some(true)
    }

    pub fn int(&self, name: &str) -> i64 {
        self.value(name).as_int().unwrap_or(0)
    }

    pub fn number(&self, name: &str) -> f64 {
        self.value(name).as_f64().unwrap_or(0.0)
    }

    /// A message about an unknown name.
    pub fn hint(&self, name: &str) -> String {
        suggest::hint(name, self.all.iter().map(|field| field.definition.name))
    }
}

fn default(key: &Setting, optional: bool) -> Result<Value, String> {
    let text = || Value::Text(key.default.into());
    match key.default {
        "null" => Ok(Value::Null),
        "" if optional => Ok(Value::Null),
        // An empty default means that the setting is required, but for texts, where it is the empty
        // text.
        "" if key.kind != ValueKind::Text => {
            Err(format!("{} is missing; write {}", key.name, key.kind.takes()))
        }
        // Texts are not read as JSON: `none` and `0` are texts here.
        _ if matches!(key.kind, ValueKind::Text | ValueKind::Word | ValueKind::Name) => Ok(text()),
        json => {
            Ok(serde_json::from_str::<serde_json::Value>(json).map_or_else(|_| text(), Value::from))
        }
    }
}

/// A value of the key's kind, or what is wrong with it.
fn check(key: &Setting, raw: &Value) -> Result<Value, String> {
    let value = match (key.kind, raw) {
        (ValueKind::Name, Value::Text(text)) => (!text.trim().is_empty()).then(|| raw.clone()),
        (ValueKind::Text | ValueKind::Word, Value::Text(_))
        // `Switch` takes a bool alone. `Bool` takes any value, by Python's rules of truth.
        | (ValueKind::Switch, Value::Bool(_))
        | (ValueKind::Object, Value::Map(_))
        | (ValueKind::Encodings | ValueKind::Keys, Value::List(_)) => Some(raw.clone()),
        // LMCache lets this one through.
        (ValueKind::Positive, Value::Bool(true)) if key.name == "num_workers" => {
            Some(Value::Int(1))
        }
        (ValueKind::Positive, Value::Int(n)) => (*n > 0).then(|| raw.clone()),
        (ValueKind::Count, Value::Int(n)) => (*n >= 0).then(|| raw.clone()),
        (ValueKind::Size, _) => size(raw)
            .filter(|bytes| *bytes > 0)
            .and_then(|bytes| i64::try_from(bytes).ok())
            .map(Value::Int),
        (ValueKind::Number | ValueKind::Float, Value::Int(n)) => Some(Value::Float(*n as f64)),
        (ValueKind::Number | ValueKind::Float, Value::Float(_)) => Some(raw.clone()),
        (ValueKind::Float, Value::Text(text)) => text.trim().parse().ok().map(Value::Float),
        (ValueKind::Amount, _) if !matches!(raw, Value::Bool(_)) => {
            raw.as_f64().filter(|n| *n >= 0.0).map(Value::Float)
        }
        (ValueKind::Bool, _) => Some(Value::Bool(raw.is_truthy())),
        (ValueKind::Int, Value::Int(_)) => Some(raw.clone()),
        _ => None,
    };
    value.ok_or_else(|| {
        // An error goes to logs, where no secret may stand.
        let shown = if is_secret(key.name) {
            "its value".into()
        } else {
            format!("{raw} (a {})", raw.type_name())
        };
        format!("{} takes {}, not {shown}", key.name, key.kind.takes())
    })
}
