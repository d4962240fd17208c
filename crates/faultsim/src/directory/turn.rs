//! Which thread runs: one at a time, so that a run is the same each time.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The right to run. The scheduler gives it to one process at a time and gets it back.
#[derive(Debug, Default)]
pub struct Turn {
    /// The number of the process that runs; `None` for the scheduler.
    holder: Mutex<Option<u64>>,
    changed: Condvar,
}

impl Turn {
    fn lock(&self) -> MutexGuard<'_, Option<u64>> {
        self.holder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self, until: impl Fn(Option<u64>) -> bool) {
        let mut holder = self.lock();
        while !until(*holder) {
            holder = self.changed.wait(holder).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Lets a process run until it gives the turn back.
    pub fn give(&self, number: u64) {
        *self.lock() = Some(number);
        self.changed.notify_all();
        self.wait(|holder| holder.is_none());
    }

    /// Waits until this process may run.
    pub fn take(&self, number: u64) {
        self.wait(|holder| holder == Some(number));
    }

    /// Gives the turn back to the scheduler.
    pub fn give_back(&self) {
        *self.lock() = None;
        self.changed.notify_all();
    }
}
