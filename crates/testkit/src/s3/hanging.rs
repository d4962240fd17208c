//! Requests that wait until a test lets them go on.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// What they wait for.
#[derive(Debug, Default)]
pub(super) struct Hanging {
    releases: Mutex<u64>,
    released: Condvar,
}

impl Hanging {
    /// Waits for the next release. Every release after `begun` ends this wait.
    pub(super) fn wait(&self, begun: impl FnOnce()) {
        let releases = self.releases();
        let before = *releases;
        begun();
        let waits = |releases: &mut u64| *releases == before;
        drop(self.released.wait_while(releases, waits).unwrap_or_else(PoisonError::into_inner));
    }

    /// Ends the waits that have begun.
    pub(super) fn release(&self) {
        *self.releases() += 1;
        self.released.notify_all();
    }

    fn releases(&self) -> MutexGuard<'_, u64> {
        self.releases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
