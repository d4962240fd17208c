//! Chunks that could not be loaded or saved. They are misses until they are stored again, or until
//! it is time to try again.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use kvtier::core::Digest;

/// The most chunks that are remembered.
const FAILED_MAX: usize = 65_536;

/// Chunks that failed, with the number of their last failure.
#[derive(Debug, Default)]
pub struct FailedChunks {
    all: HashMap<Digest, Failure>,
    /// The oldest first. A chunk that was stored since, or failed again, is there with an old
    /// number, which means nothing.
    order: VecDeque<(u64, Digest)>,
    failures: u64,
}

#[derive(Clone, Copy, Debug)]
struct Failure {
    number: u64,
    /// When the chunk may be tried again; `None`: only after it was stored.
    until: Option<Instant>,
}

impl FailedChunks {
    /// Whether the chunk failed and may not be tried yet.
    pub fn contains(&self, digest: &Digest) -> bool {
        // Mostly there are none, and no lookup reads the clock.
        !self.all.is_empty()
            && self
                .all
                .get(digest)
                .is_some_and(|failure| failure.until.is_none_or(|until| Instant::now() < until))
    }

    /// Records a failure. The chunk is tried again after `until`, or only when it was stored.
    pub fn insert(&mut self, digest: Digest, until: Option<Instant>) {
        self.failures += 1;
        self.all.insert(digest, Failure { number: self.failures, until });
        self.order.push_back((self.failures, digest));
        // The second bound is for chunks that fail and are stored in turn: each leaves an old entry
        // in `order`.
        while self.all.len() > FAILED_MAX || self.order.len() > 2 * FAILED_MAX {
            let Some((number, oldest)) = self.order.pop_front() else { return };
            // An entry with an older number is of a chunk that failed again: the newer one counts.
            if self.all.get(&oldest).is_some_and(|failure| failure.number == number) {
                self.all.remove(&oldest);
            }
        }
    }

    /// The chunk was stored.
    pub fn remove(&mut self, digest: &Digest) {
        // Its entry in `order` stays, with a number that is no longer in `all`.
        self.all.remove(digest);
    }
}
