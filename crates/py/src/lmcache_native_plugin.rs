//! The client that LMCache's `native_plugin` loads.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use kvtier::config::LmcacheMode;
use kvtier::core::Mode;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::completion_queue::Completion;
use crate::key_name::KeyName;
use crate::open::{self, OpenOptions};
use crate::open_store::Store;
use crate::ops::LoadOptions;
use crate::result::BatchResult;
use crate::store_handle::StoreHandle;
use crate::submission_queue::SubmissionQueue;
use crate::{buffer, log};

/// The most errors that are logged per second; further ones are counted.
const LOG_LINES_PER_SECOND: u32 = 16;

/// Batches of saves, loads, lookups and removes over tiers.
///
/// Submitting never waits. It raises only in a forked child: errors of a batch are part of its
/// completion, and logged. Buffers are kept alive until their batch has completed, whether or not
/// their owner still refers to them.
#[pyclass(frozen, subclass, module = "kvtier")]
pub struct Connector {
    queue: SubmissionQueue<ConnectorResult>,
    log_limit: Mutex<LogLimit>,
}

/// The errors that were logged in the current second, and those that were not.
struct LogLimit {
    since: Instant,
    lines: u32,
    suppressed: u64,
}

/// The result of a batch for LMCache.
struct ConnectorResult {
    is_ok: bool,
    error: String,
    /// For each key whether it succeeded; `None` for saves.
    successes: Option<Vec<bool>>,
}

/// A completion as LMCache's contract defines it: id, success, error, and one flag per key.
type LmcacheCompletion = (u64, bool, String, Option<Vec<bool>>);

#[pymethods]
impl Connector {
    /// `source` has exactly one of `tiers` and `config`; `settings` are those of a store.
    #[new]
    #[pyo3(signature = (source, **settings))]
    fn new(source: &Bound<'_, PyDict>, settings: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let options = open::options(settings)?;
        if options.mode == Some(LmcacheMode::InProcess) {
            return Err(PyValueError::new_err(
                "engine_keys = True: a Connector takes keys of LMCache's multi-process mode alone; leave engine_keys out, or use a Store",
            ));
        }
        // A metrics port in use must not disable a plugin of LMCache.
        let options =
            OpenOptions { mode: Some(LmcacheMode::MultiProcess), needs_metrics: false, ..options };
        let store = open::open(source.py(), &open::TierSource::from_dict(source)?, &options)?;
        Ok(Connector {
            queue: SubmissionQueue::new(StoreHandle::new(Arc::new(store)))?,
            log_limit: Mutex::new(LogLimit { since: Instant::now(), lines: 0, suppressed: 0 }),
        })
    }

    /// A descriptor that is readable while completions are available. `drain_completions` clears it.
    fn event_fd(&self) -> PyResult<i32> {
        self.queue.event_fd()
    }

    /// Saves each buffer under its key. The batch succeeds only if every chunk was saved.
    fn submit_batch_set(
        &self,
        py: Python<'_>,
        keys: Vec<KeyName>,
        bufs: Vec<Bound<'_, PyAny>>,
    ) -> PyResult<u64> {
        let targets = &self.queue.handle.load_targets;
        let borrowed = buffer::borrow_all(keys.len(), &bufs, targets, buffer::view);
        self.queue.submit_with_buffers(py, keys, borrowed, Store::save, |result| ConnectorResult {
            is_ok: result.is_complete(),
            error: result.error_text(),
            successes: None,
        })
    }

    /// Loads into each buffer a chunk of exactly its length.
    fn submit_batch_get(
        &self,
        py: Python<'_>,
        keys: Vec<KeyName>,
        bufs: Vec<Bound<'_, PyAny>>,
    ) -> PyResult<u64> {
        let targets = &self.queue.handle.load_targets;
        let borrowed = buffer::borrow_all(keys.len(), &bufs, targets, buffer::lease);
        self.queue.submit_with_buffers(
            py,
            keys,
            borrowed,
            |store, keys, into| store.load(keys, into, LoadOptions::new(true, false)),
            with_successes,
        )
    }

    /// Looks up which keys are stored. A found chunk is held for 60 s or until it is loaded.
    fn submit_batch_exists(&self, py: Python<'_>, keys: Vec<KeyName>) -> PyResult<u64> {
        // A failed lookup is a miss of each key. LMCache reads the flags only of a successful
        // batch.
        let always_ok = |result| ConnectorResult { is_ok: true, ..with_successes(result) };
        self.queue.submit(py, keys, |store, keys| store.lookup(keys, Mode::Each, true), always_ok)
    }

    /// Removes chunks that are not held.
    fn submit_batch_delete(&self, py: Python<'_>, keys: Vec<KeyName>) -> PyResult<u64> {
        self.queue.submit(py, keys, Store::remove, with_successes)
    }

    /// The batches that completed since the last call: `(id, ok, error, one bool a key or None)`.
    /// Never waits.
    fn drain_completions(&self, py: Python<'_>) -> PyResult<Vec<LmcacheCompletion>> {
        let completed = self.queue.poll(py)?;
        for Completion { id, result } in completed.iter().filter(|c| !c.result.error.is_empty()) {
            self.warn(py, *id, &result.error);
        }
        let to_tuple = |Completion { id, result }| {
            let ConnectorResult { is_ok, error, successes } = result;
            (id, is_ok, error, successes)
        };
        Ok(completed.into_iter().map(to_tuple).collect())
    }

    /// The number of batches without a drained completion.
    #[getter]
    fn pending(&self) -> PyResult<usize> {
        self.queue.pending()
    }

    /// Rejects new work and waits until all submitted work has ended.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.queue.handle.close(py)
    }

    fn __repr__(&self) -> String {
        format!("<kvtier.Connector over {:?}>", self.queue.handle.tier().caps().name)
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.__repr__())
    }
}

impl Connector {
    /// Logs an error, since LMCache drops a completion's text.
    fn warn(&self, py: Python<'_>, id: u64, error: &str) {
        let suppressed = {
            let mut limit = self.log_limit.lock().unwrap_or_else(PoisonError::into_inner);
            if limit.since.elapsed() >= Duration::from_secs(1) {
                let suppressed = limit.suppressed;
                *limit = LogLimit { since: Instant::now(), lines: 0, suppressed };
            }
            if limit.lines == LOG_LINES_PER_SECOND {
                limit.suppressed += 1;
                return;
            }
            limit.lines += 1;
            std::mem::take(&mut limit.suppressed)
        };
        let text = format!("batch {id}: {error} ({suppressed} earlier errors not logged)");
        log::write(py, "warning", &text);
    }
}

fn with_successes(result: BatchResult) -> ConnectorResult {
    let is_ok = result.error.is_none();
    let successes = Some(result.successes());
    ConnectorResult { is_ok, error: result.error_text(), successes }
}
