//! The keys that are there, page by page.

use std::sync::Mutex;

use kvtier::config::Names;
use pyo3::exceptions::{PyNotImplementedError, PyOSError};
use pyo3::prelude::*;

use crate::end::whole;
use crate::store::Store;
use crate::unlocked::Apart;

/// What was there at one moment.
#[pyclass(frozen, module = "kvtier._native")]
#[derive(Debug)]
pub struct Listing(Apart<Mutex<Names>>);

#[pymethods]
impl Listing {
    /// The next keys, at most `max`, as LMCache spells them, each with its length in bytes; empty
    /// at the end.
    fn page(&self, py: Python<'_>, max: usize) -> PyResult<Vec<(String, u64)>> {
        py.detach(|| {
            let mut names = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            names.page(max).map_err(|e| PyOSError::new_err(whole(&e)))
        })
    }
}

impl Listing {
    /// Of the slowest tier, which has all that is there.
    pub fn new(py: Python<'_>, store: &Store) -> PyResult<Self> {
        let names = py
            .detach(|| store.opened.names())
            .map_err(|e| PyNotImplementedError::new_err(whole(&e)))?;
        Ok(Listing(Apart::new(Mutex::new(names))))
    }
}
