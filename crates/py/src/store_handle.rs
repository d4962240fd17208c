//! Python's reference to open tiers: checks the process, closes in order, drops without the GIL.

use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyRuntimeError, PyTimeoutError};
use pyo3::prelude::*;

use crate::gil::DropWithoutGil;
use crate::open_store::Store;
use crate::result::error_chain;
use crate::wait::wait_until;

/// The time for `close` beyond the timeout of a batch: it writes what is queued for lower tiers, and
/// the journal.
const CLOSE_GRACE: Duration = Duration::from_secs(60);

/// Open tiers, in the process that opened them.
#[derive(Debug)]
pub struct StoreHandle {
    store: DropWithoutGil<Arc<Store>>,
    /// The process that opened the tiers: their threads do not survive a fork.
    pid: u32,
}

impl StoreHandle {
    /// A handle that is valid in this process.
    pub fn new(store: Arc<Store>) -> Self {
        StoreHandle { store: DropWithoutGil::new(store), pid: std::process::id() }
    }

    /// The store, for use beyond the call.
    pub fn store(&self) -> Arc<Store> {
        Arc::clone(&self.store)
    }

    /// Another handle of the same store.
    pub fn share(&self) -> Self {
        StoreHandle { store: DropWithoutGil::new(self.store()), pid: self.pid }
    }

    /// Checks the process.
    ///
    /// # Errors
    /// `RuntimeError` in a forked child.
    pub fn check(&self) -> PyResult<()> {
        if self.pid == std::process::id() {
            return Ok(());
        }
        Err(PyRuntimeError::new_err(format!(
            "kvtier was opened by process {}, and its threads did not survive the fork: open it in this process",
            self.pid
        )))
    }

    /// Rejects new work and waits until all submitted work has ended. Every caller waits, not only
    /// the first.
    ///
    /// # Errors
    /// `TimeoutError` if a medium still uses the memory of a batch; `RuntimeError` in a forked child
    /// or if closing fails.
    pub fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.check()?;
        // First: a scrape during the close would report tiers that are half closed as unhealthy.
        py.detach(|| self.store.stop_metrics());
        let timeout = self.store.settings.timeout.saturating_add(CLOSE_GRACE);
        // Each caller has a ticket of its own, which ends when the tiers have: also the second
        // waits.
        match wait_until(py, self.store.tier().close(), Instant::now().checked_add(timeout))? {
            Some(closed) => closed.map_err(|e| PyRuntimeError::new_err(error_chain(&e))),
            None => {
                let seconds = timeout.as_secs();
                Err(PyTimeoutError::new_err(format!(
                    "closed, but after {seconds} s a medium still holds memory of a batch"
                )))
            }
        }
    }
}

impl Deref for StoreHandle {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.store
    }
}

impl Drop for StoreHandle {
    /// A forked child has none of the threads that an orderly shutdown waits for, so the store is
    /// leaked there.
    fn drop(&mut self) {
        if self.check().is_err() {
            // One more reference than holders: the count never reaches zero in this process.
            std::mem::forget(self.store());
        }
    }
}
