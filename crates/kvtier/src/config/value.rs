use std::fmt;

use serde_json::Value as Json;

use super::secrets::{is_secret, mask_url};

/// A setting's value as YAML, JSON and the environment can give it, in Python's types: LMCache's
/// rules are written in them.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// None: not set.
    Null,
    /// True or False.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number, which may be infinite.
    Float(f64),
    /// A text.
    Text(String),
    /// A list.
    List(Vec<Value>),
    /// A mapping, in the order in which it was written.
    Map(Vec<(String, Value)>),
}

impl Value {
    /// Whether nothing is set.
    pub fn is_null(&self) -> bool {
        matches!(self, Value::Null)
    }

    /// The text, if it is one.
    pub fn as_text(&self) -> Option<&str> {
        if let Value::Text(text) = self { Some(text) } else { None }
    }

    /// The switch, if it is one.
    pub fn as_bool(&self) -> Option<bool> {
        if let Value::Bool(on) = self { Some(*on) } else { None }
    }

    /// The number, if it is one.
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Value::Int(n) => Some(*n as f64),
            Value::Float(n) => Some(*n),
            _ => None,
        }
    }

    /// The whole number, if it is one.
    pub fn as_int(&self) -> Option<i64> {
        if let Value::Int(n) = self { Some(*n) } else { None }
    }

    /// The list, if it is one.
    pub fn as_list(&self) -> Option<&[Value]> {
        if let Value::List(list) = self { Some(list) } else { None }
    }

    /// The mapping, if it is one.
    pub fn as_map(&self) -> Option<&[(String, Value)]> {
        if let Value::Map(map) = self { Some(map) } else { None }
    }

    /// What a mapping holds under a name; the last, where it is there twice.
    pub fn field(&self, name: &str) -> Option<&Value> {
        // The last of two equal keys counts, as in Python's readers of JSON and YAML, which LMCache
        // uses.
        self.as_map()?.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value)
    }

    /// What Python's `bool()` makes of it.
    pub fn is_truthy(&self) -> bool {
        match self {
            Value::Null => false,
            Value::Bool(on) => *on,
            Value::Int(n) => *n != 0,
            Value::Float(n) => *n != 0.0,
            Value::Text(text) => !text.is_empty(),
            Value::List(list) => !list.is_empty(),
            Value::Map(map) => !map.is_empty(),
        }
    }

    /// The name of its type in Python.
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Value::Null => "None",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int",
            Value::Float(_) => "float",
            Value::Text(_) => "str",
            Value::List(_) => "list",
            Value::Map(_) => "dict",
        }
    }

    /// The same as JSON. Numbers that JSON does not have become texts.
    pub fn to_json(&self) -> Json {
        match self {
            Value::Null => Json::Null,
            Value::Bool(on) => Json::Bool(*on),
            Value::Int(n) => Json::from(*n),
            Value::Float(n) if n.is_finite() => Json::from(*n),
            // JSON has no infinity and no NaN.
            Value::Float(n) => Json::from(n.to_string()),
            Value::Text(text) => Json::from(text.as_str()),
            Value::List(list) => Json::Array(list.iter().map(Value::to_json).collect()),
            Value::Map(map) => Json::Object(
                map.iter().map(|(key, value)| (key.clone(), value.to_json())).collect(),
            ),
        }
    }

    /// The same with `***` for whatever is secret by its name, and for passwords in URLs. What is
    /// printed goes through here.
    pub fn masked(&self) -> Value {
        match self {
            Value::Text(text) => Value::Text(mask_url(text)),
            Value::List(list) => Value::List(list.iter().map(Value::masked).collect()),
            Value::Map(map) => Value::Map(
                map.iter()
                    .map(|(key, value)| {
                        // An absent secret is shown as absent: that is often the answer an operator
                        // looks for.
                        let hide = is_secret(key) && !value.is_null();
                        (key.clone(), if hide { Value::Text("***".into()) } else { value.masked() })
                    })
                    .collect(),
            ),
            plain => plain.clone(),
        }
    }
}

impl From<Json> for Value {
    fn from(json: Json) -> Self {
        match json {
            Json::Null => Value::Null,
            Json::Bool(on) => Value::Bool(on),
            Json::Number(n) => match n.as_i64() {
                Some(whole) => Value::Int(whole),
                None => Value::Float(n.as_f64().unwrap_or(f64::INFINITY)),
            },
            Json::String(text) => Value::Text(text),
            Json::Array(list) => Value::List(list.into_iter().map(Value::from).collect()),
            Json::Object(map) => {
                Value::Map(map.into_iter().map(|(key, value)| (key, value.into())).collect())
            }
        }
    }
}

/// As JSON on one line, secrets masked.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.masked() {
            Value::Float(n) => write!(f, "{n}"),
            other => write!(f, "{}", other.to_json()),
        }
    }
}

/// As [`Display`](fmt::Display): no secret in logs.
impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_never_printed() {
        let value = serde_json::json!({
            "aws_secret_access_key": "TOP", "n": 1, "url": "redis://me:TOP@host:1/x", "list": [{"auth_token": "TOP"}], "s3_region": "r",
            "password": null,
        });
        for text in [format!("{}", Value::from(value.clone())), format!("{:?}", Value::from(value))]
        {
            assert!(!text.contains("TOP"), "{text}");
            assert!(
                text.contains("***")
                    && text.contains("redis://***@host:1/x")
                    && text.contains("\"password\":null")
            );
        }
    }
}
