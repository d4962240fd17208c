//! How long chunks of a namespace are, learned from those seen.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{PoisonError, RwLock};

use kvtier_core::{Error, ErrorKind, Key};
use kvtier_key::KeyId;

use crate::config::TierConfig;

/// The most kinds of chunks that are remembered.
const KINDS_MAX: usize = 4096;

/// How long a full chunk is: as the namespace declares, else the longest save of its model, rank
/// and group, where partial chunks are not allowed.
///
/// What was learned is lost at a restart. That is harmless: facts verify every load, or its length
/// must equal that of the memory. Before the first full chunk a partial one may be saved; it never
/// makes full ones look too long.
#[derive(Debug, Default)]
pub struct Geometry {
    learned: RwLock<HashMap<u64, u64>>,
    /// Bytes of a full chunk, where the configuration states them.
    configured: Option<u64>,
    /// Whether the configuration refuses partial chunks, whatever the namespace says.
    whole_only: bool,
}

impl Geometry {
    /// From the configuration.
    pub fn new(config: &TierConfig) -> Self {
        Geometry {
            learned: RwLock::default(),
            configured: config.chunk_bytes,
            whole_only: config.whole_chunks,
        }
    }

    /// Bytes of a full chunk of this key's kind; `None` where they are unknown.
    pub fn full(&self, key: &Key) -> Option<u64> {
        let learned =
            || self.learned.read().unwrap_or_else(PoisonError::into_inner).get(&kind(key)).copied();
        self.declared(key).or_else(learned)
    }

    /// Whether no chunk of this kind can have `len` bytes.
    pub fn is_too_long(&self, key: &Key, len: u64) -> bool {
        self.declared(key).is_some_and(|full| len > full)
    }

    /// What the namespace or the configuration declares. Chunks of single layers are shorter than
    /// the configured ones.
    fn declared(&self, key: &Key) -> Option<u64> {
        let is_layer = matches!(key.id(), KeyId::Layer(_));
        key.full_bytes().or(self.configured.filter(|_| !is_layer))
    }

    /// Whether chunks of this kind may be shorter than full ones.
    pub fn allows_partial(&self, key: &Key) -> bool {
        key.namespace().allow_partial() && !self.whole_only
    }

    /// A chunk of `len` bytes was saved, or found and verified.
    pub fn learn(&self, key: &Key, len: u64) {
        if self.allows_partial(key) || self.full(key).is_some_and(|full| len <= full) {
            return;
        }
        let mut all = self.learned.write().unwrap_or_else(PoisonError::into_inner);
        let kind = kind(key);
        if all.len() < KINDS_MAX || all.contains_key(&kind) {
            all.entry(kind).and_modify(|full| *full = len.max(*full)).or_insert(len);
        }
    }

    /// Why a chunk of `len` bytes cannot be one of this kind.
    pub fn refusal(&self, key: &Key, len: u64) -> Option<Error> {
        let full = self.full(key)?;
        let partial = self.allows_partial(key);
        (self.is_too_long(key, len) || (len < full && !partial)).then(|| {
            let what = format!(
                "chunks of this kind have {full} bytes, this one has {len}; fix the chunk size, or allow partial chunks \
                 (`save_unfull_chunk`)"
            );
            Error::new(ErrorKind::Invalid, what).with_op("save").with_key(*key.digest())
        })
    }
}

/// All chunks that look alike.
fn kind(key: &Key) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.namespace().digest().as_bytes().hash(&mut hasher);
    match key.id() {
        KeyId::Object(id) => (&id.model, id.rank.0, u64::from(id.group)).hash(&mut hasher),
        KeyId::Engine(id) => (&id.model, id.worker_id, "chunk").hash(&mut hasher),
        KeyId::Layer(id) => (&id.key.model, id.key.worker_id, "layer").hash(&mut hasher),
        _ => {}
    }
    hasher.finish()
}
