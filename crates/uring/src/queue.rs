use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::job::Done;
use crate::{Class, Finished, Job, Refused, RefusedWhy};

/// Jobs that wait to begin, reads before writes, each class in order. Bounded; whoever drops it answers what is left.
pub struct Queue {
    state: Mutex<State>,
    pub changed: Condvar,
    jobs_max: usize,
}

#[derive(Default)]
pub struct State {
    pub reads: VecDeque<(Job, Done)>,
    pub writes: VecDeque<(Job, Done)>,
    pub closed: bool,
}

impl Queue {
    pub fn new(jobs_max: usize) -> Self {
        Queue { state: Mutex::default(), changed: Condvar::new(), jobs_max }
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn push(&self, job: Job, done: Done) -> Result<(), Refused> {
        let Some(class) = job.class() else { return Err(Refused { job, why: RefusedWhy::Invalid }) };
        let mut state = self.lock();
        if state.closed {
            return Err(Refused { job, why: RefusedWhy::Closed });
        }
        if state.reads.len() + state.writes.len() >= self.jobs_max {
            return Err(Refused { job, why: RefusedWhy::Full });
        }
        match class {
            Class::Read => state.reads.push_back((job, done)),
            Class::Write => state.writes.push_back((job, done)),
        }
        drop(state);
        self.changed.notify_one();
        Ok(())
    }

    /// Takes no more jobs, and answers those that have not begun.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        let left: Vec<_> =
            std::mem::take(&mut state.reads).into_iter().chain(std::mem::take(&mut state.writes)).collect();
        drop(state);
        self.changed.notify_all();
        left.into_iter().for_each(|(job, done)| answer(done, Finished::closed(job)));
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.close();
    }
}

/// Calls back; a panic in there is its own affair and ends nothing here.
pub fn answer(done: Done, finished: Finished) {
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| done(finished))).is_err() {
        tracing::error!("the callback of an I/O job panicked");
    }
}

/// Shows arrived bytes to a job's watch; answers whether it survived.
pub fn show(job: &mut Job, part: usize, offset: usize, len: usize) -> bool {
    let (Some(watch), Some(crate::Part::Read { into, .. })) = (job.watch.as_mut(), job.parts.get(part)) else {
        return true;
    };
    let Some(bytes) = into.as_host().and_then(|all| all.get(offset..offset + len)) else { return false };
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| watch(part, offset as u64, bytes))).is_ok()
}
