use std::sync::PoisonError;

use crate::running::EndedJob;
use crate::scheduler::{NextStep, Scheduler};
use crate::sync::{Condvar, Mutex, MutexGuard};

// The protocol of the two engines with the schedule, and why no lock is held too long:
//
// - A thread takes a request under the lock, and performs it without. In between the piece is in
//   flight in the schedule, so its memory is kept although no lock protects it.
// - A completion takes the lock up to twice. Between the two a watch reads the bytes. The piece is
//   still in flight then, so no other thread can end the job and return the memory to its caller. A
//   watch is called for one piece of a job at a time, because `show` hands it out and `shown` takes
//   it back.
// - Callbacks run last, without the lock. They may submit the next job, which takes the lock again.
// - Waiting threads sleep on `changed`. Every push notifies one of them, and a thread that takes a
//   request and leaves more behind notifies the next. So no request waits for a thread that sleeps,
//   and a push wakes one thread instead of all.
//
// A poisoned lock is used all the same: the panic of a callback cannot happen under it, and the
// state of the schedule is consistent after each of its methods.

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
        // The watch may take as long as a checksum of 4 MiB. Other pieces complete meanwhile.
        if let NextStep::Show(show) = completed {
            let survived = show.call();
            let number = show.number;
            // Before `shown`, which may end the job: the watch goes back to the job with the drop,
            // and the answer contains the job.
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
        // Without the lock: an answer runs code of the caller, which may submit to this engine and
        // would then wait for the lock of its own thread.
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
