//! What `kvtier stat` says of encodings: chunks and bytes by codec and by key.

use std::collections::BTreeMap;

use kvtier::byte_size::format;
use kvtier::file::inspect::{ChunkTotals, Summary};
use serde_json::{Map, Value};

use crate::chunk_info::dash;
use crate::json::json;
use crate::stored_form::{PLAIN, StoredForm};

/// Chunks and their bytes. A sum is not known where one of its parts is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Totals {
    chunks: u64,
    raw_bytes: Option<u64>,
    stored_bytes: Option<u64>,
}

impl Default for Totals {
    fn default() -> Self {
        Totals { chunks: 0, raw_bytes: Some(0), stored_bytes: Some(0) }
    }
}

impl Totals {
    fn add(&mut self, other: Totals) {
        let sum = |a: Option<u64>, b: Option<u64>| Some(a? + b?);
        self.chunks += other.chunks;
        self.raw_bytes = sum(self.raw_bytes, other.raw_bytes);
        self.stored_bytes = sum(self.stored_bytes, other.stored_bytes);
    }
}

impl From<ChunkTotals> for Totals {
    fn from(all: ChunkTotals) -> Self {
        let (raw_bytes, stored_bytes) = (Some(all.raw_bytes), Some(all.stored_bytes));
        Totals { chunks: all.chunks, raw_bytes, stored_bytes }
    }
}

/// Chunks and bytes by codec and by key; `None` is a codec or key that is not known.
#[derive(Debug, Default)]
pub struct EncodingTotals {
    all: Totals,
    codecs: BTreeMap<Option<String>, Totals>,
    /// Without the chunks that are not encrypted.
    key_ids: BTreeMap<Option<u32>, Totals>,
}

impl EncodingTotals {
    /// Of a directory.
    pub fn of_directory(sum: &Summary) -> Self {
        let mut totals = EncodingTotals::default();
        totals.add_codec(Some(PLAIN.to_owned()), sum.plain().into());
        for (codec, all) in &sum.codecs {
            totals.add_codec(Some(codec.clone()), (*all).into());
        }
        for (id, all) in &sum.key_ids {
            totals.key_ids.insert(Some(*id), (*all).into());
        }
        // Their names have the raw lengths.
        let unreadable = Totals {
            chunks: sum.unreadable,
            raw_bytes: Some(sum.unreadable_raw_bytes),
            stored_bytes: None,
        };
        totals.add_codec(None, unreadable);
        totals.add_key(None, unreadable);
        totals
    }

    /// Counts a chunk.
    pub fn add(&mut self, form: &StoredForm) {
        let StoredForm { raw_bytes, stored_bytes, .. } = *form;
        let one = Totals { chunks: 1, raw_bytes, stored_bytes };
        self.add_codec(form.codec.clone(), one);
        if form.key_id != Some(0) {
            self.add_key(form.key_id, one);
        }
    }

    fn add_codec(&mut self, codec: Option<String>, some: Totals) {
        if some.chunks > 0 {
            self.all.add(some);
            self.codecs.entry(codec).or_default().add(some);
        }
    }

    fn add_key(&mut self, id: Option<u32>, some: Totals) {
        if some.chunks > 0 {
            self.key_ids.entry(id).or_default().add(some);
        }
    }

    /// Adds the fields of `stat --json`. `asked`: whether each chunk was; without that, codecs and
    /// keys are either known of all chunks or of none.
    pub fn add_to(&self, object: &mut Map<String, Value>, asked: bool) {
        let row = |name: &str, value: Value, some: &Totals| {
            let Totals { chunks, raw_bytes, stored_bytes } = some;
            let mut row = Map::new();
            row.insert(name.to_owned(), value);
            let rest =
                json!({ "chunks": chunks, "raw_bytes": raw_bytes, "stored_bytes": stored_bytes });
            row.extend(rest.as_object().cloned().unwrap_or_default());
            Value::Object(row)
        };
        let is_known = asked || !self.codecs.contains_key(&None);
        let codecs = self.codecs.iter().map(|(codec, some)| row("codec", json!(codec), some));
        let key_ids = self.key_ids.iter().map(|(id, some)| row("key_id", json!(id), some));
        let fields = [
            ("raw_bytes", json!(self.all.raw_bytes)),
            ("stored_bytes", json!(self.all.stored_bytes)),
            ("codecs", if is_known { codecs.collect() } else { Value::Null }),
            ("key_ids", if is_known { key_ids.collect() } else { Value::Null }),
        ];
        object.extend(fields.map(|(name, value)| (name.to_owned(), value)));
    }

    /// Lines of `stat`; none where all chunks are stored as they are. `asked` as of
    /// [`add_to`](Self::add_to).
    pub fn lines(&self, asked: bool) -> Vec<String> {
        let plain = Some(PLAIN.to_owned());
        let Totals { raw_bytes, stored_bytes, .. } = self.all;
        let size = |bytes: Option<u64>| bytes.map_or_else(|| "an unknown size".to_owned(), format);
        if self.codecs.keys().all(|codec| *codec == plain) {
            return Vec::new();
        }
        if !asked && self.codecs.contains_key(&None) {
            // Nothing shows an encoding.
            if raw_bytes == stored_bytes {
                return Vec::new();
            }
            let (raw, stored) = (size(raw_bytes), size(stored_bytes));
            return vec![format!(
                "encodings    {raw} stored as {stored}; --encodings asks for codecs and keys"
            )];
        }
        let row = |label: &str, name: String, some: &Totals| {
            let Totals { chunks, raw_bytes, stored_bytes } = *some;
            let (raw, stored) = (size(raw_bytes), size(stored_bytes));
            format!("{label:<12} {name}: {chunks} chunks, {raw} stored as {stored}")
        };
        let name = |name: Option<String>| name.unwrap_or_else(dash);
        let codecs =
            self.codecs.iter().map(|(codec, some)| row("codec", name(codec.clone()), some));
        let keys = self
            .key_ids
            .iter()
            .map(|(id, some)| row("key", name(id.map(|id| id.to_string())), some));
        codecs.chain(keys).collect()
    }
}
