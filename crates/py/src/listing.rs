//! Lists the stored keys page by page.

use std::sync::Mutex;

use kvtier::config::KeyListing;
use pyo3::exceptions::{PyNotImplementedError, PyOSError};
use pyo3::prelude::*;

use crate::gil::DropWithoutGil;
use crate::open_store::Store;
use crate::result::error_chain;

/// The keys that were stored when the listing began.
#[pyclass(frozen, module = "kvtier._native")]
#[derive(Debug)]
pub struct Listing(DropWithoutGil<Mutex<KeyListing>>);

#[pymethods]
impl Listing {
    /// The next keys, at most `max`, as LMCache writes them, each with its length in bytes; empty
    /// at the end.
    fn page(&self, py: Python<'_>, max: usize) -> PyResult<Vec<(String, u64)>> {
        py.detach(|| {
            let mut names = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            names.page(max).map_err(|e| PyOSError::new_err(error_chain(&e)))
        })
    }
}

impl Listing {
    /// Lists the slowest tier, which every save reaches.
    pub fn new(py: Python<'_>, store: &Store) -> PyResult<Self> {
        let names = py
            .detach(|| store.opened.list_keys())
            .map_err(|e| PyNotImplementedError::new_err(error_chain(&e)))?;
        Ok(Listing(DropWithoutGil::new(Mutex::new(names))))
    }
}
