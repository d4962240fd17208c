//! JSON values from what always is one.
//!
//! The macro of the same name in `serde_json` takes whatever can be serialised and unwraps the
//! result, so a path that is not UTF-8 ends the process. This one takes only what converts without
//! an error ([`ToJson`]): the compiler refuses a path, and [`path`] writes one.

use std::path::Path;

use serde_json::{Map, Value};

/// A JSON object, or one value: `json!({ "name": value, ... })`, `json!(value)`.
macro_rules! json {
    ({ $($name:literal: $value:expr),* $(,)? }) => {{
        let mut object = serde_json::Map::new();
        $(object.insert($name.to_owned(), $crate::json::ToJson::to_json(&$value));)*
        serde_json::Value::Object(object)
    }};
    ($value:expr) => { $crate::json::ToJson::to_json(&$value) };
}
pub(crate) use json;

/// What is a JSON value, whatever it holds. A number that JSON has no form for (infinity) is null.
pub trait ToJson {
    /// The value.
    fn to_json(&self) -> Value;
}

macro_rules! by_clone {
    ($($kind:ty),*) => { $(impl ToJson for $kind {
        fn to_json(&self) -> Value {
            Value::from(self.clone())
        }
    })* };
}
by_clone!(bool, u8, u16, u32, u64, usize, i32, i64, f64, String, Value, Map<String, Value>);

impl ToJson for str {
    fn to_json(&self) -> Value {
        Value::from(self)
    }
}

impl<T: ToJson + ?Sized> ToJson for &T {
    fn to_json(&self) -> Value {
        (**self).to_json()
    }
}

impl<T: ToJson> ToJson for Option<T> {
    fn to_json(&self) -> Value {
        self.as_ref().map_or(Value::Null, T::to_json)
    }
}

impl<T: ToJson> ToJson for [T] {
    fn to_json(&self) -> Value {
        self.iter().map(T::to_json).collect()
    }
}

impl<T: ToJson> ToJson for Vec<T> {
    fn to_json(&self) -> Value {
        self[..].to_json()
    }
}

impl<T: ToJson, const N: usize> ToJson for [T; N] {
    fn to_json(&self) -> Value {
        self[..].to_json()
    }
}

/// A path as JSON text. Bytes that are not UTF-8 are replaced by U+FFFD.
pub fn path(path: &Path) -> Value {
    path.display().to_string().into()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn objects_are_built_in_order_and_any_path_is_text() {
        let inner = json!({ "c": [1, 2], "d": Some(1.5), "e": None::<u64> });
        let all = json!({ "path": path(Path::new(OsStr::from_bytes(b"a\xff"))), "a": "b", "inner": inner });
        assert_eq!(
            all.to_string(),
            "{\"path\":\"a\u{fffd}\",\"a\":\"b\",\"inner\":{\"c\":[1,2],\"d\":1.5,\"e\":null}}"
        );
    }
}
