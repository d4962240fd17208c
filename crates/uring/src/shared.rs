use std::sync::PoisonError;

use crate::running::Ended;
use crate::sched::{Landed, Sched};
use crate::sync::{Condvar, Mutex, MutexGuard};

/// The schedule as callers and the engine's threads share it. The lock is held for bookkeeping
/// only: never over I/O, a watch or a callback.
pub struct Shared {
    sched: Mutex<Sched>,
    changed: Condvar,
}

impl Shared {
    pub fn new(sched: Sched) -> Self {
        Shared { sched: Mutex::new(sched), changed: Condvar::new() }
    }

    pub fn lock(&self) -> MutexGuard<'_, Sched> {
        self.sched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn wait<'a>(&self, sched: MutexGuard<'a, Sched>) -> MutexGuard<'a, Sched> {
        self.changed.wait(sched).unwrap_or_else(PoisonError::into_inner)
    }

    pub fn notify_one(&self) {
        self.changed.notify_one();
    }

    pub fn close(&self) {
        self.lock().close();
        self.changed.notify_all();
    }

    /// Passes on what the kernel said of a piece, shows its bytes, answers its job: whatever is
    /// due.
    pub fn landed(&self, number: u64, result: i32) {
        let mut landed = self.lock().landed(number, result);
        if let Landed::Show(show) = landed {
            let survived = show.call();
            let number = show.number;
            drop(show);
            landed = self.lock().shown(number, survived);
        }
        if let Landed::Ended(ended) = landed {
            ended.answer();
        }
    }

    /// Answers everybody: the engine is dead.
    pub fn give_up(&self) {
        let ended = self.lock().give_up();
        self.changed.notify_all();
        ended.into_iter().for_each(Ended::answer);
    }
}

/// However an engine's thread ends, nobody waits in vain: a thread that dies answers everyone.
pub struct GiveUpOnPanic<'a>(pub &'a Shared);

impl Drop for GiveUpOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!("a thread of the I/O engine died");
            self.0.give_up();
        }
    }
}
