//! Tiers inside an engine, for the package's adapters.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvtier::core::{Digest, Hint};
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use super::chunk_events::EventLog;
use super::job_args::{ChunkName, RowJobArgs};
use super::jobs::JobEnd;
use super::keys::{EngineKey, Identity, KeySpace};
use super::lookups::{Answer, Asker, Counts};
use super::open_engine::{END_MAX, OpenEngine, OpenSlot, ends_within};
use super::py_engine_pool::{EnginePool, PoolIdentity};
use super::running_jobs::RunningJobs;
use super::shared_state::RequestState;
use super::submitter::Submitter;
use crate::buffer;
use crate::gil::without_gil;
use crate::open;
use crate::open_store::Store;
use crate::py_tiers::Tiers;
use crate::region::Region;
use crate::store_handle::StoreHandle;

/// How often `drain` lets signal handlers run.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);
/// Chunks whose use is counted while the index is locked.
const TOUCHED_AT_ONCE: usize = 1024;

/// A job that ended: its number, for each chunk whether it was transferred or `None` for all, the
/// error, seconds and bytes.
type PyJobEnd = (u64, Option<Vec<bool>>, Option<(String, String)>, f64, u64);
/// Whether it was removed, and the chunk's name.
type PyEvent<'py> = (bool, Bound<'py, PyBytes>);

/// Open tiers inside an engine, until `close`. One thread at a time calls it.
#[pyclass(frozen, module = "kvtier._native")]
#[derive(Debug)]
pub struct EngineTiers(Arc<OpenSlot>);

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
        let options = open::options(settings)?.for_engine();
        let store = open::open(source.py(), &open::TierSource::from_dict(source)?, &options)?;
        let store = Arc::new(store);
        let no_thread = |e| PyOSError::new_err(format!("cannot start a thread: {e}"));
        let submitter = Submitter::start("kvtier-engine").map_err(no_thread)?;
        let thread = Submitter::start("kvtier-lookup").map_err(no_thread)?;
        let asker = Asker { store: Arc::clone(&store), thread };
        // Tiers that prepare for such lookups begin now, and not with the first request.
        let _ = store.tier().lookup_in_memory(&[]);
        let state = Arc::default();
        let jobs = RunningJobs::new(Arc::clone(&state), &submitter, &store)
            .map_err(|e| PyOSError::new_err(format!("cannot create an event descriptor: {e}")))?;
        let handle = StoreHandle::new(store);
        let open = OpenEngine { jobs, submitter, asker, state, handle };
        Ok(EngineTiers(Arc::new(OpenSlot::new(open))))
    }

    /// The tiers, for status, usage and metrics. They stay open while this object exists, even after
    /// `close`.
    fn tiers(&self) -> PyResult<Tiers> {
        Ok(Tiers::over(self.0.open()?.handle.share()))
    }

    /// Registers memory of jobs, beside what was registered before. Returns a text per tier with the
    /// outcome.
    fn register(&self, py: Python<'_>, region: &Bound<'_, Region>) -> PyResult<Vec<String>> {
        let open = self.0.open()?;
        // The export is kept until `close`: the engine cannot unmap its memory under a job.
        let exported = region.get().exported()?;
        let registered = self.tiers()?.register(py, exported.address(), exported.len());
        // Jobs need the region and not its registration with the media, which only saves work. Small
        // memory may hold no whole page of the kernel's.
        let outcome =
            registered.unwrap_or_else(|e| vec![format!("not with the media: {}", e.value(py))]);
        Arc::make_mut(&mut open.state().registered).add(exported);
        Ok(outcome)
    }

    /// States the configuration of the engine, before the first request. Returns the digest of the
    /// namespace.
    fn identify(&self, identity: Identity) -> PyResult<String> {
        let keys = KeySpace::new(identity).map_err(PyValueError::new_err)?;
        let digest = keys.digest().to_string();
        self.0.open()?.state().keys = Some(Arc::new(keys));
        Ok(digest)
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
        let keys = self.0.open()?.state().keys.clone().ok_or_else(unidentified)?;
        let tenant = keys.tenant(tenant).map_err(PyValueError::new_err)?;
        let mut hint = Hint::default();
        hint.priority = priority;
        hint.retention = retention_seconds.and_then(|s| Duration::try_from_secs_f64(s).ok());
        Ok(EngineRequest(Arc::new(RequestState { keys, tenant, hint, ends: Arc::default() })))
    }

    /// Looks a chunk up: 0 is a miss, 1 a hit, 2 a medium that is asked first. Never waits.
    fn lookup(&self, py: Python<'_>, name: &[u8], request: &EngineRequest) -> u8 {
        // To release the GIL and to take it again costs more than the lookup, so that happens only
        // where the state is in use. No thread needs the GIL to release the state, and everything
        // below answers from memory.
        let Some(open) = self.0.get() else { return 0 };
        let free = open.state.try_lock().ok().filter(|state| !state.is_load_overdue());
        let answer = match free {
            Some(state) => open.lookup(state, name, &request.0),
            None => py.detach(|| {
                open.collect_overdue();
                open.lookup(open.state(), name, &request.0)
            }),
        };
        match answer {
            Answer::Miss => 0,
            Answer::Hit => 1,
            Answer::Retry => 2,
        }
    }

    /// Asks the media for keys that need it, in the background. Returns whether one is asked.
    fn flush_lookups(&self, py: Python<'_>) -> bool {
        let Ok(open) = self.0.open() else { return false };
        without_gil(py, || open.state().lookups.flush(&open.asker))
    }

    /// Counts a use of each chunk, in the background; `ends` are the positions of the chunks' ends
    /// in the request, in tokens. Where too much else is to be done, the uses are not counted.
    fn touch(&self, names: Vec<ChunkName>, ends: Vec<Option<u64>>, request: &EngineRequest) {
        let Ok(open) = self.0.open() else { return };
        let request = Arc::clone(&request.0);
        let store = open.handle.store();
        open.submitter.run_if_free(move || touch(&store, &request, &names, &ends));
    }

    /// Starts to save chunks from the region. Never waits.
    fn save(&self, py: Python<'_>, job: RowJobArgs, request: &EngineRequest) -> PyResult<()> {
        let open = self.0.open()?;
        buffer::release_returned(py);
        let work = open.row_work(job, Arc::clone(&request.0))?;
        without_gil(py, || {
            let fallback = work.fallback(false);
            open.jobs.start(fallback.end(open.submitter.future(move || work.save())))
        });
        Ok(())
    }

    /// Starts to load chunks into the region. Never waits.
    fn load(&self, py: Python<'_>, job: RowJobArgs, request: &EngineRequest) -> PyResult<()> {
        let open = self.0.open()?;
        buffer::release_returned(py);
        let work = open.row_work(job, Arc::clone(&request.0))?;
        without_gil(py, || {
            let deadline = Instant::now().checked_add(open.handle.settings.timeout);
            // Before it starts: a job that ends at once must find its entry to remove.
            deadline.map(|deadline| open.state().loads.insert(work.args.job, deadline));
            let fallback = work.fallback(true);
            open.jobs.start(fallback.end(open.submitter.future(move || work.load())))
        });
        Ok(())
    }

    /// Whether `poll` may return something. The engine asks in every step of its scheduler, mostly
    /// while its caches are cold.
    fn may_have_ended(&self) -> bool {
        self.0.get().is_some_and(|open| open.jobs.may_have_ended())
    }

    /// The jobs that ended since the last call. Never waits.
    fn poll(&self, py: Python<'_>) -> PyResult<Vec<PyJobEnd>> {
        let open = self.0.open()?;
        let ended = without_gil(py, || {
            open.collect();
            open.jobs.take_ended()
        });
        buffer::release_returned(py);
        Ok(ended.into_iter().map(to_python).collect())
    }

    /// The number of jobs that have not ended.
    #[getter]
    fn pending(&self) -> usize {
        self.0.open().map_or(0, |open| open.jobs.pending())
    }

    /// Waits until every job ended and no medium uses the region. Returns whether that is so within
    /// the time; without one it waits for as long as it takes.
    #[pyo3(signature = (timeout_seconds=None))]
    fn drain(&self, py: Python<'_>, timeout_seconds: Option<f64>) -> PyResult<bool> {
        let open = self.0.open()?;
        let timeout = timeout_seconds.and_then(|s| Duration::try_from_secs_f64(s).ok());
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let is_idle = py.detach(|| open.wait_idle(Instant::now() + SIGNAL_INTERVAL));
            buffer::release_returned(py);
            if is_idle || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(is_idle);
            }
            py.check_signals()?;
        }
    }

    /// From now on records what is stored and removed.
    fn record_events(&self) -> PyResult<()> {
        let open = self.0.open()?;
        let events = Arc::new(EventLog::default());
        open.handle.tier().listen(Arc::clone(&events) as _);
        open.state().events = Some(events);
        Ok(())
    }

    /// The oldest events, in order, and how many were dropped.
    fn take_events<'py>(&self, py: Python<'py>) -> (Vec<PyEvent<'py>>, u64) {
        let events = self.0.open().ok().and_then(|open| open.state().events.clone());
        let Some(events) = events else { return (Vec::new(), 0) };
        let (events, dropped) = py.detach(|| events.take());
        let to_python = |event: super::chunk_events::ChunkEvent| {
            (event.is_removed, PyBytes::new(py, &event.name))
        };
        (events.into_iter().map(to_python).collect(), dropped)
    }

    /// Counts of lookups by name.
    fn lookup_counts(&self) -> Vec<(&'static str, u64)> {
        let Ok(open) = self.0.open() else { return Vec::new() };
        let Counts { hits, misses, retries, failures } = open.state().lookups.counts;
        vec![("hit", hits), ("miss", misses), ("retry", retries), ("failure", failures)]
    }

    /// How many chunks were loaded, and how many were not by the name of the reason, of the jobs
    /// that `poll` has seen end.
    fn load_counts(&self) -> (u64, Vec<(&'static str, u64)>) {
        let Ok(open) = self.0.open() else { return (0, Vec::new()) };
        let counts = open.state().load_counts;
        (counts.hits, counts.misses().to_vec())
    }

    /// Pages of one host pool, whose bytes have the meaning that `fields` states. Each page has
    /// `page_bytes` bytes and `page_tokens` tokens.
    fn pool(&self, identity: PoolIdentity) -> PyResult<EnginePool> {
        self.0.open()?;
        EnginePool::new(Arc::clone(&self.0), identity)
    }

    /// The number of loads that are past their deadline and have not ended, because a medium still
    /// uses their memory.
    fn overdue_loads(&self, py: Python<'_>) -> usize {
        let Ok(open) = self.0.open() else { return 0 };
        without_gil(py, || {
            open.collect_overdue();
            open.state().overdue_loads(Instant::now())
        })
    }

    /// Ends all work, returns the region, and ends the tiers with their threads and rings. Returns
    /// whether those ended: a medium that hangs keeps them until it answers. Jobs must have been
    /// drained.
    fn close(&self, py: Python<'_>) -> PyResult<bool> {
        let Ok(open) = self.0.open() else { return Ok(true) };
        // Where a medium keeps memory this raises, and everything stays as it is for another try.
        open.handle.close(py)?;
        self.0.clear();
        py.detach(|| {
            open.collect();
            open.state().registered = Arc::default();
        });
        buffer::release_returned(py);
        Ok(py.detach(|| ends_within(open, END_MAX)))
    }
}

/// Counts a use of chunks of a request, in the order of their prefix chains.
fn touch(store: &Store, request: &RequestState, names: &[ChunkName], ends: &[Option<u64>]) {
    let mut chains: BTreeMap<u32, Vec<(Option<u32>, Digest)>> = BTreeMap::new();
    for (name, end) in names.iter().zip(ends) {
        if let Ok(EngineKey { key, group }) = request.key(&name.0) {
            let depth = request.keys.depth(group, *end);
            chains.entry(group).or_default().push((depth, *key.digest()));
        }
    }
    for mut chain in chains.into_values() {
        chain.sort_by_key(|(depth, _)| *depth);
        let digests: Vec<Digest> = chain.into_iter().map(|(_, digest)| digest).collect();
        // Some at a time, since lookups wait for the index meanwhile. The head comes last, as the
        // most recent of all: nothing of the chain can be used without it.
        digests.rchunks(TOUCHED_AT_ONCE).for_each(|some| store.tier().touch(some, &request.hint));
    }
}

fn to_python(end: JobEnd) -> PyJobEnd {
    let done = if end.is_whole() { None } else { Some(end.done) };
    let error = end.error.map(|error| (format!("{:?}", error.kind), error.text));
    (end.job, done, error, end.took.as_secs_f64(), end.bytes)
}
