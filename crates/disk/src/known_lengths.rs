use std::sync::{PoisonError, RwLock};

/// How many different chunk lengths are tried for a key that a peer may have saved.
const LENGTHS_MAX: usize = 8;

/// Lengths of chunks in this directory. A file's name contains the length, so a chunk of an unknown
/// length can be found only by trying some.
#[derive(Debug, Default)]
pub struct KnownLengths(RwLock<Lengths>);

#[derive(Debug, Default)]
struct Lengths {
    all: Vec<u64>,
    /// How many were replaced since the list was full.
    replaced: usize,
}

impl KnownLengths {
    /// The lengths to try.
    pub fn all(&self) -> Vec<u64> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).all.clone()
    }

    /// Adds a length, in place of the one that was added first where there are too many.
    pub fn learn(&self, len: u64) {
        // Almost always known, and every save and load asks: no writer's lock for that.
        if self.0.read().unwrap_or_else(PoisonError::into_inner).all.contains(&len) {
            return;
        }
        let mut lengths = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if lengths.all.len() < LENGTHS_MAX {
            lengths.all.push(len);
        } else {
            let oldest = lengths.replaced % LENGTHS_MAX;
            lengths.all[oldest] = len;
            lengths.replaced += 1;
        }
    }
}
