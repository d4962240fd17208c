//! The changes to which the compiler objected in earlier runs: the next one begins without them, so
//! that what was built stays valid.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::mutants::copy_tree;

/// By file: its text, and the names of the changes.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Objections(BTreeMap<String, (String, Vec<String>)>);

fn path() -> PathBuf {
    copy_tree::base().join("objections.json")
}

impl Objections {
    /// Those of the last run. Without a run, or with a file that cannot be read, there are none.
    pub fn read() -> Objections {
        let text = fs::read_to_string(path()).unwrap_or_default();
        Objections::parse(&text).unwrap_or_default()
    }

    fn parse(text: &str) -> Option<Objections> {
        let value: Value = serde_json::from_str(text).ok()?;
        let file = |(file, value): (&String, &Value)| {
            let names = value["changes"].as_array()?.iter();
            let names = names.map(|name| Some(name.as_str()?.to_owned())).collect::<Option<_>>()?;
            Some((file.clone(), (value["text"].as_str()?.to_owned(), names)))
        };
        value.as_object()?.iter().map(file).collect::<Option<_>>().map(Objections)
    }

    /// Whether the compiler objected to a change of this text.
    pub fn has(&self, file: &str, text: &str, change: &str) -> bool {
        let of_file = self.0.get(file).filter(|(then, _)| then == text);
        of_file.is_some_and(|(_, changes)| changes.iter().any(|name| name == change))
    }

    pub fn add(&mut self, file: &str, text: &str, change: &str) {
        let of_file = self.0.entry(file.to_owned()).or_default();
        of_file.0 = text.to_owned();
        of_file.1.push(change.to_owned());
    }

    pub fn write(&self) -> Result<()> {
        let path = path();
        fs::write(&path, self.to_json()).with_context(|| path.display().to_string())
    }

    fn to_json(&self) -> String {
        let files = self.0.iter().map(|(file, (text, changes))| {
            (file.clone(), json!({ "text": text, "changes": changes }))
        });
        Value::Object(files.collect()).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_count_as_long_as_the_file_stays_the_same() {
        let mut objections = Objections::default();
        objections.add("a.rs", "a + b", "a.rs:1:2: - for +");
        objections.add("a.rs", "a + b", "a.rs:1:2: * for +");
        let read = Objections::parse(&objections.to_json()).unwrap();
        assert_eq!(read, objections);
        assert!(read.has("a.rs", "a + b", "a.rs:1:2: * for +"));
        assert!(!read.has("a.rs", "a + c", "a.rs:1:2: * for +"));
        assert!(!read.has("a.rs", "a + b", "a.rs:1:2: / for +"));
        assert!(!read.has("b.rs", "a + b", "a.rs:1:2: * for +"));
    }

    #[test]
    fn a_file_of_another_form_counts_as_none() {
        for text in ["", "[1]", r#"{"a.rs": 1}"#, r#"{"a.rs": {"text": "", "changes": [1]}}"#] {
            assert_eq!(Objections::parse(text), None, "{text}");
        }
    }
}
