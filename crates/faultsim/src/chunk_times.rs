//! Until when something may be so of a chunk in a process.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Times by process and chunk.
#[derive(Debug, Default)]
pub struct ChunkTimes(Mutex<BTreeMap<(String, u64), Times>>);

/// Of one chunk in one process.
#[derive(Debug, Default)]
struct Times {
    /// Operations in flight by which it may be so.
    in_flight: u32,
    until: Duration,
}

impl ChunkTimes {
    /// Until then, unless it is longer already.
    pub fn extend(&self, process: &str, numbers: &[u64], until: Duration) {
        self.change(process, numbers, |times| times.until = until.max(times.until));
    }

    /// As long as an operation is in flight that begins now.
    pub fn begin(&self, process: &str, numbers: &[u64]) {
        self.change(process, numbers, |times| times.in_flight += 1);
    }

    /// The operation ended, and it may be so until then.
    pub fn end(&self, process: &str, numbers: &[u64], until: Duration) {
        self.change(process, numbers, |times| times.in_flight -= 1);
        self.extend(process, numbers, until);
    }

    /// Whether it may be so at that time, or later.
    pub fn applies_at(&self, process: &str, n: u64, at: Duration) -> bool {
        let times = self.lock();
        let times = times.get(&(process.to_owned(), n));
        times.is_some_and(|times| times.in_flight > 0 || at <= times.until)
    }

    fn change(&self, process: &str, numbers: &[u64], change: impl Fn(&mut Times)) {
        let mut times = self.lock();
        for n in numbers {
            change(times.entry((process.to_owned(), *n)).or_default());
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(String, u64), Times>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
