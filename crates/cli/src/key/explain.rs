//! What a name says, as JSON and as text.

use std::ffi::OsStr;
use std::path::Path;

use kvtier::core::key::names::detect;
use serde_json::{Map, Value};

use super::{forms, key_json, stored_key};
use crate::json::json;
use crate::trace::kind_of;

/// A name, how to read it, and what to make of it.
pub struct Question {
    /// The name.
    pub name: String,
    /// The form to read it as; all that fit if there is none.
    pub from: Option<String>,
    /// The forms to convert it to.
    pub to: Vec<String>,
}

impl Question {
    /// Reads a line of a batch: a name, or an object with `name`, `from` and `to`. The error says
    /// what is wrong with it.
    pub fn parse(line: &str) -> Result<Self, String> {
        let fields = match serde_json::from_str(line).map_err(|e| format!("not JSON: {e}"))? {
            Value::String(name) => return Ok(Question { name, from: None, to: Vec::new() }),
            Value::Object(fields) => fields,
            other => return Err(format!("it is {}", kind_of(&other))),
        };
        // A misspelled `from` would silently change the answer.
        if let Some(other) =
            fields.keys().find(|name| !["name", "from", "to"].contains(&name.as_str()))
        {
            return Err(format!("there is no field `{other}`"));
        }
        let text = |field: &str, value: &Value| match value {
            Value::String(text) => Ok(text.clone()),
            other => Err(format!("`{field}` is {}, not a text", kind_of(other))),
        };
        let to = match fields.get("to") {
            None => Vec::new(),
            Some(Value::Array(forms)) => {
                forms.iter().map(|form| text("to", form)).collect::<Result<_, _>>()?
            }
            Some(other) => return Err(format!("`to` is {}, not a list of forms", kind_of(other))),
        };
        let from = fields
            .get("from")
            .filter(|from| !from.is_null())
            .map(|from| text("from", from))
            .transpose()?;
        Ok(Question {
            name: text("name", fields.get("name").ok_or("it has no `name`")?)?,
            from,
            to,
        })
    }
}

/// Answers a question: `name` and `readings`, or `name` and `error`. Errors are those of the
/// question, not of the name.
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
        // Names of several forms look alike, so all readings that fit are answered.
        None => detect(name),
    };
    let mut all: Vec<Value> = Vec::with_capacity(readings.len());
    for (form, parsed) in readings {
        all.push(json!({
            "form": forms::name(&form),
            "key": key_json::key(parsed.key()),
            "loss": parsed.loss().map(|loss| loss.to_string()),
            "names": key_json::names(parsed.key(), &to),
        }));
    }
    // Names of kvtier's own files have only a digest, so no form of LMCache's can read them.
    all.extend(own_file(name));
    if all.is_empty() {
        return Ok(
            json!({"name": name, "error": format!("not the name of a chunk in any form ({})", forms::ALL)}),
        );
    }
    Ok(json!({"name": name, "readings": all}))
}

/// Answers for a word of the command line: a name, or the path of a chunk's file, of which the file
/// is read too.
pub fn answer_argument(
    argument: &OsStr,
    from: Option<&str>,
    to: &[String],
) -> Result<Value, crate::BadInput> {
    let about = |name: &str| {
        answer(&Question { name: name.to_owned(), from: from.map(str::to_owned), to: to.to_vec() })
    };
    let text = argument.to_string_lossy();
    let forms = to.iter().map(|form| forms::parse(form)).collect::<Result<Vec<_>, _>>()?;
    // Where a form is asked for, the word is a name.
    let Some(read) = from.map_or_else(|| stored_key::read(argument, &forms), |_| None) else {
        let mut answer = about(&text)?;
        if from.is_none() && stored_key::is_path(argument) && answer.get("error").is_some() {
            answer["error"] =
                "no such file, and not the name of a chunk in any form; check the path".into();
        }
        return Ok(answer);
    };
    let mut readings = read.readings;
    // The shortest tail that is a name: folders before it would only be read as parts of a model's
    // name.
    for tail in stored_key::tails(Path::new(argument)) {
        let named = about(&tail)?["readings"].as_array().cloned().unwrap_or_default();
        if !named.is_empty() {
            readings.extend(named);
            break;
        }
    }
    let what = "not the file of a chunk: it has no footer, no facts and no GDS header, and its name is no chunk's";
    let mut all = Map::new();
    all.insert("name".to_owned(), text.into_owned().into());
    if let Some(error) = read.error.or_else(|| readings.is_empty().then(|| what.to_owned())) {
        all.insert("error".to_owned(), error.into());
    }
    if !readings.is_empty() {
        all.insert("readings".to_owned(), readings.into());
    }
    Ok(all.into())
}

/// A file of our own layout: the name holds the key's digest and the length; the key itself is in the
/// file's footer.
fn own_file(name: &str) -> Option<Value> {
    let (digest, len) = name.rsplit('/').next()?.split_once('-')?;
    let hex = |text: &str| text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    // Exactly as the tier writes it: other spellings are other files.
    if digest.len() != 64 || !hex(digest) || !hex(len) || len.starts_with('0') {
        return None;
    }
    let len = u64::from_str_radix(len, 16).ok()?;
    let key = json!({"mode": "kvtier", "digest": digest, "payload_bytes": len});
    Some(json!({"form": "kvtier-file", "key": key, "loss": Value::Null, "names": Map::new()}))
}
