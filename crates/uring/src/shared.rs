use std::sync::PoisonError;

use crate::running::EndedJob;
use crate::scheduler::{NextStep, Scheduler};
use crate::sync::{Condvar, Mutex, MutexGuard};

/// The schedule as callers and the engine's threads share it. The lock is held for bookkeeping
/// only: never over I/O, a watch or a callback.
pub struct Shared {
    sched: Mutex<Scheduler>,
    changed: Condvar,
}

impl Shared {
    pub fn new(sched: Scheduler) -> Self {
        Shared { sched: Mutex::new(sched), changed: Condvar::new() }
    }

    pub fn lock(&self) -> MutexGuard<'_, Scheduler> {
        self.sched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn wait<'a>(&self, sched: MutexGuard<'a, Scheduler>) -> MutexGuard<'a, Scheduler> {
        self.changed.wait(sched).unwrap_or_else(PoisonError::into_inner)
    }

    pub fn notify_one(&self) {
        self.changed.notify_one();
    }

    pub fn close(&self) {
        self.lock().close();
        self.changed.notify_all();
    }

    /// Handles the completion of a piece: shows its bytes, and ends its job, as far as they are
    /// due.
    pub fn completed(&self, number: u64, result: i32) {
        let mut completed = self.lock().completed(number, result);
        if let NextStep::Show(show) = completed {
            let survived = show.call();
            let number = show.number;
            drop(show);
            completed = self.lock().shown(number, survived);
        }
        if let NextStep::Ended(ended) = completed {
            ended.answer();
        }
    }

    /// Ends every job: the engine is dead.
    pub fn abandon(&self) {
        let ended = self.lock().abandon();
        self.changed.notify_all();
        ended.into_iter().for_each(EndedJob::answer);
    }
}

/// Ends every job when an engine's thread panics, so that no caller waits for ever.
pub struct AbandonOnPanic<'a>(pub &'a Shared);

impl Drop for AbandonOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!("a thread of the I/O engine died");
            self.0.abandon();
        }
    }
}
