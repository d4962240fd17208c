//! Who holds open tiers on Python's side.

use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyRuntimeError, PyTimeoutError};
use pyo3::prelude::*;

use crate::end::whole;
use crate::store::Store;
use crate::unlocked::Apart;
use crate::wait::wait_until;

/// How much longer than a batch may take an end may: what waits to be written to lower tiers, the
/// last journal.
const FAREWELL_MAX: Duration = Duration::from_secs(60);

/// Open tiers, in the process that opened them.
pub struct Handle {
    store: Apart<Arc<Store>>,
    /// Threads do not survive a fork.
    pid: u32,
}

impl Handle {
    /// Holds `store` in this process.
    pub fn new(store: Arc<Store>) -> Self {
        Handle { store: Apart::new(store), pid: std::process::id() }
    }

    /// The store, to be used beyond the call.
    pub fn store(&self) -> Arc<Store> {
        Arc::clone(&self.store)
    }

    /// Another holder of the same store.
    pub fn share(&self) -> Self {
        Handle { store: Apart::new(self.store()), pid: self.pid }
    }

    /// Errors in a forked child.
    pub fn check(&self) -> PyResult<()> {
        if self.pid == std::process::id() {
            return Ok(());
        }
        Err(PyRuntimeError::new_err(format!(
            "kvtier was opened by process {}, and its threads did not come along in the fork: open it in this process",
            self.pid
        )))
    }

    /// Takes no more work, and waits until all that was taken has ended, whoever closed first.
    /// Errors with `TimeoutError` where a medium keeps what it was given.
    pub fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.check()?;
        py.detach(|| self.store.stop_metrics());
        let longest = self.store.settings.timeout.saturating_add(FAREWELL_MAX);
        match wait_until(py, self.store.tier().close(), Instant::now().checked_add(longest))? {
            Some(ended) => ended.map_err(|e| PyRuntimeError::new_err(whole(&e))),
            None => {
                let seconds = longest.as_secs();
                Err(PyTimeoutError::new_err(format!(
                    "closed, but after {seconds} s a medium still holds memory of a batch"
                )))
            }
        }
    }
}

impl Deref for Handle {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.store
    }
}

impl Drop for Handle {
    /// In a forked child the threads that an orderly end waits for do not exist: what is there is
    /// left as it is.
    fn drop(&mut self) {
        if self.check().is_err() {
            std::mem::forget(self.store());
        }
    }
}
