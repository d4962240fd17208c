//! What the file of a chunk says of it: its footer, the facts beside it, and the header of
//! LMCache's GDS layouts.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

use kvtier::core::key::names::{NameForm, detect};
use kvtier::core::{Digest, Key, Namespace};
use kvtier::file::inspect::ChunkFile;
use kvtier::key::{Facts, GdsHeader, KeyId};
use serde_json::{Map, Value};

use super::key_json;
use crate::chunk_info::ChunkInfo;
use crate::json::json;

/// The most parts of a path that a chunk's name has: those of vLLM's files.
const NAME_PARTS_MAX: usize = 4;

/// What there is to say of the file at a path.
pub struct FileReadings {
    /// One for each thing that the file holds.
    pub readings: Vec<Value>,
    /// Why it cannot be read, or is damaged.
    pub error: Option<String>,
}

/// Reads the file that an argument names; `None` where it names none and does not look like a path.
pub fn read(argument: &OsStr, to: &[NameForm]) -> Option<FileReadings> {
    let path = Path::new(argument);
    if !is_path(argument) && !path.is_file() {
        return None;
    }
    let wrong = |what: String| Some(FileReadings { readings: Vec::new(), error: Some(what) });
    match ChunkFile::read(path) {
        // What looks like a path may still be a name.
        // A file that is damaged is reported. One that does not exist is none.
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
        Err(e) => wrong(format!("cannot read {}: {e}; check its permissions", path.display())),
        Ok(Err(damage)) => wrong(format!("{}: {}", path.display(), reason(damage))),
        Ok(Ok(file)) => Some(FileReadings { readings: readings(path, &file, to), error: None }),
    }
}

/// Whether a word of the command line looks like a path and not like a name.
pub fn is_path(argument: &OsStr) -> bool {
    let path = Path::new(argument);
    path.is_absolute() || path.starts_with(".") || path.starts_with("..")
}

fn reason(damage: kvtier::file::inspect::Damage) -> String {
    use kvtier::file::inspect::Damage::{Footer, Kind, Length};
    match damage {
        Kind => "not a regular file; name the file of a chunk".into(),
        Length => {
            "its footer is of a file of another length: it is damaged; loads of it are misses"
                .into()
        }
        Footer => {
            "its attribute user.kvtier holds no facts: it is damaged; loads of it are misses".into()
        }
        other => format!("{other:?}").to_lowercase(),
    }
}

fn readings(path: &Path, file: &ChunkFile, to: &[NameForm]) -> Vec<Value> {
    let facts = file.facts.as_ref().map(|facts| match &file.canonical {
        Some(canonical) => footer(path, facts, canonical, to),
        None => attribute(path, facts, to),
    });
    facts
        .into_iter()
        .chain(file.header.as_ref().map(|header| gds_header(header, file.file_bytes)))
        .collect()
}

fn reading(form: &str, key: Map<String, Value>, loss: Option<String>, names: Value) -> Value {
    json!({"form": form, "key": key, "loss": loss, "names": names})
}

fn footer(path: &Path, facts: &Facts, canonical: &[u8], to: &[NameForm]) -> Value {
    let id = KeyId::from_canonical(canonical).ok();
    let names = id.as_ref().map_or_else(|| Map::new().into(), |id| key_json::names(id, to));
    let named = path
        .file_name()
        .and_then(OsStr::to_str)
        .and_then(|name| Digest::from_hex(name.split_once('-')?.0));
    // Two different damages: the footer contradicts itself, or it is a right footer in the wrong
    // file.
    let loss = if Key::digest_of(&facts.namespace, canonical) != facts.key {
        Some(
            "the key in the footer is not the one whose digest it has: the file is damaged"
                .to_owned(),
        )
    } else if named.is_some_and(|named| named != facts.key) {
        Some(
            "the footer is of another chunk than the file's name: loads of it are misses"
                .to_owned(),
        )
    } else {
        None
    };
    let info = ChunkInfo::of_canonical(canonical);
    let mut key = fields(facts, &info);
    // A footer has only the digest of a salt, from which no name can be made.
    if let Some(Value::Object(id)) = id.as_ref().map(key_json::key) {
        key.extend(id);
    }
    reading("kvtier-footer", key, loss, names)
}

/// The facts of a file of a foreign layout: its name spells the key, which the facts prove.
fn attribute(path: &Path, facts: &Facts, to: &[NameForm]) -> Value {
    let ns = Arc::new(Namespace::known_by(facts.namespace));
    // The name of an object may contain slashes, and the path has folders before it. Each tail is
    // tried; the digest in the facts decides which is right.
    let keys = tails(path)
        .into_iter()
        .flat_map(|name| detect(&name))
        .map(|(_, parsed)| parsed.key().clone());
    let key = keys.map(|id| Key::new(Arc::clone(&ns), id)).find(|key| *key.digest() == facts.key);
    let info = key.as_ref().map(ChunkInfo::of_key).unwrap_or_default();
    let loss = key.is_none().then(|| "no reading of the name is the key of these facts".to_owned());
    let names = key.as_ref().map_or_else(|| Map::new().into(), |key| key_json::names(key.id(), to));
    reading("facts", fields(facts, &info), loss, names)
}

fn fields(facts: &Facts, info: &ChunkInfo) -> Map<String, Value> {
    let blocks = facts.sums.crcs().len();
    let said = json!({
        "model": info.model, "tenant": info.tenant, "digest": facts.key.to_hex(), "namespace": facts.namespace.to_hex(),
        "payload_bytes": facts.raw_len, "blocks": blocks,
        "parent": facts.parent.as_ref().map(|(digest, _)| digest.to_hex()), "depth": facts.parent.as_ref().map(|(_, depth)| *depth),
    });
    if let Value::Object(fields) = said { fields } else { Map::new() }
}

fn gds_header(header: &GdsHeader, file_bytes: u64) -> Value {
    let shape = header.shape.iter().map(u64::to_string).collect::<Vec<_>>().join("x");
    let metadata: Map<String, Value> =
        header.metadata.iter().map(|(name, text)| (name.clone(), text.as_str().into())).collect();
    let said = json!({
        "dtype": header.element.name(), "shape": shape, "memory_format": header.format.name(), "payload_bytes": header.payload_bytes(),
        "file_bytes": file_bytes, "metadata": metadata,
    });
    let loss = header.contradiction.map(|bytes| {
        format!("its offsets say {bytes} bytes, which is not what shape and type are: LMCache reads no chunk there")
    });
    let key = if let Value::Object(fields) = said { fields } else { Map::new() };
    reading("gds-header", key, loss, Map::new().into())
}

/// What of a path may be the name of a chunk: its last part, or with the directories that some
/// layouts put before it.
pub fn tails(path: &Path) -> Vec<String> {
    let parts: Vec<&str> = path.iter().filter_map(OsStr::to_str).collect();
    (1..=parts.len().min(NAME_PARTS_MAX))
        .map(|count| parts[parts.len() - count..].join("/"))
        .collect()
}
