use std::fmt;
use std::sync::Arc;

use kvtier_key::{Digest, Key};
use kvtier_mem::View;

/// An evicted chunk.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Spilled {
    /// Its key.
    pub key: Key,
    /// All of its bytes.
    pub bytes: View,
    /// The [atomic set](crate::Ctx::atomic) it belongs to, itself included; `None` for a chunk without a
    /// set.
    pub atomic_set: Option<Arc<[Digest]>>,
}

impl Spilled {
    /// A chunk without a set.
    pub fn new(key: Key, bytes: View) -> Self {
        Spilled { key, bytes, atomic_set: None }
    }

    /// Adds the set that the chunk belongs to.
    pub fn with_atomic_set(mut self, set: Option<Arc<[Digest]>>) -> Self {
        self.atomic_set = set;
        self
    }
}

/// Receives the chunks that a tier evicts.
pub trait Spill: fmt::Debug + Send + Sync {
    /// Receives evicted chunks with their bytes. Called without locks held, on the thread that
    /// evicts: return fast, and keep no more than memory allows.
    fn take(&self, victims: Vec<Spilled>);
}
