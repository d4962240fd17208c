use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use kvtier_key::Digest;

/// The chunks that this process reads now. Their files may be deleted, but not written over.
#[derive(Debug, Default)]
pub struct Readers(Mutex<HashMap<Digest, u32>>);

/// Marks a chunk as being read, until it is dropped.
#[derive(Debug)]
pub struct ReadMark(Arc<Readers>, Digest);

impl Readers {
    /// Marks a chunk as being read.
    pub fn enter(self: &Arc<Self>, digest: Digest) -> ReadMark {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(digest).or_default() += 1;
        ReadMark(Arc::clone(self), digest)
    }

    /// Whether a load reads the chunk now.
    pub fn has(&self, digest: &Digest) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains_key(digest)
    }
}

impl Drop for ReadMark {
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
