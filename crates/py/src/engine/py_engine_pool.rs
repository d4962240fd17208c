//! The pages of one host pool of an engine, for engines whose threads wait for their calls.
//!
//! Any number of threads may call at once. A call releases the GIL and ends by the deadline of the
//! tiers. A load alone may take longer, where the kernel still writes into its memory: the engine
//! reuses the memory of a call that returned. Until then all lookups are misses, so that no further
//! request waits.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use kvtier::core::{Class, Ctx, Digest, Hint, Hold, Key, LookedUp, Mode, Presence, TierExt};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use super::job_args::{JobArgs, PageName};
use super::jobs::{ChainEnds, JobEnd};
use super::keys::{EngineKey, Identity, KeySpace, Tenant};
use super::lookups::{Answer, BEGIN_MAX, LOOKUP_TIMEOUT};
use super::open_engine::{OpenEngine, OpenSlot};
use super::registered_memory::Piece;
use super::shared_state::{RequestState, State};
use crate::borrow::BatchBorrow;
use crate::buffer;
use crate::catch_panic::{PANIC_TEXT, catch_panic};
use crate::region::Region;
use crate::wait::{wait, wait_for_buffers, wait_until};

/// How long a page that could not be loaded is a miss, if it is not stored meanwhile. Some ranks of
/// an engine never store a page.
const RETRY_FAILED: Duration = Duration::from_secs(10);
/// The pages of a prefix that are looked up first: mostly a prefix that misses does so at its head.
const FIRST_PAGES: usize = 8;

/// What a call moved: for each page whether, or `None` for all; the error; seconds and bytes.
type PyTransfer = (Option<Vec<bool>>, Option<(String, String)>, f64, u64);

/// What the pages of a pool are, a tuple in Python.
#[derive(Debug, FromPyObject)]
pub struct PoolIdentity {
    /// The model's name, for people.
    #[pyo3(item(0))]
    model: String,
    /// The rank whose bytes the pages hold.
    #[pyo3(item(1))]
    rank: i64,
    #[pyo3(item(2))]
    page_tokens: u64,
    #[pyo3(item(3))]
    page_bytes: u64,
    /// The canonical text of all fields that decide what the bytes mean.
    #[pyo3(item(4))]
    fields: String,
    /// PyTorch's name of the type of all elements, if it is known.
    #[pyo3(item(5))]
    dtype: Option<String>,
}

/// The pages of a call, a tuple in Python.
#[derive(Debug, FromPyObject)]
pub struct PageArgs {
    #[pyo3(item(0))]
    names: Vec<PageName>,
    /// The memory of the pages, page by page. Each page has as many pieces.
    #[pyo3(item(1))]
    addresses: Vec<usize>,
    #[pyo3(item(2))]
    bytes: Vec<usize>,
    /// The number of pages before the first one, if known, and the name of the last of them.
    #[pyo3(item(3))]
    depth: Option<u32>,
    #[pyo3(item(4))]
    parent: Option<PageName>,
}

/// The pages of one host pool.
#[derive(Debug)]
#[pyclass(frozen, module = "kvtier._native")]
pub struct EnginePool {
    slot: Arc<OpenSlot>,
    keys: Arc<KeySpace>,
    tenant: Tenant,
    page_tokens: u64,
}

#[pymethods]
impl EnginePool {
    /// The digest of the namespace.
    #[getter]
    fn digest(&self) -> String {
        self.keys.digest().to_string()
    }

    /// The number of consecutive pages from the first one that are stored.
    fn prefix(&self, py: Python<'_>, names: Vec<PageName>) -> PyResult<usize> {
        let found = self.found(py, &names, Mode::Prefix)?;
        Ok(found.iter().take_while(|is_found| **is_found).count())
    }

    /// For each page whether it is stored.
    fn present(&self, py: Python<'_>, names: Vec<PageName>) -> PyResult<Vec<bool>> {
        self.found(py, &names, Mode::Each)
    }

    /// Saves pages from the registered memory, or from `memory`. A page and the pages of the same
    /// name of the pools `together` are one atomic set: all of them are hits, or none is.
    #[pyo3(signature = (pages, memory=Vec::new(), together=Vec::new()))]
    fn save(
        &self,
        py: Python<'_>,
        pages: PageArgs,
        memory: Vec<PyRef<'_, Region>>,
        together: Vec<PyRef<'_, EnginePool>>,
    ) -> PyResult<PyTransfer> {
        let sets = self.sets(&pages.names, &together);
        self.transfer(py, PoolCall { pages, sets, memory: &memory, is_load: false })
    }

    /// Loads pages into the registered memory, or into `memory`.
    #[pyo3(signature = (pages, memory=Vec::new()))]
    fn load(
        &self,
        py: Python<'_>,
        pages: PageArgs,
        memory: Vec<PyRef<'_, Region>>,
    ) -> PyResult<PyTransfer> {
        self.transfer(py, PoolCall { pages, sets: Vec::new(), memory: &memory, is_load: true })
    }

    /// Deletes pages. Returns how many were there.
    fn remove(&self, py: Python<'_>, names: Vec<PageName>) -> PyResult<u64> {
        let removed = self.with_open(py, |open| {
            let keys: Arc<[Key]> = self.page_keys(&names).into();
            let ctx = open.handle.ctx(Class::Background);
            wait(py, open.handle.tier().remove_waiting(&ctx, keys))
        })?;
        removed
            .map(|removed| removed.removed as u64)
            .map_err(|e| PyValueError::new_err(crate::result::error_chain(&e)))
    }
}

impl EnginePool {
    /// The pages of this identity.
    ///
    /// # Errors
    /// `ValueError` if no key can have the model's name or the rank.
    pub(super) fn new(slot: Arc<OpenSlot>, identity: PoolIdentity) -> PyResult<Self> {
        let PoolIdentity { model, rank, page_tokens, page_bytes: chunk_bytes, fields, dtype } =
            identity;
        let group_tokens = vec![(0, page_tokens)];
        let identity = Identity { model, rank, group_tokens, chunk_bytes, fields, dtype };
        let keys = KeySpace::new(identity).map_err(PyValueError::new_err)?;
        let tenant = keys.tenant("").map_err(PyValueError::new_err)?;
        Ok(EnginePool { slot, keys: Arc::new(keys), tenant, page_tokens })
    }

    fn page_keys(&self, names: &[PageName]) -> Vec<Key> {
        // A page's name is always that of a key: its hash has the right length, and group 0 exists.
        names.iter().filter_map(|name| Some(self.key(name)?.key)).collect()
    }

    fn key(&self, name: &PageName) -> Option<EngineKey> {
        self.keys.key(&self.tenant, &name.0.0).ok()
    }

    /// The atomic set of each page with those of other pools; none without other pools.
    fn sets(&self, names: &[PageName], together: &[PyRef<'_, Self>]) -> Vec<Arc<[Digest]>> {
        if together.is_empty() {
            return Vec::new();
        }
        let digest = |pool: &Self, name| Some(*pool.key(name)?.key.digest());
        let others = |name| together.iter().filter_map(move |pool| digest(pool, name));
        names
            .iter()
            .map(|name| digest(self, name).into_iter().chain(others(name)).collect())
            .collect()
    }

    /// Calls `work` with the open tiers, and forgets them without the GIL: this may be their last
    /// holder, who waits for their threads. A panic is an error, since an engine's thread that it
    /// ended would be missed by all other ranks.
    fn with_open<T>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&OpenEngine) -> PyResult<T>,
    ) -> PyResult<T> {
        let open = self.slot.open()?;
        let done = catch_unwind(AssertUnwindSafe(|| work(&open)));
        py.detach(move || drop(open));
        done.unwrap_or_else(|_| Err(PyRuntimeError::new_err(PANIC_TEXT)))
    }

    /// For each page whether it is stored; in prefix mode up to the first that is not.
    fn found(&self, py: Python<'_>, names: &[PageName], mode: Mode) -> PyResult<Vec<bool>> {
        self.with_open(py, |open| self.found_in(py, open, names, mode))
    }

    fn found_in(
        &self,
        py: Python<'_>,
        open: &OpenEngine,
        names: &[PageName],
        mode: Mode,
    ) -> PyResult<Vec<bool>> {
        let mut lookup = py.detach(|| self.lookup_in_memory(open, names, mode));
        if !lookup.unknown.is_empty() {
            self.ask_media(py, open, &mut lookup, mode)?;
        }
        let mut found: Vec<bool> = lookup.found.iter().map(|found| found.is_hit()).collect();
        match mode {
            // Nothing behind the first miss counts.
            Mode::Prefix => {
                let end = found.iter().position(|is_found| !is_found);
                found.truncate(end.map_or(names.len(), |end| end + 1));
            }
            Mode::Each => found.resize(names.len(), false),
        }
        py.detach(|| {
            let mut state = open.state();
            for is_found in &found {
                state.lookups.count(if *is_found { Answer::Hit } else { Answer::Miss });
            }
        });
        Ok(found)
    }

    fn lookup_in_memory(&self, open: &OpenEngine, names: &[PageName], mode: Mode) -> PageLookup {
        let mut lookup = PageLookup::default();
        // A hit would make the request wait for a medium that does not answer.
        if open.state().is_load_overdue() {
            return lookup;
        }
        let head = if mode == Mode::Prefix { FIRST_PAGES.min(names.len()) } else { names.len() };
        for names in [&names[..head], &names[head..]] {
            let keys = self.page_keys(names);
            let mut found = open.handle.tier().lookup_in_memory(&keys);
            let state = open.state();
            for (key, found) in keys.iter().zip(&mut found) {
                if state.lookups.failed.contains(key.digest()) {
                    *found = Presence::Miss;
                }
            }
            drop(state);
            lookup.add(keys, found, mode);
            if mode == Mode::Prefix && lookup.has_ended() {
                break;
            }
        }
        lookup
    }

    /// Asks the media for the pages that memory has no answer for.
    fn ask_media(
        &self,
        py: Python<'_>,
        open: &OpenEngine,
        lookup: &mut PageLookup,
        mode: Mode,
    ) -> PyResult<()> {
        if py.detach(|| open.state().lookups.is_paused(Instant::now())) {
            return Ok(());
        }
        let keys: Arc<[Key]> = lookup.unknown.iter().map(|unknown| unknown.key.clone()).collect();
        let answer = self.media_answer(py, open, Arc::clone(&keys), mode)?;
        py.detach(|| {
            let found = answer.map_or_else(Vec::new, |answer| answer.found);
            let mut state = open.state();
            let mut answered = 0;
            for (unknown, found) in lookup.unknown.iter().zip(found) {
                answered += usize::from(found != Presence::Unknown);
                let has_failed = state.lookups.failed.contains(unknown.key.digest());
                lookup.found[unknown.at] = if has_failed { Presence::Miss } else { found };
            }
            // A prefix needs no answer behind its first miss.
            let asked = if mode == Mode::Prefix { answered.min(1) } else { keys.len() };
            state.lookups.record_answers(answered, asked.max(1), Instant::now());
        });
        Ok(())
    }

    /// What the media answer; `None` without an answer in time. A lookup may block before it has
    /// begun, on a file of a device that hangs, so it begins on a thread of its own.
    fn media_answer(
        &self,
        py: Python<'_>,
        open: &OpenEngine,
        keys: Arc<[Key]>,
        mode: Mode,
    ) -> PyResult<Option<LookedUp>> {
        let timeout = LOOKUP_TIMEOUT.min(open.handle.settings.timeout);
        let ctx = Ctx::within(timeout);
        let store = Arc::clone(&open.asker.store);
        let begun = open.asker.thread.future_if_free(move || async move {
            // No hold: a page that is evicted before its load is a miss then.
            store.tier().lookup_waiting(&ctx, keys, mode, Hold::None).await
        });
        let Some(begun) = begun else { return Ok(None) };
        let until = Instant::now().checked_add(timeout + BEGIN_MAX);
        Ok(wait_until(py, begun, until)?.and_then(Result::ok).and_then(Result::ok))
    }

    fn transfer(&self, py: Python<'_>, call: PoolCall<'_, '_>) -> PyResult<PyTransfer> {
        self.with_open(py, |open| self.transfer_in(py, open, call))
    }

    fn transfer_in(
        &self,
        py: Python<'_>,
        open: &OpenEngine,
        call: PoolCall<'_, '_>,
    ) -> PyResult<PyTransfer> {
        let PoolCall { pages, sets, memory, is_load } = call;
        buffer::release_returned(py);
        let (job, mut registered) = {
            let mut state = open.state();
            (state.next_job(), Arc::clone(&state.registered))
        };
        for region in memory {
            Arc::make_mut(&mut registered).add(region.exported()?);
        }
        let (request, args) = self.job(job, pages)?;
        let args = JobArgs { sets, ..args };
        let work = open.work(args, request, registered)?;
        let call = Call { state: Arc::clone(&open.state), job, borrow: work.borrow.clone() };
        if is_load {
            // Before it starts: lookups are misses from its deadline until its end.
            let deadline = Instant::now().checked_add(open.handle.settings.timeout);
            deadline.map(|deadline| open.state().loads.insert(job, deadline));
        }
        let fallback = work.fallback(is_load);
        let end = wait_for_buffers(
            py,
            fallback.end(catch_panic(async move {
                if is_load { work.load().await } else { work.save().await }
            })),
        )?;
        py.detach(|| {
            open.state().record_end(open.handle.tier(), &end, Some(RETRY_FAILED));
            drop(call);
        });
        Ok(to_python(end))
    }

    /// The job of a call, and the place of its pages in their prefix chain.
    fn job(&self, job: u64, pages: PageArgs) -> PyResult<(Arc<RequestState>, JobArgs)> {
        let PageArgs { names, addresses, bytes, depth, parent } = pages;
        if addresses.len() != bytes.len() {
            let (addresses, bytes) = (addresses.len(), bytes.len());
            let text = format!("{addresses} addresses and {bytes} lengths: give as many");
            return Err(PyValueError::new_err(text));
        }
        let last =
            parent.and_then(|name| self.key(&name)).zip(depth.and_then(|n| n.checked_sub(1)));
        let ends = last.map(|(last, depth)| ChainEnds::at(depth, *last.key.digest()));
        let request = Arc::new(RequestState {
            keys: Arc::clone(&self.keys),
            tenant: self.tenant.clone(),
            hint: Hint::default(),
            ends: Arc::new(ends.unwrap_or_default()),
        });
        let end = |at: usize| Some((u64::from(depth?) + at as u64 + 1) * self.page_tokens);
        let args = JobArgs {
            job,
            ends: (0..names.len()).map(end).collect(),
            names: names.into_iter().map(|name| name.0).collect(),
            pieces: addresses
                .into_iter()
                .zip(bytes)
                .map(|(address, bytes)| Piece { address, bytes })
                .collect(),
            sets: Vec::new(),
        };
        Ok((request, args))
    }
}

/// A call that moves pages, from or to the registered memory or `memory`.
struct PoolCall<'a, 'py> {
    pages: PageArgs,
    /// The atomic set of each page; none if the pages are independent of each other.
    sets: Vec<Arc<[Digest]>>,
    memory: &'a [PyRef<'py, Region>],
    is_load: bool,
}

/// What is known of the pages of a lookup.
#[derive(Debug, Default)]
struct PageLookup {
    /// Fewer than the pages where the rest needs no answer.
    found: Vec<Presence>,
    unknown: Vec<UnknownPage>,
}

/// A page that a medium must be asked for, and its place.
#[derive(Debug)]
struct UnknownPage {
    at: usize,
    key: Key,
}

impl PageLookup {
    fn add(&mut self, keys: Vec<Key>, found: Vec<Presence>, mode: Mode) {
        for (key, found) in keys.into_iter().zip(found) {
            // Behind a page that must be asked for, all others of a prefix are asked for with it.
            if found == Presence::Unknown || (mode == Mode::Prefix && !self.unknown.is_empty()) {
                self.unknown.push(UnknownPage { at: self.found.len(), key });
            }
            self.found.push(found);
        }
    }

    /// Whether a prefix ends within these pages.
    fn has_ended(&self) -> bool {
        self.found.contains(&Presence::Miss)
    }
}

/// A call whose memory a medium may still use, also when a signal has ended it.
struct Call {
    state: Arc<Mutex<State>>,
    job: u64,
    borrow: BatchBorrow,
}

impl Drop for Call {
    fn drop(&mut self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.loads.remove(&self.job);
        state.saves.remove(&self.job);
        if !self.borrow.is_returned() {
            state.late_memory.push(self.borrow.clone());
        }
    }
}

fn to_python(end: JobEnd) -> PyTransfer {
    let done = if end.is_whole() { None } else { Some(end.done) };
    let error = end.error.map(|error| (format!("{:?}", error.kind), error.text));
    (done, error, end.took.as_secs_f64(), end.bytes)
}
