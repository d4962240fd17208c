//! How old the index is with regard to what other processes changed.
//!
//! A lookup in memory must not wait: not for the file system, which may hang, nor for a thread that
//! reads the change log. So it reads nothing. Once there was such a lookup, the maintenance thread
//! follows the change log every [`FOLLOW_EVERY`], and a key that the index lacks is a miss while the
//! index is no older than [`AGE_MAX`]. In an older index it is unknown.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// How often the change log is followed for lookups in memory.
pub const FOLLOW_EVERY: Duration = Duration::from_millis(200);
/// The age up to which the index answers for what other processes stored. Two engines find each
/// other's chunks within a second.
pub const AGE_MAX: Duration = Duration::from_millis(500);

/// When the index last agreed with the change log.
#[derive(Debug, Default)]
pub struct IndexAge {
    /// On the index's clock. The directory is listed after that clock began, so at first the index
    /// is as old as the tier.
    agreed_at_ms: AtomicU64,
    is_wanted: AtomicBool,
}

impl IndexAge {
    /// Everything that other processes did until this time is in the index.
    pub fn agreed(&self, at_ms: u64) {
        self.agreed_at_ms.fetch_max(at_ms, Ordering::Relaxed);
    }

    /// A lookup in memory needs an index that is up to date, from now on.
    pub fn want(&self) {
        // Mostly it is set, and then the line of the cache stays shared.
        if !self.is_wanted() {
            self.is_wanted.store(true, Ordering::Relaxed);
        }
    }

    /// Whether there were lookups in memory.
    pub fn is_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::Relaxed)
    }

    /// Whether the index is recent enough to say that a chunk is absent.
    pub fn is_recent(&self, now_ms: u64) -> bool {
        let age_ms = now_ms.saturating_sub(self.agreed_at_ms.load(Ordering::Relaxed));
        u128::from(age_ms) <= AGE_MAX.as_millis()
    }
}
