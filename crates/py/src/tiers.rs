//! Open tiers, for our own Python code: waiting calls, queues of calls that do not wait, and what
//! an operator asks.

use std::fmt;
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::Arc;

use kvtier::Arena;
use kvtier::core::{Mode, Place};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::buffer::{self, Lender, Lent};
use crate::config;
use crate::desk::Desk;
use crate::end::{End, whole};
use crate::handle::Handle;
use crate::listing::Listing;
use crate::name::Name;
use crate::shape::Shape;
use crate::store::{Named, Spelling, Store};
use crate::unlocked::unlocked;
use crate::wait::{wait, wait_home};
use crate::work::How;

/// How a batch ended: the kind and the text of the first thing that went wrong, one answer a key.
type Ended = (Option<(String, String)>, Vec<i64>);
/// Bytes used, the cap in bytes, chunks; and per tenant its name, bytes and chunks.
type Usage = (Option<u64>, Option<u64>, u64, Vec<(String, u64, u64)>);

/// One tier's state. Python gets it as a dict.
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

/// Tiers that are open, as one.
#[pyclass(frozen, module = "kvtier._native")]
pub struct Tiers(Handle);

#[pymethods]
impl Tiers {
    /// `source` has just one of `tiers`, `config`, `adapter` and `engine`; what `settings` leaves
    /// out has its default.
    #[new]
    #[pyo3(signature = (source, **settings))]
    fn new(source: &Bound<'_, PyDict>, settings: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let options = config::options(settings)?;
        let store = config::open(source.py(), &config::Source::of(source)?, &options)?;
        Ok(Tiers(Handle::new(Arc::new(store))))
    }

    /// A queue of batches with an event descriptor of its own.
    fn queue(&self) -> PyResult<Queue> {
        self.0.check()?;
        Ok(Queue(Desk::new(self.0.share())?))
    }

    /// Saves each buffer under its key; `shape` is the tensor that a full chunk is, where the
    /// caller knows it.
    #[pyo3(signature = (keys, bufs, shape=None))]
    fn save(
        &self,
        py: Python<'_>,
        keys: Vec<Name>,
        bufs: Vec<Bound<'_, PyAny>>,
        shape: Option<Shape>,
    ) -> PyResult<Ended> {
        let shape = shape.map(Shape::read).transpose()?;
        self.with(py, keys, &bufs, buffer::view, |store, keys, from| {
            store.save_as(keys, from, shape)
        })
    }

    #[pyo3(signature = (keys, bufs, exact=true))]
    fn load(
        &self,
        py: Python<'_>,
        keys: Vec<Name>,
        bufs: Vec<Bound<'_, PyAny>>,
        exact: bool,
    ) -> PyResult<Ended> {
        self.with(py, keys, &bufs, buffer::lease, |store, keys, into| {
            store.load(keys, into, How::of(exact, false))
        })
    }

    #[pyo3(signature = (keys, prefix=false, hold=false))]
    fn lookup(&self, py: Python<'_>, keys: Vec<Name>, prefix: bool, hold: bool) -> PyResult<Ended> {
        self.0.check()?;
        let keys = self.named(py, keys);
        wait(py, self.0.store().lookup(keys, mode(prefix), hold)).map(ended)
    }

    fn remove(&self, py: Python<'_>, keys: Vec<Name>) -> PyResult<Ended> {
        self.0.check()?;
        let keys = self.named(py, keys);
        wait(py, self.0.store().remove(keys)).map(ended)
    }

    /// Ends one hold of each key. Never fails: unknown keys are fine.
    fn release(&self, py: Python<'_>, keys: Vec<Name>) -> PyResult<()> {
        self.0.check()?;
        py.detach(|| {
            let keys = self.0.keys(keys);
            self.0.release(keys.iter().flatten().map(kvtier::Key::digest));
        });
        Ok(())
    }

    fn usage(&self, py: Python<'_>) -> PyResult<Usage> {
        self.0.check()?;
        let usage = py.detach(|| self.0.tier().usage());
        let tenants =
            usage.tenants.into_iter().map(|t| (t.tenant, t.used_bytes, t.chunks)).collect();
        Ok((usage.used_bytes, usage.capacity_bytes, usage.chunks, tenants))
    }

    /// Whether they work, what an operator should know, and counters.
    fn status(&self, py: Python<'_>) -> PyResult<(bool, Vec<String>, Vec<(&'static str, u64)>)> {
        self.0.check()?;
        let status = py.detach(|| self.0.tier().status());
        Ok((status.healthy, status.reasons, status.counters))
    }

    /// The same for each tier, with its name and how full it is, the fastest first.
    fn tier_status(&self, py: Python<'_>) -> PyResult<Vec<TierStatus>> {
        self.0.check()?;
        let of = |tier: &Arc<dyn kvtier::Tier>| {
            let (status, usage) = (tier.status(), tier.usage());
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
        Ok(py.detach(|| self.0.opened.tiers.iter().map(of).collect()))
    }

    /// Where metrics are served, as `HOST:PORT`; `None` where they are not.
    #[getter]
    fn metrics_address(&self) -> Option<String> {
        self.0.metrics_address().map(|address| address.to_string())
    }

    /// Whether keys are those of LMCache's in-process mode.
    #[getter]
    fn takes_engine_keys(&self) -> bool {
        self.0.settings.spelling == Spelling::Engine
    }

    /// What the tiers knew, when they were opened, of the shapes of chunks that are saved without
    /// one: `known`, `learned` or `missing`.
    #[getter]
    fn shapes(&self) -> &'static str {
        self.0.settings.shapes.name()
    }

    /// The keys that are there now, to be read page by page.
    fn listing(&self, py: Python<'_>) -> PyResult<Listing> {
        self.0.check()?;
        Listing::new(py, &self.0)
    }

    /// Registers memory with the engines that move files, so that all that lies in it moves with
    /// less work. It must stay mapped until `close`. Says what came of it.
    fn register(&self, py: Python<'_>, address: usize, bytes: usize) -> PyResult<Vec<String>> {
        self.0.check()?;
        let base = NonZeroUsize::new(address)
            .ok_or_else(|| PyValueError::new_err("memory at address 0"))?;
        py.detach(|| {
            let base = NonNull::with_exposed_provenance(base);
            // SAFETY: no lease is ever cut from this arena, nor is it read or written through: it
            // only names the range for the kernel, which pins its pages and checks by
            // itself that they are there. What moves in it later comes with leases of its own.
            let arena = unsafe { Arena::from_raw(base, bytes, Place::Heap, Arc::new(())) };
            let arena = arena.map_err(|e| PyValueError::new_err(e.to_string()))?;
            self.0.opened.register(&arena).map_err(|e| PyValueError::new_err(whole(&e)))
        })
    }

    /// Registers memory on a GPU with cuFile, where a tier uses it. It must stay allocated until
    /// `close`. Says what came of it.
    fn register_gpu(&self, py: Python<'_>, address: usize, bytes: usize) -> PyResult<Vec<String>> {
        self.0.check()?;
        py.detach(|| {
            // SAFETY: no lease is ever cut from this arena, nor is it touched through it: it only
            // names the range for cuFile. What moves in it later comes with leases of
            // its own.
            let arena = unsafe { Arena::from_device(address, bytes, Arc::new(())) };
            Ok(self
                .0
                .opened
                .register_gpu(&arena.map_err(|e| PyValueError::new_err(e.to_string()))?))
        })
    }

    /// What stands above others in messages.
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
    /// Reading thousands of names keeps no other thread of Python's waiting.
    fn named(&self, py: Python<'_>, keys: Vec<Name>) -> Vec<Named> {
        unlocked(py, || self.0.keys(keys))
    }

    fn with<M: Send, F: Future<Output = End> + Send>(
        &self,
        py: Python<'_>,
        keys: Vec<Name>,
        bufs: &[Bound<'_, PyAny>],
        lend: fn(&Bound<'_, PyAny>, &Lender<'_>) -> PyResult<M>,
        work: impl FnOnce(Arc<Store>, Vec<Named>, Vec<Vec<M>>) -> F,
    ) -> PyResult<Ended> {
        self.0.check()?;
        let lent = buffer::lend(keys.len(), bufs, &self.0.busy, lend);
        let Lent { memory, loan } = lent.map_err(PyValueError::new_err)?;
        let work = work(self.0.store(), self.named(py, keys), memory);
        let home = async move {
            let end = work.await;
            loan.home(&self.0.clock, self.0.settings.home).await;
            end
        };
        wait_home(py, home).map(ended)
    }
}

/// Batches that are handed in without waiting; `drain` tells of their ends, and the descriptor is
/// readable while there are some.
#[pyclass(frozen, module = "kvtier._native")]
pub struct Queue(Desk<Ended>);

#[pymethods]
impl Queue {
    #[getter]
    fn fd(&self) -> PyResult<i32> {
        self.0.fd()
    }

    #[getter]
    fn pending(&self) -> PyResult<usize> {
        self.0.pending()
    }

    #[pyo3(signature = (keys, bufs, shape=None))]
    fn save(
        &self,
        py: Python<'_>,
        keys: Vec<Name>,
        bufs: Vec<Bound<'_, PyAny>>,
        shape: Option<Shape>,
    ) -> PyResult<u64> {
        let shape = shape.map(Shape::read).transpose()?;
        let lent = buffer::lend(keys.len(), &bufs, &self.0.handle.busy, buffer::view);
        self.0.submit_with(
            py,
            keys,
            lent,
            |store, keys, from| store.save_as(keys, from, shape),
            ended,
        )
    }

    #[pyo3(signature = (keys, bufs, exact=true, prefetch=false))]
    fn load(
        &self,
        py: Python<'_>,
        keys: Vec<Name>,
        bufs: Vec<Bound<'_, PyAny>>,
        exact: bool,
        prefetch: bool,
    ) -> PyResult<u64> {
        let (lent, how) = (
            buffer::lend(keys.len(), &bufs, &self.0.handle.busy, buffer::lease),
            How::of(exact, prefetch),
        );
        self.0.submit_with(
            py,
            keys,
            lent,
            move |store, keys, into| store.load(keys, into, how),
            ended,
        )
    }

    #[pyo3(signature = (keys, prefix=false, hold=false))]
    fn lookup(&self, py: Python<'_>, keys: Vec<Name>, prefix: bool, hold: bool) -> PyResult<u64> {
        self.0.submit(py, keys, move |store, keys| store.lookup(keys, mode(prefix), hold), ended)
    }

    fn remove(&self, py: Python<'_>, keys: Vec<Name>) -> PyResult<u64> {
        self.0.submit(py, keys, Store::remove, ended)
    }

    /// What ended since the last time: `(id, what went wrong, one answer a key)`. Never waits.
    fn drain(&self, py: Python<'_>) -> PyResult<Vec<(u64, Option<(String, String)>, Vec<i64>)>> {
        Ok(self
            .0
            .drain(py)?
            .into_iter()
            .map(|(id, (fault, answers))| (id, fault, answers))
            .collect())
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Queue({:?})", self.0.handle.tier())
    }
}

fn mode(prefix: bool) -> Mode {
    if prefix { Mode::Prefix } else { Mode::Each }
}

fn ended(end: End) -> Ended {
    (end.fault.map(|fault| (format!("{:?}", fault.kind), fault.text)), end.answers)
}
