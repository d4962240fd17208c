//! Until when something may be so of a chunk in a process.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Times by process and chunk.
#[derive(Debug, Default)]
pub struct ChunkTimes(Mutex<BTreeMap<(String, u64), Duration>>);

impl ChunkTimes {
    /// Until then, unless it is longer already.
    pub fn extend(&self, process: &str, numbers: &[u64], until: Duration) {
        let mut times = self.lock();
        for n in numbers {
            let last = times.entry((process.to_owned(), *n)).or_default();
            *last = until.max(*last);
        }
    }

    /// Until then, also if it was longer.
    pub fn set(&self, process: &str, n: u64, until: Duration) {
        self.lock().insert((process.to_owned(), n), until);
    }

    /// Whether it may be so now.
    pub fn applies_at(&self, process: &str, n: u64, now: Duration) -> bool {
        self.lock().get(&(process.to_owned(), n)).is_some_and(|until| now <= *until)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(String, u64), Duration>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
