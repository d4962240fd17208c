//! The tiers of an engine while they are open, with the jobs and lookups of its adapter.

use std::fmt;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use super::job_args::{JobArgs, RowJobArgs};
use super::lookups::{Answer, Asker};
use super::registered_memory::RegisteredMemory;
use super::running_jobs::RunningJobs;
use super::shared_state::{RequestState, State};
use super::start_job::JobWork;
use super::submitter::Submitter;
use crate::borrow::BatchBorrow;
use crate::gil::DropWithoutGil;
use crate::store_handle::StoreHandle;

/// The longest wait for the tiers' threads to end.
pub const END_MAX: Duration = Duration::from_secs(10);
/// How often `wait_idle` checks whether all jobs ended.
const DRAIN_INTERVAL: Duration = Duration::from_micros(500);

/// What closing ends.
pub struct OpenEngine {
    // Fields are dropped in this order. The handle must be the last holder of the store, so that
    // the tiers' threads and rings have ended when it was dropped.
    pub jobs: Arc<RunningJobs>,
    pub submitter: Submitter,
    pub asker: Asker,
    pub state: Arc<Mutex<State>>,
    pub handle: StoreHandle,
}

impl fmt::Debug for OpenSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.get() {
            Some(open) => write!(f, "{:?}", open.handle.tier()),
            None => f.write_str("closed"),
        }
    }
}

/// The open tiers, until they are closed.
pub struct OpenSlot(DropWithoutGil<Holder>);

struct Holder(RwLock<Option<Arc<OpenEngine>>>);

impl Drop for Holder {
    fn drop(&mut self) {
        // The thread may be the scheduler of an engine that was not closed, or whose `close` failed
        // since a medium hangs.
        let open = self.0.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        open.map(|open| ends_within(open, END_MAX));
    }
}

/// Drops the tiers on a thread of its own, and waits for it. Returns whether it ended. A thread of a
/// tier that hangs in the kernel cannot be ended, and must not keep the engine.
pub fn ends_within(open: Arc<OpenEngine>, max: Duration) -> bool {
    let (done, ended) = sync_channel::<()>(1);
    let dropping = thread::Builder::new().name("kvtier-close".into()).spawn(move || {
        drop(open);
        let _ = done.send(());
    });
    // Without a thread the closure, and the tiers with it, were dropped here.
    let Ok(dropping) = dropping else { return true };
    ended.recv_timeout(max).is_ok() && dropping.join().is_ok()
}

impl OpenSlot {
    /// A slot with open tiers.
    pub fn new(open: OpenEngine) -> Self {
        OpenSlot(DropWithoutGil::new(Holder(RwLock::new(Some(Arc::new(open))))))
    }

    /// The tiers; `None` after `clear`.
    pub fn get(&self) -> Option<Arc<OpenEngine>> {
        self.0.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The tiers.
    ///
    /// # Errors
    /// `RuntimeError` after `clear`, and in a forked child.
    pub fn open(&self) -> PyResult<Arc<OpenEngine>> {
        let open = self.get().ok_or_else(|| PyRuntimeError::new_err("the tiers were closed"))?;
        open.handle.check()?;
        Ok(open)
    }

    /// Forgets the tiers, which end with their last holder.
    pub fn clear(&self) {
        *self.0.0.write().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl OpenEngine {
    /// The state, locked.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks one chunk up.
    pub fn lookup(
        &self,
        mut state: MutexGuard<'_, State>,
        name: &[u8],
        request: &RequestState,
    ) -> Answer {
        let Ok(chunk) = request.key(name) else { return state.lookups.count(Answer::Miss) };
        // A hit would make the request wait for a medium that does not answer.
        if state.is_load_overdue() {
            return state.lookups.count(Answer::Miss);
        }
        let answer = state.lookups.lookup(self.handle.tier(), &chunk.key);
        if let (Answer::Hit, Some(events)) = (answer, &state.events) {
            events.found(*chunk.key.digest(), name);
        }
        answer
    }

    /// The work of a job whose pieces are in rows of the one region that is registered.
    ///
    /// # Errors
    /// `RuntimeError` without a region; `ValueError` if chunks have different numbers of pieces.
    pub fn row_work(&self, args: RowJobArgs, request: Arc<RequestState>) -> PyResult<JobWork> {
        let registered = Arc::clone(&self.state().registered);
        let unregistered = || PyRuntimeError::new_err("no memory is registered");
        let args = args.in_region(registered.first().ok_or_else(unregistered)?);
        self.work(args, request, registered)
    }

    /// The work of a job with memory of these regions.
    ///
    /// # Errors
    /// `ValueError` if chunks have different numbers of pieces.
    pub fn work(
        &self,
        args: JobArgs,
        request: Arc<RequestState>,
        registered: Arc<RegisteredMemory>,
    ) -> PyResult<JobWork> {
        let pieces = args.pieces_per_chunk().map_err(PyValueError::new_err)?;
        Ok(JobWork {
            store: self.handle.store(),
            state: Arc::clone(&self.state),
            request,
            registered,
            args: Arc::new(args),
            borrow: BatchBorrow::default(),
            pieces,
        })
    }

    /// Polls the jobs and records what those that ended show.
    pub fn collect(&self) {
        self.jobs.collect(self.handle.tier());
    }

    /// Collects the jobs that ended if a load seems overdue: it may have ended in time while the
    /// engine did not poll. `poll` returns their ends.
    pub fn collect_overdue(&self) {
        let is_overdue = self.state().is_load_overdue();
        if is_overdue {
            self.collect();
        }
    }

    /// Waits until no job runs and all memory is back; returns whether that is so.
    pub fn wait_idle(&self, until: Instant) -> bool {
        loop {
            self.collect();
            if self.jobs.are_idle() {
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
            // Polled: memory that the kernel returns late wakes no one here.
            std::thread::sleep(DRAIN_INTERVAL);
        }
    }
}
