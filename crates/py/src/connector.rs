//! The client that LMCache's `native_plugin` loads.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use kvtier::core::Mode;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::config::{self, Options};
use crate::desk::Desk;
use crate::end::End;
use crate::handle::Handle;
use crate::name::Name;
use crate::store::{Spelling, Store};
use crate::work::How;
use crate::{buffer, log};

/// At most this many errors are logged a second; the others are counted.
const LINES_MAX: u32 = 16;

/// Batches of saves, loads, lookups and removes over tiers.
///
/// Submitting never waits and never raises but in a forked child: what is wrong is told by
/// `drain_completions`, and logged. Buffers are held until their batch has ended, whether their
/// owner still refers to them or not.
#[pyclass(frozen, subclass, module = "kvtier")]
pub struct Connector {
    desk: Desk<Told>,
    said: Mutex<Said>,
}

/// What was logged in this second, and what was not.
struct Said {
    since: Instant,
    lines: u32,
    unsaid: u64,
}

/// Whether a batch succeeded, what went wrong, one answer a key.
type Told = (bool, String, Option<Vec<bool>>);
/// What `drain_completions` tells of one batch: its id, and how it ended.
type Completion = (u64, bool, String, Option<Vec<bool>>);

#[pymethods]
impl Connector {
    /// `source` has just one of `tiers` and `config`; `settings` are those of a store.
    #[new]
    #[pyo3(signature = (source, **settings))]
    fn new(source: &Bound<'_, PyDict>, settings: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let options = config::options(settings)?;
        if options.spelling == Some(Spelling::Engine) {
            return Err(PyValueError::new_err(
                "engine_keys = True: a Connector takes keys of LMCache's multi-process mode alone; leave engine_keys out, or use a Store",
            ));
        }
        // LMCache loads it as a plugin, which a busy port must not cost its tiers.
        let options = Options { spelling: Some(Spelling::Mp), needs_metrics: false, ..options };
        let store = config::open(source.py(), &config::Source::of(source)?, &options)?;
        Ok(Connector {
            desk: Desk::new(Handle::new(Arc::new(store)))?,
            said: Mutex::new(Said { since: Instant::now(), lines: 0, unsaid: 0 }),
        })
    }

    /// A descriptor that is readable while completions wait. `drain_completions` clears it.
    fn event_fd(&self) -> PyResult<i32> {
        self.desk.fd()
    }

    /// Saves each buffer under its key. Its completion is good only if all were saved.
    fn submit_batch_set(
        &self,
        py: Python<'_>,
        keys: Vec<Name>,
        bufs: Vec<Bound<'_, PyAny>>,
    ) -> PyResult<u64> {
        let lent = buffer::lend(keys.len(), &bufs, &self.desk.handle.busy, buffer::view);
        self.desk.submit_with(py, keys, lent, Store::save, |end| (end.is_whole(), end.text(), None))
    }

    /// Loads into each buffer the chunk of just its length.
    fn submit_batch_get(
        &self,
        py: Python<'_>,
        keys: Vec<Name>,
        bufs: Vec<Bound<'_, PyAny>>,
    ) -> PyResult<u64> {
        let lent = buffer::lend(keys.len(), &bufs, &self.desk.handle.busy, buffer::lease);
        self.desk.submit_with(
            py,
            keys,
            lent,
            |store, keys, into| store.load(keys, into, How::of(true, false)),
            each,
        )
    }

    /// Which keys are there. Each that is found stays for 60 s, or until it is loaded.
    fn submit_batch_exists(&self, py: Python<'_>, keys: Vec<Name>) -> PyResult<u64> {
        // A lookup that could not be made is a miss for each, which LMCache takes only from a good
        // end.
        let tell = |end| {
            let (_, error, each) = each(end);
            (true, error, each)
        };
        self.desk.submit(py, keys, |store, keys| store.lookup(keys, Mode::Each, true), tell)
    }

    /// Removes keys that nobody holds.
    fn submit_batch_delete(&self, py: Python<'_>, keys: Vec<Name>) -> PyResult<u64> {
        self.desk.submit(py, keys, Store::remove, each)
    }

    /// What ended since the last time: `(id, ok, error, one bool a key or None)`. Never waits.
    fn drain_completions(&self, py: Python<'_>) -> PyResult<Vec<Completion>> {
        let ends = self.desk.drain(py)?;
        for (id, (_, error, _)) in ends.iter().filter(|(_, (_, error, _))| !error.is_empty()) {
            self.warn(py, *id, error);
        }
        Ok(ends.into_iter().map(|(id, (ok, error, each))| (id, ok, error, each)).collect())
    }

    /// How many batches are under way or wait to be drained.
    #[getter]
    fn pending(&self) -> PyResult<usize> {
        self.desk.pending()
    }

    /// Takes no more work, and waits until all that was taken has ended.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.desk.handle.close(py)
    }

    fn __repr__(&self) -> String {
        format!("<kvtier.Connector over {:?}>", self.desk.handle.tier().caps().name)
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
        let unsaid = {
            let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
            if said.since.elapsed() >= Duration::from_secs(1) {
                *said = Said { since: Instant::now(), lines: 0, unsaid: said.unsaid };
            }
            if said.lines == LINES_MAX {
                said.unsaid += 1;
                return;
            }
            said.lines += 1;
            std::mem::take(&mut said.unsaid)
        };
        // A log that raises must not cost those who wait for these ends.
        log::write(py, "warning", &format!("batch {id}: {error} (and {unsaid} unsaid before it)"));
    }
}

fn each(end: End) -> Told {
    let each = end.each();
    (end.fault.is_none(), end.text(), Some(each))
}
