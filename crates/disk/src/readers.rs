use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use kvtier_key::Digest;

/// Which chunks are being read by this process: their files are deleted when their time comes, but
/// not written over.
#[derive(Debug, Default)]
pub struct Readers(Mutex<HashMap<Digest, u32>>);

/// Somebody reads a chunk, until this is dropped.
#[derive(Debug)]
pub struct Reading(Arc<Readers>, Digest);

impl Readers {
    /// Begins to read.
    pub fn enter(self: &Arc<Self>, digest: Digest) -> Reading {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(digest).or_default() += 1;
        Reading(Arc::clone(self), digest)
    }

    /// Whether anybody reads it.
    pub fn has(&self, digest: &Digest) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains_key(digest)
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        let mut all = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = all.get_mut(&self.1) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.1);
            }
        }
    }
}
