//! Which thread runs: one at a time, so that a run is the same each time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, Thread};

/// The number that stands for the scheduler. Processes have others.
const SCHEDULER: u64 = 0;

/// The right to run. The scheduler gives it to one process at a time and gets it back. Only the thread
/// that is to run is woken.
#[derive(Debug)]
pub struct Turn {
    /// The number of the process that runs, or that of the scheduler.
    holder: AtomicU64,
    scheduler: Thread,
}

impl Turn {
    /// That of a scheduler on this thread.
    pub fn new() -> Self {
        Turn { holder: AtomicU64::new(SCHEDULER), scheduler: thread::current() }
    }

    fn wait(&self, number: u64) {
        while self.holder.load(Ordering::Acquire) != number {
            thread::park();
        }
    }

    /// Lets a process run on this thread until it gives the turn back.
    pub fn give(&self, number: u64, to: &Thread) {
        self.holder.store(number, Ordering::Release);
        to.unpark();
        self.wait(SCHEDULER);
    }

    /// Waits until this process may run.
    pub fn take(&self, number: u64) {
        self.wait(number);
    }

    /// Gives the turn back to the scheduler.
    pub fn give_back(&self) {
        self.holder.store(SCHEDULER, Ordering::Release);
        self.scheduler.unpark();
    }
}
