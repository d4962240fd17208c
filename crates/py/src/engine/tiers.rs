//! Tiers inside an engine, for the package's adapters.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kvtier::core::{Digest, Hint};
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use super::events::EventLog;
use super::jobs::JobEnd;
use super::keys::{Identity, KeySpace};
use super::lookups::{Answer, Counts};
use super::submitter::Submitter;
use super::work::{ChunkName, JobArgs, JobWork, RequestState, State};
use crate::buffer;
use crate::completion::CompletionQueue;
use crate::config;
use crate::gil::without_gil;
use crate::handle::StoreHandle;
use crate::region::Region;
use crate::tiers::Tiers;

/// How often `drain` checks whether all jobs ended.
const DRAIN_INTERVAL: Duration = Duration::from_micros(500);
/// How often `drain` lets signal handlers run.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);

/// A job that ended: its number, for each chunk whether it was transferred or `None` for all, the
/// error, seconds and bytes.
type PyJobEnd = (u64, Option<Vec<bool>>, Option<(String, String)>, f64, u64);
/// Whether it was removed, and the chunk's name.
type PyEvent<'py> = (bool, Bound<'py, PyBytes>);

/// Open tiers inside an engine. One thread at a time calls it.
#[pyclass(frozen, module = "kvtier._native")]
pub struct EngineTiers {
    // Dropped before the handle, which must be the last holder of the store.
    jobs: CompletionQueue<JobEnd>,
    submitter: Submitter,
    state: Arc<Mutex<State>>,
    handle: StoreHandle,
}

/// One request of the engine: its tenant, its hints, and where its prefix chains end.
#[pyclass(frozen, module = "kvtier._native")]
#[derive(Debug)]
pub struct EngineRequest(Arc<RequestState>);

#[pymethods]
impl EngineTiers {
    /// As `Tiers`.
    #[new]
    #[pyo3(signature = (source, **settings))]
    fn new(source: &Bound<'_, PyDict>, settings: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let options = config::options(settings)?.for_engine();
        let store = config::open(source.py(), &config::TierSource::from_dict(source)?, &options)?;
        let jobs = CompletionQueue::new()
            .map_err(|e| PyOSError::new_err(format!("cannot create an event descriptor: {e}")))?;
        let submitter = Submitter::start()
            .map_err(|e| PyOSError::new_err(format!("cannot start a thread: {e}")))?;
        let handle = StoreHandle::new(Arc::new(store));
        Ok(EngineTiers { jobs, submitter, state: Arc::default(), handle })
    }

    /// The tiers, for status, usage and metrics.
    fn tiers(&self) -> Tiers {
        Tiers::over(self.handle.share())
    }

    /// Registers the memory of all jobs. Returns a text per tier with the outcome.
    fn register(&self, py: Python<'_>, region: &Bound<'_, Region>) -> PyResult<Vec<String>> {
        self.handle.check()?;
        let exported = region.get().exported()?;
        let outcome = self.tiers().register(py, exported.address(), exported.len())?;
        self.state().region = Some(exported);
        Ok(outcome)
    }

    /// States the configuration of the engine, before the first request. Returns the digest of its
    /// namespace.
    fn identify(
        &self,
        model: String,
        rank: i64,
        group_tokens: Vec<u64>,
        chunk_bytes: u64,
        fields: String,
    ) -> String {
        let keys = KeySpace::new(Identity { model, rank, group_tokens, chunk_bytes, fields });
        let digest = keys.digest().to_string();
        self.state().keys = Some(Arc::new(keys));
        digest
    }

    /// A request of this tenant.
    #[pyo3(signature = (tenant="", priority=0, retention_seconds=None))]
    fn request(
        &self,
        tenant: &str,
        priority: i8,
        retention_seconds: Option<f64>,
    ) -> PyResult<EngineRequest> {
        let unidentified = || PyRuntimeError::new_err("the engine was not identified");
        let keys = self.state().keys.clone().ok_or_else(unidentified)?;
        let tenant = keys.tenant(tenant).map_err(PyValueError::new_err)?;
        let mut hint = Hint::default();
        hint.priority = priority;
        hint.retention = retention_seconds.and_then(|s| Duration::try_from_secs_f64(s).ok());
        Ok(EngineRequest(Arc::new(RequestState { keys, tenant, hint, ends: Arc::default() })))
    }

    /// Looks a chunk up: 0 is a miss, 1 a hit, 2 a medium that is asked first. Never waits.
    fn lookup(&self, py: Python<'_>, name: &[u8], request: &EngineRequest) -> u8 {
        py.detach(|| {
            let Ok(chunk) = request.0.key(name) else { return 0 };
            let mut state = self.state();
            if state.is_load_overdue() {
                return 0;
            }
            let answer = state.lookups.lookup(self.handle.tier(), &chunk.key);
            if let (Answer::Hit, Some(events)) = (answer, &state.events) {
                events.found(*chunk.key.digest(), name);
            }
            match answer {
                Answer::Miss => 0,
                Answer::Hit => 1,
                Answer::Retry => 2,
            }
        })
    }

    /// Asks the media for keys that need it, in the background. Returns whether one is asked.
    fn flush_lookups(&self, py: Python<'_>) -> bool {
        without_gil(py, || self.state().lookups.flush(self.handle.tier()))
    }

    /// Counts a use of each chunk.
    fn touch(&self, names: Vec<ChunkName>, request: &EngineRequest) {
        let request = Arc::clone(&request.0);
        let store = self.handle.store();
        self.submitter.run(move || {
            let keys = names
                .iter()
                .filter_map(|name| request.key(&name.0).ok().map(|chunk| *chunk.key.digest()));
            let digests: Vec<Digest> = keys.collect();
            store.tier().touch(&digests, &request.hint);
        });
    }

    /// Starts to save chunks from the region. Never waits.
    fn save(&self, py: Python<'_>, job: JobArgs, request: &EngineRequest) -> PyResult<()> {
        self.handle.check()?;
        buffer::release_returned(py);
        let work = self.work(job, request)?;
        without_gil(py, || self.jobs.start(self.submitter.future(move || work.save())));
        Ok(())
    }

    /// Starts to load chunks into the region. Never waits.
    fn load(&self, py: Python<'_>, job: JobArgs, request: &EngineRequest) -> PyResult<()> {
        self.handle.check()?;
        buffer::release_returned(py);
        let work = self.work(job, request)?;
        without_gil(py, || {
            let deadline = Instant::now().checked_add(self.handle.settings.timeout);
            deadline.map(|deadline| self.state().loads.insert(work.args.job, deadline));
            self.jobs.start(self.submitter.future(move || work.load()))
        });
        Ok(())
    }

    /// The jobs that ended since the last call. Never waits.
    fn poll(&self, py: Python<'_>) -> PyResult<Vec<PyJobEnd>> {
        self.handle.check()?;
        let ended = without_gil(py, || {
            self.collect();
            std::mem::take(&mut self.state().ended)
        });
        buffer::release_returned(py);
        Ok(ended.into_iter().map(to_python).collect())
    }

    /// The number of jobs that have not ended.
    #[getter]
    fn pending(&self) -> usize {
        self.jobs.pending()
    }

    /// Waits until every job ended and no medium uses the region. Returns whether that is so within
    /// the time; without one it waits for as long as it takes.
    #[pyo3(signature = (timeout_seconds=None))]
    fn drain(&self, py: Python<'_>, timeout_seconds: Option<f64>) -> PyResult<bool> {
        self.handle.check()?;
        let timeout = timeout_seconds.and_then(|s| Duration::try_from_secs_f64(s).ok());
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let is_idle = py.detach(|| self.wait_idle(Instant::now() + SIGNAL_INTERVAL));
            buffer::release_returned(py);
            if is_idle || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(is_idle);
            }
            py.check_signals()?;
        }
    }

    /// From now on records what is stored and removed.
    fn record_events(&self) {
        let events = Arc::new(EventLog::default());
        self.handle.tier().listen(Arc::clone(&events) as _);
        self.state().events = Some(events);
    }

    /// The events since the last call, in order, and how many were dropped.
    fn take_events<'py>(&self, py: Python<'py>) -> (Vec<PyEvent<'py>>, u64) {
        let Some(events) = self.state().events.clone() else { return (Vec::new(), 0) };
        let (events, dropped) = py.detach(|| events.take());
        let to_python =
            |event: super::events::ChunkEvent| (event.is_removed, PyBytes::new(py, &event.name));
        (events.into_iter().map(to_python).collect(), dropped)
    }

    /// Counts of lookups by name.
    fn lookup_counts(&self) -> [(&'static str, u64); 4] {
        let Counts { hits, misses, retries, failures } = self.state().lookups.counts;
        [("hit", hits), ("miss", misses), ("retry", retries), ("failure", failures)]
    }

    /// Ends all work and returns the region. Jobs must have been drained.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.handle.close(py)?;
        py.detach(|| {
            self.collect();
            self.state().region = None;
        });
        buffer::release_returned(py);
        Ok(())
    }
}

impl fmt::Debug for EngineTiers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EngineTiers({:?})", self.handle.tier())
    }
}

fn to_python(end: JobEnd) -> PyJobEnd {
    let done = if end.is_whole() { None } else { Some(end.done) };
    let error = end.error.map(|error| (format!("{:?}", error.kind), error.text));
    (end.job, done, error, end.took.as_secs_f64(), end.bytes)
}

impl EngineTiers {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The work of a job, to be done on the submitter's thread.
    fn work(&self, args: JobArgs, request: &EngineRequest) -> PyResult<JobWork> {
        let unregistered = || PyRuntimeError::new_err("no memory is registered");
        let region = self.state().region.clone().ok_or_else(unregistered)?;
        let pieces = args.pieces().map_err(PyValueError::new_err)?;
        Ok(JobWork {
            store: self.handle.store(),
            state: Arc::clone(&self.state),
            request: Arc::clone(&request.0),
            region,
            args,
            pieces,
        })
    }

    /// Polls the jobs and records what those that ended show.
    fn collect(&self) {
        let completed = self.jobs.poll();
        let mut state = self.state();
        state.late_saves.retain(|borrow| !borrow.is_returned());
        for completion in completed {
            let end = completion.result;
            let (failed, stored) = outcome(&end);
            state.lookups.mark_failed(failed);
            state.lookups.mark_stored(stored);
            state.loads.remove(&end.job);
            let late = state.saves.remove(&end.job).filter(|borrow| !borrow.is_returned());
            state.late_saves.extend(late);
            state.ended.push(end);
        }
    }

    /// Waits until no job runs and all memory is back; returns whether that is so.
    fn wait_idle(&self, until: Instant) -> bool {
        loop {
            self.collect();
            if self.jobs.pending() == 0 && self.state().late_saves.is_empty() {
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(DRAIN_INTERVAL);
        }
    }
}

/// The chunks that must be misses from now on, and those that were stored.
fn outcome(end: &JobEnd) -> (Vec<Digest>, Vec<Digest>) {
    let at = |places: &mut dyn Iterator<Item = usize>| -> Vec<Digest> {
        places.filter_map(|at| end.digests.get(at).copied().flatten()).collect()
    };
    let done = &mut (0..end.done.len()).filter(|at| end.done[*at]);
    if !end.is_load {
        return (at(&mut end.failed_saves.iter().copied()), at(done));
    }
    (at(&mut (0..end.done.len()).filter(|at| !end.done[*at])), Vec::new())
}
