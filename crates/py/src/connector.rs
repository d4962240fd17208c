//! The client that LMCache's `native_plugin` loads.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::inbox::{End, Inbox};
use crate::work::{Named, Store};
use crate::{buffer, config};

/// How long a batch may take.
const TIMEOUT_S: f64 = 30.0;
/// At most this many errors are logged a second; the others are counted.
const LINES_MAX: u32 = 16;

/// Batches of saves, loads, lookups and removes over tiers.
///
/// Submitting never waits and never raises but in a forked child: what is wrong is told by `drain_completions`, and logged. Buffers are
/// held until their batch has ended, whether their owner still refers to them or not.
#[pyclass(frozen, subclass, module = "kvtier")]
pub struct Connector {
    store: Arc<Store>,
    inbox: Inbox,
    closed: AtomicBool,
    /// The process that made it: threads do not survive a fork.
    pid: u32,
    said: Mutex<Said>,
}

/// What was logged in this second, and what was not.
struct Said {
    since: Instant,
    lines: u32,
    unsaid: u64,
}

/// What `drain_completions` tells of one batch: its id, whether it succeeded, what went wrong, one answer a key.
type Completion = (u64, bool, String, Option<Vec<bool>>);

#[pymethods]
impl Connector {
    #[new]
    #[pyo3(signature = (*, tiers=None, config=None, timeout_seconds=TIMEOUT_S))]
    fn new(
        py: Python<'_>,
        tiers: Option<&Bound<'_, PyAny>>,
        config: Option<&str>,
        timeout_seconds: f64,
    ) -> PyResult<Self> {
        let timeout = Duration::try_from_secs_f64(timeout_seconds).ok().filter(|timeout| !timeout.is_zero());
        let timeout = timeout.ok_or_else(|| PyValueError::new_err("timeout_seconds must be above 0"))?;
        let store = Arc::new(Store::new(config::open(py, tiers, config)?.top, timeout));
        let inbox = Inbox::new().map_err(|e| PyOSError::new_err(format!("no event descriptor: {e}")))?;
        Ok(Connector {
            store,
            inbox,
            closed: AtomicBool::new(false),
            pid: std::process::id(),
            said: Mutex::new(Said { since: Instant::now(), lines: 0, unsaid: 0 }),
        })
    }

    /// A descriptor that is readable while completions wait. `drain_completions` clears it.
    fn event_fd(&self) -> PyResult<i32> {
        self.check()?;
        Ok(self.inbox.fd())
    }

    /// Saves each buffer under its key. Its completion is good only if all were saved.
    fn submit_batch_set(&self, py: Python<'_>, keys: Vec<String>, bufs: Vec<Bound<'_, PyAny>>) -> PyResult<u64> {
        self.submit_with(py, keys, &bufs, buffer::view, Store::set)
    }

    /// Loads into each buffer the chunk of just its length.
    fn submit_batch_get(&self, py: Python<'_>, keys: Vec<String>, bufs: Vec<Bound<'_, PyAny>>) -> PyResult<u64> {
        self.submit_with(py, keys, &bufs, buffer::lease, Store::get)
    }

    /// Which keys are there. What is found stays for 60 s, or until it is loaded.
    fn submit_batch_exists(&self, py: Python<'_>, keys: Vec<String>) -> PyResult<u64> {
        self.submit(py, keys, Store::exists)
    }

    /// Removes keys that nobody holds.
    fn submit_batch_delete(&self, py: Python<'_>, keys: Vec<String>) -> PyResult<u64> {
        self.submit(py, keys, Store::delete)
    }

    /// What ended since the last time: `(id, ok, error, one bool a key or None)`. Never waits.
    fn drain_completions(&self, py: Python<'_>) -> PyResult<Vec<Completion>> {
        self.check()?;
        let ends = py.detach(|| self.inbox.drain());
        buffer::give_back(py);
        for (id, end) in ends.iter().filter(|(_, end)| !end.error.is_empty()) {
            self.warn(py, *id, &end.error)?;
        }
        Ok(ends.into_iter().map(|(id, end)| (id, end.ok, end.error, end.each)).collect())
    }

    /// How many batches are under way or wait to be drained.
    #[getter]
    fn pending(&self) -> PyResult<usize> {
        self.check()?;
        Ok(self.inbox.len())
    }

    /// Takes no more work, and waits until all that was taken has ended. A second time does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.check()?;
        if !self.closed.swap(true, Ordering::AcqRel) {
            let ended = py.detach(|| self.store.tier.close().wait());
            buffer::give_back(py);
            ended.map_err(|e| PyRuntimeError::new_err(crate::work::whole(&e)))?;
        }
        Ok(())
    }

    fn __repr__(&self) -> String {
        format!("<kvtier.Connector over {:?}>", self.store.tier.caps().name)
    }
}

impl Drop for Connector {
    /// In a forked child the threads that an orderly end waits for do not exist: what is there is left as it is.
    fn drop(&mut self) {
        if self.check().is_err() {
            std::mem::forget(Arc::clone(&self.store));
        }
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.__repr__())
    }
}

impl Connector {
    fn check(&self) -> PyResult<()> {
        if self.pid == std::process::id() {
            return Ok(());
        }
        Err(PyRuntimeError::new_err(format!(
            "this kvtier.Connector was made by process {}, and its threads did not come along in the fork: make one in this process",
            self.pid
        )))
    }

    fn submit<F>(&self, py: Python<'_>, keys: Vec<String>, work: fn(Arc<Store>, Vec<Named>) -> F) -> PyResult<u64>
    where
        F: Future<Output = End> + Send + 'static,
    {
        self.check()?;
        buffer::give_back(py);
        Ok(py.detach(|| {
            let keys = self.keys(&keys);
            self.inbox.start(work(Arc::clone(&self.store), keys))
        }))
    }

    fn submit_with<T: Send, F>(
        &self,
        py: Python<'_>,
        keys: Vec<String>,
        bufs: &[Bound<'_, PyAny>],
        lend: fn(&Bound<'_, PyAny>) -> PyResult<T>,
        work: fn(Arc<Store>, Vec<Named>, Vec<T>) -> F,
    ) -> PyResult<u64>
    where
        F: Future<Output = End> + Send + 'static,
    {
        self.check()?;
        buffer::give_back(py);
        let lent = if keys.len() == bufs.len() {
            bufs.iter().map(lend).collect::<PyResult<Vec<T>>>().map_err(|e| e.to_string())
        } else {
            Err(format!("{} keys and {} buffers: give one buffer a key", keys.len(), bufs.len()))
        };
        Ok(py.detach(|| match lent {
            Ok(lent) => self.inbox.start(work(Arc::clone(&self.store), self.keys(&keys), lent)),
            Err(error) => {
                let each = Some(vec![false; keys.len()]);
                self.inbox.start(std::future::ready(End { ok: false, error, each }))
            }
        }))
    }

    /// Logs an error, since LMCache drops a completion's text.
    fn warn(&self, py: Python<'_>, id: u64, error: &str) -> PyResult<()> {
        let unsaid = {
            let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
            if said.since.elapsed() >= Duration::from_secs(1) {
                *said = Said { since: Instant::now(), lines: 0, unsaid: said.unsaid };
            }
            if said.lines == LINES_MAX {
                said.unsaid += 1;
                return Ok(());
            }
            said.lines += 1;
            std::mem::take(&mut said.unsaid)
        };
        let log = PyModule::import(py, "logging")?.call_method1("getLogger", ("kvtier",))?;
        log.call_method1("warning", ("batch %d: %s (and %d unsaid before it)", id, error, unsaid)).map(drop)
    }

    fn keys(&self, names: &[String]) -> Vec<Named> {
        names.iter().map(|name| self.store.key(name)).collect()
    }
}
