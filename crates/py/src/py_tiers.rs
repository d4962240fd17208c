//! The Python class `Tiers`: calls that wait, status and usage.

use std::fmt;
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::Arc;

use kvtier::Arena;
use kvtier::config::LmcacheMode;
use kvtier::core::Place;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::borrow::Borrower;
use crate::buffer::{self, BorrowedMemory};
use crate::gil::without_gil;
use crate::key_name::KeyName;
use crate::listing::Listing;
use crate::open;
use crate::open_store::{ParsedKey, Store};
use crate::ops::LoadOptions;
use crate::py_queue::Queue;
use crate::result::{BatchResult, PyBatchResult, error_chain, lookup_mode, to_python};
use crate::shape::PyShape;
use crate::store_handle::StoreHandle;
use crate::submission_queue::SubmissionQueue;
use crate::wait::{wait, wait_for_buffers};

/// Bytes used, the cap in bytes, the number of chunks; and name, bytes and chunks of each tenant.
type PyUsage = (Option<u64>, Option<u64>, u64, Vec<(String, u64, u64)>);

/// The status of one tier, a dict in Python.
#[derive(IntoPyObject)]
struct TierStatus {
    name: String,
    healthy: bool,
    reasons: Vec<String>,
    counters: Vec<(&'static str, u64)>,
    used_bytes: Option<u64>,
    capacity_bytes: Option<u64>,
    chunks: u64,
}

/// Open tiers, used as one.
#[pyclass(frozen, module = "kvtier._native")]
pub struct Tiers(StoreHandle);

#[pymethods]
impl Tiers {
    /// `source` has exactly one of `tiers`, `config`, `adapter` and `engine`; settings that are
    /// missing have their defaults.
    #[new]
    #[pyo3(signature = (source, **settings))]
    fn new(source: &Bound<'_, PyDict>, settings: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let options = open::options(settings)?;
        let store = open::open(source.py(), &open::TierSource::from_dict(source)?, &options)?;
        Ok(Tiers(StoreHandle::new(Arc::new(store))))
    }

    /// A new queue, with an event descriptor of its own.
    fn queue(&self) -> PyResult<Queue> {
        self.0.check()?;
        Ok(Queue::new(SubmissionQueue::new(self.0.share())?))
    }

    /// Saves each buffer under its key; `shape` is that of each chunk, for layouts that store it.
    #[pyo3(signature = (keys, bufs, shape=None))]
    fn save(
        &self,
        py: Python<'_>,
        keys: Vec<KeyName>,
        bufs: Vec<Bound<'_, PyAny>>,
        shape: Option<PyShape>,
    ) -> PyResult<PyBatchResult> {
        let shape = shape.map(PyShape::read).transpose()?;
        self.run_with_buffers(py, keys, &bufs, buffer::view, |store, keys, from| {
            store.save_with_shape(keys, from, shape)
        })
    }

    #[pyo3(signature = (keys, bufs, exact=true))]
    fn load(
        &self,
        py: Python<'_>,
        keys: Vec<KeyName>,
        bufs: Vec<Bound<'_, PyAny>>,
        exact: bool,
    ) -> PyResult<PyBatchResult> {
        self.run_with_buffers(py, keys, &bufs, buffer::lease, |store, keys, into| {
            store.load(keys, into, LoadOptions::new(exact, false))
        })
    }

    #[pyo3(signature = (keys, prefix=false, hold=false))]
    fn lookup(
        &self,
        py: Python<'_>,
        keys: Vec<KeyName>,
        prefix: bool,
        hold: bool,
    ) -> PyResult<PyBatchResult> {
        self.0.check()?;
        let keys = self.parse_keys(py, keys);
        wait(py, self.0.store().lookup(keys, lookup_mode(prefix), hold)).map(to_python)
    }

    fn remove(&self, py: Python<'_>, keys: Vec<KeyName>) -> PyResult<PyBatchResult> {
        self.0.check()?;
        let keys = self.parse_keys(py, keys);
        wait(py, self.0.store().remove(keys)).map(to_python)
    }

    /// Ends one hold of each key. Unknown keys are ignored.
    fn release(&self, py: Python<'_>, keys: Vec<KeyName>) -> PyResult<()> {
        self.0.check()?;
        py.detach(|| {
            let keys = self.0.parse_keys(keys);
            self.0.release(keys.iter().flatten().map(kvtier::Key::digest));
        });
        Ok(())
    }

    fn usage(&self, py: Python<'_>) -> PyResult<PyUsage> {
        self.0.check()?;
        let usage = py.detach(|| self.0.tier().usage());
        let tenants =
            usage.tenants.into_iter().map(|t| (t.tenant, t.used_bytes, t.chunks)).collect();
        Ok((usage.used_bytes, usage.capacity_bytes, usage.chunks, tenants))
    }

    /// Health, the reasons for it, and counters.
    fn status(&self, py: Python<'_>) -> PyResult<(bool, Vec<String>, Vec<(&'static str, u64)>)> {
        self.0.check()?;
        let status = py.detach(|| self.0.tier().status());
        Ok((status.healthy, status.reasons, status.counters))
    }

    /// The status and usage of each tier, the fastest first.
    fn tier_status(&self, py: Python<'_>) -> PyResult<Vec<TierStatus>> {
        self.0.check()?;
        let status_of = |tier: &Arc<dyn kvtier::Tier>| {
            let status = tier.status();
            let usage = tier.usage();
            TierStatus {
                name: tier.caps().name.to_string(),
                healthy: status.healthy,
                reasons: status.reasons,
                counters: status.counters,
                used_bytes: usage.used_bytes,
                capacity_bytes: usage.capacity_bytes,
                chunks: usage.chunks,
            }
        };
        Ok(py.detach(|| self.0.opened.tiers.iter().map(status_of).collect()))
    }

    /// The address of the metrics server as `HOST:PORT`; `None` without one.
    #[getter]
    fn metrics_address(&self) -> Option<String> {
        self.0.metrics_address().map(|address| address.to_string())
    }

    /// Whether the tiers take keys of LMCache's in-process mode.
    #[getter]
    fn takes_engine_keys(&self) -> bool {
        self.0.settings.mode == LmcacheMode::InProcess
    }

    /// Where the shape of a chunk comes from that is saved without one, as of the time when the
    /// tiers were opened: `configured`, `files` or `missing`.
    #[getter]
    fn shapes(&self) -> &'static str {
        self.0.settings.shapes.name()
    }

    /// Lists the keys that are stored now.
    fn listing(&self, py: Python<'_>) -> PyResult<Listing> {
        self.0.check()?;
        Listing::new(py, &self.0)
    }

    /// Registers host memory with the I/O engines, which then transfer to and from it with less work.
    /// It must stay mapped until `close`. Returns a text per tier with the outcome.
    pub fn register(&self, py: Python<'_>, address: usize, bytes: usize) -> PyResult<Vec<String>> {
        self.0.check()?;
        let base = NonZeroUsize::new(address)
            .ok_or_else(|| PyValueError::new_err("memory at address 0"))?;
        py.detach(|| {
            let base = NonNull::with_exposed_provenance(base);
            // SAFETY: this arena hands out no lease and is never read or written through. It only
            // names the range for the kernel, which pins the pages and checks that they are mapped.
            // Transfers to and from the range have leases of their own.
            let arena = unsafe { Arena::from_raw(base, bytes, Place::Heap, Arc::new(())) };
            let arena = arena.map_err(|e| PyValueError::new_err(e.to_string()))?;
            self.0.opened.register(&arena).map_err(|e| PyValueError::new_err(error_chain(&e)))
        })
    }

    /// Registers GPU memory with cuFile, in the tiers that use it. It must stay allocated until
    /// `close`. Returns a text per tier with the outcome.
    fn register_gpu(&self, py: Python<'_>, address: usize, bytes: usize) -> PyResult<Vec<String>> {
        self.0.check()?;
        py.detach(|| {
            // SAFETY: this arena hands out no lease and is never accessed through. It only names the
            // range for cuFile. Transfers to and from the range have leases of their own.
            let arena = unsafe { Arena::from_device(address, bytes, Arc::new(())) };
            Ok(self
                .0
                .opened
                .register_gpu(&arena.map_err(|e| PyValueError::new_err(e.to_string()))?))
        })
    }

    /// The name of the tiers in messages.
    #[getter]
    fn name(&self) -> String {
        self.0.tier().caps().name.to_string()
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.0.close(py)
    }
}

impl fmt::Debug for Tiers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tiers({:?})", self.0.tier())
    }
}

impl Tiers {
    /// Tiers over a store that something else opened.
    pub fn over(handle: StoreHandle) -> Self {
        Tiers(handle)
    }

    /// Without the GIL, since a batch may have thousands of names.
    fn parse_keys(&self, py: Python<'_>, keys: Vec<KeyName>) -> Vec<ParsedKey> {
        without_gil(py, || self.0.parse_keys(keys))
    }

    /// Runs an operation on borrowed buffers and waits until they were returned.
    fn run_with_buffers<M: Send, F: Future<Output = BatchResult> + Send>(
        &self,
        py: Python<'_>,
        keys: Vec<KeyName>,
        bufs: &[Bound<'_, PyAny>],
        borrow_one: fn(&Bound<'_, PyAny>, &Borrower<'_>) -> PyResult<M>,
        op: impl FnOnce(Arc<Store>, Vec<ParsedKey>, Vec<Vec<M>>) -> F,
    ) -> PyResult<PyBatchResult> {
        self.0.check()?;
        let borrowed = buffer::borrow_all(keys.len(), bufs, &self.0.load_targets, borrow_one);
        let BorrowedMemory { memory, borrow } = borrowed.map_err(PyValueError::new_err)?;
        let batch = op(self.0.store(), self.parse_keys(py, keys), memory);
        let until_returned = async move {
            let result = batch.await;
            borrow.returned(&self.0.return_timer, self.0.settings.return_timeout).await;
            result
        };
        wait_for_buffers(py, until_returned).map(to_python)
    }
}
