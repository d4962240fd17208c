//! Events: the number of times each was recorded, and the last record that its stream has passed.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// An event.
#[derive(Default)]
pub struct Event {
    state: Mutex<Times>,
    done: Condvar,
}

#[derive(Default)]
struct Times {
    recorded: u64,
    passed: u64,
}

impl Event {
    fn times(&self) -> MutexGuard<'_, Times> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the event; returns the number of the record.
    pub fn record(&self) -> u64 {
        let mut times = self.times();
        times.recorded += 1;
        times.recorded
    }

    /// The number of the last record. A wait is for this record, not for later ones.
    pub fn last(&self) -> u64 {
        self.times().recorded
    }

    /// The stream has passed record number `time`.
    pub fn pass(&self, time: u64) {
        let mut times = self.times();
        times.passed = times.passed.max(time);
        self.done.notify_all();
    }

    pub fn has_passed(&self) -> bool {
        let times = self.times();
        times.passed >= times.recorded
    }

    pub fn wait(&self, time: u64) {
        let mut times = self.times();
        while times.passed < time {
            times = self.done.wait(times).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

static ALL: Mutex<(usize, BTreeMap<usize, Arc<Event>>)> = Mutex::new((0xe000, BTreeMap::new()));

fn all() -> MutexGuard<'static, (usize, BTreeMap<usize, Arc<Event>>)> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A new event's handle.
pub fn create() -> usize {
    let mut all = all();
    all.0 += 1;
    let handle = all.0;
    all.1.insert(handle, Arc::default());
    handle
}

pub fn get(handle: usize) -> Option<Arc<Event>> {
    all().1.get(&handle).cloned()
}

pub fn destroy(handle: usize) -> bool {
    all().1.remove(&handle).is_some()
}

pub fn count() -> usize {
    all().1.len()
}
