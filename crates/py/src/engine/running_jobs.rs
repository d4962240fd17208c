//! The jobs of an engine until their ends are taken.
//!
//! A job that is woken is polled and recorded on the submitter's thread, since its chunks and their
//! memory were last touched by the tiers' threads, and to touch them all again costs the engine's
//! scheduler more than everything else. Where that thread has too much to do, the scheduler does it.
//!
//! One thread collects at a time. So a thread that finds no job running, while none collects, finds what
//! all of them left behind recorded too: without that a drain could end between the end of a save
//! and the note that the kernel still reads its memory.

use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use kvtier::core::Tier;

use super::jobs::JobEnd;
use super::shared_state::State;
use super::submitter::Submitter;
use crate::completion_queue::CompletionQueue;
use crate::open_store::Store;

/// The jobs.
pub struct RunningJobs {
    queue: CompletionQueue<JobEnd>,
    state: Arc<Mutex<State>>,
    /// Whether `ended` of the state has entries. Changed while the state is locked.
    has_ended: AtomicBool,
    /// Held while a thread collects. Locked before the state.
    collecting: Mutex<()>,
}

impl RunningJobs {
    /// No jobs. Those that are started are collected on the thread of `submitter`.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn new(
        state: Arc<Mutex<State>>,
        submitter: &Submitter,
        store: &Arc<Store>,
    ) -> io::Result<Arc<Self>> {
        let queue = CompletionQueue::new()?;
        let has_ended = AtomicBool::new(false);
        let jobs = Arc::new(RunningJobs { queue, state, has_ended, collecting: Mutex::new(()) });
        // Weak: wakers hold this, and a medium may keep a waker for ever.
        let (weak, store, submitter) =
            (Arc::downgrade(&jobs), Arc::downgrade(store), submitter.downgrade());
        jobs.queue.when_woken(move || {
            let (jobs, store) = (Weak::clone(&weak), Weak::clone(&store));
            submitter.run_if_free(move || {
                if let Some(jobs) = jobs.upgrade()
                    && let Some(store) = store.upgrade()
                {
                    jobs.collect(store.tier());
                }
            });
        });
        Ok(jobs)
    }

    /// Starts a job.
    pub fn start(&self, job: impl Future<Output = JobEnd> + Send + 'static) {
        self.queue.start(job);
    }

    /// Polls the jobs that were woken, and records what those that ended show.
    pub fn collect(&self, tier: &dyn Tier) {
        let _collecting = self.lock_collecting();
        // Before the state is locked: polling runs the jobs' own code.
        let completed = self.queue.poll();
        let mut state = self.state();
        for completion in completed {
            state.record_end(tier, &completion.result, None);
            state.ended.push(completion.result);
            self.has_ended.store(true, Ordering::Release);
        }
        state.forget_returned();
    }

    /// Whether a job may have ended. Touches little memory and takes no lock: a scheduler asks in
    /// every step.
    pub fn may_have_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire) || self.queue.is_signalled()
    }

    /// The jobs that ended and were collected since the last call.
    pub fn take_ended(&self) -> Vec<JobEnd> {
        let mut state = self.state();
        self.has_ended.store(false, Ordering::Release);
        std::mem::take(&mut state.ended)
    }

    /// The number of jobs that were not collected.
    pub fn pending(&self) -> usize {
        self.queue.pending()
    }

    /// Whether no job runs, and a medium uses no memory of those that ended.
    pub fn are_idle(&self) -> bool {
        let _collecting = self.lock_collecting();
        let state = self.state();
        // Calls of an engine that waits for them are not in the queue.
        let has_calls = !state.loads.is_empty() || !state.saves.is_empty();
        self.queue.pending() == 0 && !has_calls && state.late_memory.is_empty()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_collecting(&self) -> MutexGuard<'_, ()> {
        self.collecting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
