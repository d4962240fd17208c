//! YAML as Python's `yaml.safe_load` reads it, which is YAML 1.1: `yes` is true, `010` is eight,
//! `1e3` is a text.

use std::collections::HashMap;

use saphyr_parser::{Event, Parser, ScalarStyle, Tag};

use super::value::Value;

mod plain_scalar;

/// The most values of a document, those behind aliases counted as often as they are used.
const VALUES_MAX: usize = 100_000;
/// The deepest nesting.
const DEPTH_MAX: usize = 64;

/// A document, and the keys that a mapping of it has twice (the last one holds).
#[derive(Debug)]
pub(crate) struct Document {
    pub value: Value,
    pub repeated: Vec<String>,
}

/// Reads one document; an empty text is `Null`. The error says where and what.
pub(crate) fn parse(text: &str) -> Result<Document, String> {
    let mut builder = Builder::default();
    let mut documents = 0;
    for event in Parser::new_from_str(text) {
        // The parser makes events from the text alone. Values, anchors and merges are made here, so
        // that they follow Python's reader and stay within bounds.
        let (event, span) = event.map_err(|e| e.to_string())?;
        if matches!(event, Event::DocumentStart(_)) {
            documents += 1;
        }
        let taken =
            // PyYAML's `safe_load` refuses a second document too.
            if documents > 1 { Err("a second document".to_owned()) } else { builder.take(event) };
        taken.map_err(|what| {
            format!("line {} column {}: {what}", span.start.line(), span.start.col() + 1)
        })?;
    }
    Ok(Document { value: builder.root.unwrap_or(Value::Null), repeated: builder.repeated })
}

/// A collection that is not finished, and its anchor.
struct OpenNode {
    anchor: usize,
    what: Unfinished,
}

enum Unfinished {
    List(Vec<Value>),
    Map { pairs: Vec<(String, Value)>, merged: Vec<Value>, key: Option<String> },
}

#[derive(Default)]
struct Builder {
    stack: Vec<OpenNode>,
    anchors: HashMap<usize, (Value, usize)>,
    values: usize,
    repeated: Vec<String>,
    root: Option<Value>,
}

impl Builder {
    fn take(&mut self, event: Event<'_>) -> Result<(), String> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let value = scalar(&text, style, tag.as_deref())?;
                self.done(value, anchor)
            }
            Event::Alias(anchor) => {
                let (value, size) =
                    // An anchor is known once its value is complete. An alias inside its own value
                    // would be a cycle.
                    self.anchors.get(&anchor).cloned().ok_or("an alias of what is not finished")?;
                // An alias counts with all that it stands for. Nine lines of aliases of aliases
                // would otherwise expand to gigabytes.
                self.values += size;
                self.done(value, 0)
            }
            Event::SequenceStart(anchor, _) => self.open(anchor, Unfinished::List(Vec::new())),
            Event::MappingStart(anchor, _) => self
                .open(anchor, Unfinished::Map { pairs: Vec::new(), merged: Vec::new(), key: None }),
            Event::SequenceEnd | Event::MappingEnd => {
                let Some(open) = self.stack.pop() else {
                    return Err("an end without a start".into());
                };
                let value = match open.what {
                    Unfinished::List(list) => Value::List(list),
                    Unfinished::Map { pairs, merged, .. } => self.map(pairs, merged)?,
                };
                self.done(value, open.anchor)
            }
            _ => Ok(()),
        }
    }

    fn open(&mut self, anchor: usize, what: Unfinished) -> Result<(), String> {
        // Values are read and dropped recursively elsewhere. Without a bound a deep file would
        // overflow the stack.
        if self.stack.len() >= DEPTH_MAX {
            return Err(format!("nested deeper than {DEPTH_MAX}"));
        }
        self.stack.push(OpenNode { anchor, what });
        Ok(())
    }

    /// A value is complete: it goes to where it stands.
    fn done(&mut self, value: Value, anchor: usize) -> Result<(), String> {
        self.values += 1;
        if self.values > VALUES_MAX {
            return Err(format!("more than {VALUES_MAX} values"));
        }
        if anchor > 0 {
            let size = size(&value);
            self.anchors.insert(anchor, (value.clone(), size));
        }
        match self.stack.last_mut().map(|open| &mut open.what) {
            None => self.root = Some(value),
            Some(Unfinished::List(list)) => list.push(value),
            // Events of a mapping alternate: a key, then its value.
            Some(Unfinished::Map { key: key @ None, .. }) => *key = Some(name(value)?),
            Some(Unfinished::Map { pairs, merged, key }) => match key.take() {
                Some(key) if key == "<<" => merged.push(value),
                Some(key) => pairs.push((key, value)),
                None => {}
            },
        }
        Ok(())
    }

    /// What is written in a mapping comes before what is merged into it.
    fn map(&mut self, pairs: Vec<(String, Value)>, merged: Vec<Value>) -> Result<Value, String> {
        let mut all: Vec<(String, Value)> = Vec::with_capacity(pairs.len());
        for (key, value) in pairs {
            if let Some(at) = all.iter().position(|(known, _)| *known == key) {
                // The last one counts, as in Python. The caller decides whether that is an error.
                self.repeated.push(key);
                all[at].1 = value;
            } else {
                all.push((key, value));
            }
        }
        for value in merged
            .into_iter()
            .flat_map(|value| if let Value::List(list) = value { list } else { vec![value] })
        {
            let Value::Map(pairs) = value else { return Err("`<<` needs a mapping".into()) };
            for (key, value) in pairs {
                // Keys of the mapping itself outrank merged ones, and earlier merges outrank later
                // ones.
                if !all.iter().any(|(known, _)| *known == key) {
                    all.push((key, value));
                }
            }
        }
        Ok(Value::Map(all))
    }
}

/// How many values there are in a value, itself included.
fn size(value: &Value) -> usize {
    match value {
        Value::List(list) => 1 + list.iter().map(size).sum::<usize>(),
        Value::Map(map) => 1 + map.iter().map(|(_, value)| 1 + size(value)).sum::<usize>(),
        _ => 1,
    }
}

/// A mapping's key. All settings have texts for names; a number that stands there is that number's
/// text.
fn name(key: Value) -> Result<String, String> {
    match key {
        Value::Text(text) => Ok(text),
        Value::List(_) | Value::Map(_) => Err("a list or mapping as a key".into()),
        plain => Ok(plain.to_string()),
    }
}

fn scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Result<Value, String> {
    let Some(tag) = tag else {
        let plain = style == ScalarStyle::Plain;
        return Ok(if plain { plain_scalar::resolve(text) } else { Value::Text(text.to_owned()) });
    };
    let wrong = || format!("{text:?} is no {tag}");
    match (tag.is_yaml_core_schema(), tag.suffix.as_str()) {
        (true, "str") => Ok(Value::Text(text.to_owned())),
        // The tag `!` alone: a text, whatever it looks like.
        (_, "") => Ok(Value::Text(text.to_owned())),
        (true, "null") => Ok(Value::Null),
        (true, "bool") => {
            Some(plain_scalar::resolve(text)).filter(|v| v.as_bool().is_some()).ok_or_else(wrong)
        }
        (true, "int") => {
            Some(plain_scalar::resolve(text)).filter(|v| v.as_int().is_some()).ok_or_else(wrong)
        }
        (true, "float") => plain_scalar::resolve(text).as_f64().map(Value::Float).ok_or_else(wrong),
        _ => Err(format!("the tag {tag} is not known here")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> serde_json::Value {
        parse(text).unwrap().value.to_json()
    }

    #[test]
    fn values_are_those_of_yaml_1_1() {
        assert_eq!(read(""), json!(null));
        assert_eq!(
            read("a: yes\nb: 'yes'\nc: Off\nd: ~\ne:\n"),
            json!({"a": true, "b": "yes", "c": false, "d": null, "e": null})
        );
        assert_eq!(
            read("[010, 0x1F, 0b11, 1_000, 1:30, -7, 08]"),
            json!([8, 31, 3, 1000, 90, -7, "08"])
        );
        assert_eq!(
            read("[1.5, .5, 1e-1, 1.0e+2, 1.0e2, .inf]"),
            json!([1.5, 0.5, "1e-1", 100.0, "1.0e2", "inf"])
        );
        assert_eq!(
            read("a: &x {b: 1, c: 2}\nd:\n  <<: *x\n  c: 3\n"),
            json!({"a": {"b": 1, "c": 2}, "d": {"c": 3, "b": 1}})
        );
        assert_eq!(read("!!str 12"), json!("12"));
        assert_eq!(
            read("s3_num_io_threads: 64 # comment\nurl: \"s3://b\\u0041\"\n"),
            json!({"s3_num_io_threads": 64, "url": "s3://bA"})
        );
    }

    #[test]
    fn what_is_said_twice_is_noticed_and_the_last_holds() {
        let document = parse("a: 1\na: 2\n").unwrap();
        assert_eq!(
            (document.value.to_json(), document.repeated),
            (json!({"a": 2}), vec!["a".to_owned()])
        );
    }

    #[test]
    fn bombs_are_refused_and_faults_have_a_place() {
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for n in 1..9 {
            let last = format!("*a{}", n - 1);
            bomb += &format!("a{n}: &a{n} [{}]\n", vec![last; 10].join(", "));
        }
        assert!(parse(&bomb).unwrap_err().contains("100000"));
        assert!(parse(&"[".repeat(100)).unwrap_err().contains("deeper"));
        assert!(parse("a: [1\nb: 2").unwrap_err().contains("line"));
        assert!(parse("a: 1\n---\nb: 1\n").unwrap_err().contains("second document"));
    }
}
