//! The Python class `Queue`: batches that are submitted without waiting.

use std::fmt;

use pyo3::prelude::*;

use crate::buffer;
use crate::completion_queue::Completion;
use crate::key_name::KeyName;
use crate::open_store::Store;
use crate::ops::LoadOptions;
use crate::result::{PyBatchResult, lookup_mode, to_python};
use crate::shape::PyShape;
use crate::submission_queue::SubmissionQueue;

/// A [`Completion`] for Python: id, first error, and one answer per key.
type PyCompletion = (u64, Option<(String, String)>, Vec<i64>);

/// Submits batches without waiting. `poll` returns those that completed; the event descriptor is
/// readable while there are some.
#[pyclass(frozen, module = "kvtier._native")]
pub struct Queue(SubmissionQueue<PyBatchResult>);

#[pymethods]
impl Queue {
    #[getter]
    fn event_fd(&self) -> PyResult<i32> {
        self.0.event_fd()
    }

    #[getter]
    fn pending(&self) -> PyResult<usize> {
        self.0.pending()
    }

    /// Whether `poll` has yet to return the end of this batch.
    fn is_pending(&self, batch: u64) -> PyResult<bool> {
        self.0.is_pending(batch)
    }

    #[pyo3(signature = (keys, bufs, shape=None))]
    fn save(
        &self,
        py: Python<'_>,
        keys: Vec<KeyName>,
        bufs: Vec<Bound<'_, PyAny>>,
        shape: Option<PyShape>,
    ) -> PyResult<u64> {
        let shape = shape.map(PyShape::read).transpose()?;
        let targets = &self.0.handle.load_targets;
        let borrowed = buffer::borrow_all(keys.len(), &bufs, targets, buffer::view);
        self.0.submit_with_buffers(
            py,
            keys,
            borrowed,
            |store, keys, from| store.save_with_shape(keys, from, shape),
            to_python,
        )
    }

    #[pyo3(signature = (keys, bufs, exact=true, prefetch=false))]
    fn load(
        &self,
        py: Python<'_>,
        keys: Vec<KeyName>,
        bufs: Vec<Bound<'_, PyAny>>,
        exact: bool,
        prefetch: bool,
    ) -> PyResult<u64> {
        let options = LoadOptions::new(exact, prefetch);
        let targets = &self.0.handle.load_targets;
        let borrowed = buffer::borrow_all(keys.len(), &bufs, targets, buffer::lease);
        self.0.submit_with_buffers(
            py,
            keys,
            borrowed,
            move |store, keys, into| store.load(keys, into, options),
            to_python,
        )
    }

    #[pyo3(signature = (keys, prefix=false, hold=false))]
    fn lookup(
        &self,
        py: Python<'_>,
        keys: Vec<KeyName>,
        prefix: bool,
        hold: bool,
    ) -> PyResult<u64> {
        self.0.submit(
            py,
            keys,
            move |store, keys| store.lookup(keys, lookup_mode(prefix), hold),
            to_python,
        )
    }

    fn remove(&self, py: Python<'_>, keys: Vec<KeyName>) -> PyResult<u64> {
        self.0.submit(py, keys, Store::remove, to_python)
    }

    /// The batches that completed since the last call. Never waits.
    fn poll(&self, py: Python<'_>) -> PyResult<Vec<PyCompletion>> {
        let completed = self.0.poll(py)?;
        let to_tuple = |Completion { id, result: (error, answers) }| (id, error, answers);
        Ok(completed.into_iter().map(to_tuple).collect())
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Queue({:?})", self.0.handle.tier())
    }
}

impl Queue {
    /// A queue over the tiers of a store.
    pub(crate) fn new(queue: SubmissionQueue<PyBatchResult>) -> Self {
        Queue(queue)
    }
}
