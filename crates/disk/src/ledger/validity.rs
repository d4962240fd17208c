//! Whether the [ledger](crate::ledger) may be wrong, in the view of this process.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use kvtier_key::Digest;

use crate::ledger::{Generation, Recounted};

/// The most missing chunks that are remembered until a record explains them.
const LOST_MAX: usize = 4096;
/// The same in a simulation, so that it is reached there.
const SIMULATED_LOST_MAX: usize = 4;
/// How long such a record may take.
const RECORD_WITHIN: Duration = Duration::from_secs(2);

/// Whether the ledger may be wrong, in the view of this process.
#[derive(Debug, Default)]
pub struct LedgerValidity {
    /// Held for reading while files get or lose names and the ledger follows. A recount takes it for
    /// writing.
    motion: RwLock<()>,
    /// The total may be wrong.
    suspect: AtomicBool,
    /// Peers have the directory open, as checked last.
    has_peers: AtomicBool,
    /// The generation in which the index has exactly the chunks that the ledger counts, as long as no
    /// peer opens the directory.
    matched: Mutex<Option<Generation>>,
    /// Chunks whose files are missing without a record.
    lost: Mutex<HashMap<Digest, Instant>>,
}

impl LedgerValidity {
    /// The state at the start. `recounted` where this process counted the directory alone.
    pub fn new(recounted: Option<Recounted>, has_peers: bool) -> Self {
        let it =
            LedgerValidity { has_peers: AtomicBool::new(has_peers), ..LedgerValidity::default() };
        *lock(&it.matched) = recounted.map(|recounted| recounted.generation);
        it.suspect.store(recounted.is_none(), Ordering::Relaxed);
        it
    }

    /// A guard to hold while files that the ledger counts are moved, created or deleted. One thread
    /// must not hold two.
    pub fn moving(&self) -> RwLockReadGuard<'_, ()> {
        self.motion.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the total may be wrong: it is compared soon.
    pub fn suspect(&self) {
        self.suspect.store(true, Ordering::Relaxed);
    }

    /// Notes a file that the index lacked. Beside peers it is one of theirs, and counted. Without
    /// any it is of another program, and the ledger may not count it.
    pub fn found_unknown(&self) {
        if !self.has_peers.load(Ordering::Relaxed) {
            self.suspect();
        }
    }

    /// Notes that a peer removed the chunk, and released its bytes.
    pub fn explained(&self, digest: &Digest) {
        if self.has_peers.load(Ordering::Relaxed) {
            lock(&self.lost).remove(digest);
        }
    }

    /// Waits until no thread holds [`moving`](Self::moving), and keeps the others out.
    pub fn stand_still(&self) -> RwLockWriteGuard<'_, ()> {
        self.motion.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the total may be wrong.
    pub fn is_suspect(&self) -> bool {
        self.suspect.load(Ordering::Relaxed)
    }

    /// Notes that the total was compared and is right.
    pub fn clear(&self) {
        self.suspect.store(false, Ordering::Relaxed);
        lock(&self.lost).clear();
    }

    /// Whether peers have the directory open, as checked last.
    pub fn has_peers(&self) -> bool {
        self.has_peers.load(Ordering::Relaxed)
    }

    /// Sets whether peers have the directory open. Returns what was set before.
    pub fn set_has_peers(&self, has_peers: bool) -> bool {
        self.has_peers.swap(has_peers, Ordering::Relaxed)
    }

    /// The generation in which the index has exactly the chunks that the ledger counts.
    pub fn matched(&self) -> Option<Generation> {
        *lock(&self.matched)
    }

    /// Notes the generation in which index and ledger agree; `None` where they may not.
    pub fn set_matched(&self, generation: Option<Generation>) {
        *lock(&self.matched) = generation;
    }

    /// Notes that a chunk's file is missing. `false` where too many are noted.
    pub fn note_lost(&self, digest: &Digest, now: Instant) -> bool {
        let mut lost = lock(&self.lost);
        let fits = lost.len() < lost_max();
        if fits {
            lost.insert(*digest, now);
        }
        fits
    }

    /// How many missing chunks are noted, and how many may be.
    #[cfg(feature = "simulate")]
    pub fn lost_chunks(&self) -> (usize, usize) {
        (lock(&self.lost).len(), lost_max())
    }

    /// Whether a file is missing for so long that no record of its removal is expected any more.
    pub fn has_unexplained(&self, now: Instant) -> bool {
        let is_late = |since: &Instant| now.saturating_duration_since(*since) > RECORD_WITHIN;
        lock(&self.lost).values().any(is_late)
    }
}

fn lost_max() -> usize {
    if kvtier_os::is_simulated() { SIMULATED_LOST_MAX } else { LOST_MAX }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_may_take_two_seconds_and_so_long_the_missing_chunk_is_kept() {
        let check = LedgerValidity::new(None, true);
        let key = |n: usize| Digest::derive("test", &n.to_le_bytes());
        let now = Instant::now();
        let noted = (0..).take_while(|n| check.note_lost(&key(*n), now)).count();
        assert_eq!(noted, LOST_MAX);
        assert!(!check.has_unexplained(now + RECORD_WITHIN));
        assert!(check.has_unexplained(now + RECORD_WITHIN + Duration::from_nanos(1)));
    }
}
