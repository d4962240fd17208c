use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{PoisonError, RwLock};

use kvtier_core::{Error, ErrorKind, Key};
use kvtier_key::KeyId;

/// The most kinds of chunks that are remembered.
const KINDS_MAX: usize = 4096;

/// How long a full chunk is: as the namespace says, else as the first save of its model, rank and group says, where partial chunks are
/// not allowed.
#[derive(Debug, Default)]
pub struct Geometry(RwLock<HashMap<u64, u64>>);

impl Geometry {
    /// Bytes of a full chunk of this key's kind; `None` where nobody said.
    pub fn full(&self, key: &Key) -> Option<u64> {
        let declared = if let KeyId::Object(id) = key.id() { key.namespace().chunk_bytes(id.group) } else { None };
        declared.or_else(|| self.0.read().unwrap_or_else(PoisonError::into_inner).get(&kind(key)).copied())
    }

    /// A chunk of `len` bytes was saved.
    pub fn learn(&self, key: &Key, len: u64) {
        if key.namespace().allow_partial() || self.full(key).is_some() {
            return;
        }
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if all.len() < KINDS_MAX {
            all.entry(kind(key)).or_insert(len);
        }
    }

    /// Why a chunk of `len` bytes cannot be one of this kind.
    pub fn refusal(&self, key: &Key, len: u64) -> Option<Error> {
        let full = self.full(key)?;
        let partial = key.namespace().allow_partial();
        (len > full || (len < full && !partial)).then(|| {
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
