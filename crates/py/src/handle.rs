//! Who holds open tiers on Python's side.

use std::ops::Deref;
use std::sync::Arc;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::buffer;
use crate::end::whole;
use crate::store::Store;

/// Open tiers, in the process that opened them.
pub struct Handle {
    store: Arc<Store>,
    /// Threads do not survive a fork.
    pid: u32,
}

impl Handle {
    /// Holds `store` in this process.
    pub fn new(store: Arc<Store>) -> Self {
        Handle { store, pid: std::process::id() }
    }

    /// The store, to be used beyond the call.
    pub fn store(&self) -> Arc<Store> {
        Arc::clone(&self.store)
    }

    /// Another holder of the same store.
    pub fn share(&self) -> Self {
        Handle { store: self.store(), pid: self.pid }
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

    /// Takes no more work, and waits until all that was taken has ended. A second time does nothing.
    pub fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.check()?;
        if self.store.close_once() {
            let ended = py.detach(|| self.store.tier().close().wait());
            buffer::give_back(py);
            ended.map_err(|e| PyRuntimeError::new_err(whole(&e)))?;
        }
        Ok(())
    }
}

impl Deref for Handle {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.store
    }
}

impl Drop for Handle {
    /// In a forked child the threads that an orderly end waits for do not exist: what is there is left as it is.
    fn drop(&mut self) {
        if self.check().is_err() {
            std::mem::forget(self.store());
        }
    }
}
