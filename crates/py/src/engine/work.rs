//! What a job needs on the thread that submits it, and the state that it shares with the class.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use kvtier::core::Hint;
use pyo3::Borrowed;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::events::EventLog;
use super::jobs::{self, ChainEnds, JobChunk, JobEnd, JobStart, LoadCounts};
use super::keys::{EngineKey, KeySpace, Tenant};
use super::lookups::Lookups;
use crate::borrow::BatchBorrow;
use crate::borrower::Borrower;
use crate::region::Exported;
use crate::store::Store;

/// The name of a chunk as the engine passes it.
#[derive(Debug)]
pub struct ChunkName(pub Box<[u8]>);

impl<'a, 'py> FromPyObject<'a, 'py> for ChunkName {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        Ok(ChunkName(object.cast::<PyBytes>()?.as_bytes().into()))
    }
}

/// The chunks of a job, a tuple in Python.
#[derive(Debug, FromPyObject)]
pub struct JobArgs {
    #[pyo3(item(0))]
    pub job: u64,
    #[pyo3(item(1))]
    pub names: Vec<ChunkName>,
    /// Where the pieces of the chunks begin in the region, chunk by chunk.
    #[pyo3(item(2))]
    pub offsets: Vec<usize>,
    /// The position of each chunk's end in its request, in tokens.
    #[pyo3(item(3))]
    pub ends: Vec<Option<u64>>,
    #[pyo3(item(4))]
    pub piece_bytes: usize,
}

impl JobArgs {
    /// The number of pieces of each chunk.
    ///
    /// # Errors
    /// If chunks have different numbers.
    pub fn pieces(&self) -> Result<usize, String> {
        match self.names.len() {
            0 => Ok(0),
            keys if self.offsets.len().is_multiple_of(keys) => Ok(self.offsets.len() / keys),
            keys => Err(format!(
                "{keys} chunks and {} pieces of memory: give each chunk as many",
                self.offsets.len()
            )),
        }
    }
}

/// One request of the engine.
#[derive(Debug)]
pub struct RequestState {
    pub keys: Arc<KeySpace>,
    pub tenant: Tenant,
    pub hint: Hint,
    pub ends: Arc<ChainEnds>,
}

impl RequestState {
    /// As [`KeySpace::key`], for the tenant of the request.
    ///
    /// # Errors
    /// If the name is none.
    pub fn key(&self, name: &[u8]) -> Result<EngineKey, String> {
        self.keys.key(&self.tenant, name)
    }
}

/// What the class and its jobs share.
#[derive(Debug, Default)]
pub struct State {
    pub keys: Option<Arc<KeySpace>>,
    pub region: Option<Arc<Exported>>,
    pub lookups: Lookups,
    pub events: Option<Arc<EventLog>>,
    /// The deadlines of the loads in flight, by job.
    pub loads: HashMap<u64, Instant>,
    /// The memory of the saves in flight, by job.
    pub saves: HashMap<u64, BatchBorrow>,
    /// The memory of saves that ended before a medium returned it.
    pub late_saves: Vec<BatchBorrow>,
    pub ended: Vec<JobEnd>,
    /// What became of the chunks of all loads that ended.
    pub load_counts: LoadCounts,
}

impl State {
    /// Whether a load has passed its deadline, because a medium does not return its memory.
    pub fn is_load_overdue(&self) -> bool {
        // Asked for each lookup: the clock is read only while loads are in flight.
        !self.loads.is_empty() && {
            let now = Instant::now();
            self.loads.values().any(|deadline| *deadline < now)
        }
    }

    /// How many loads have passed their deadline.
    pub fn overdue_loads(&self, now: Instant) -> usize {
        self.loads.values().filter(|deadline| **deadline < now).count()
    }
}

/// A job that was not submitted yet.
#[derive(Debug)]
pub struct JobWork {
    pub store: Arc<Store>,
    pub state: Arc<Mutex<State>>,
    pub request: Arc<RequestState>,
    pub region: Arc<Exported>,
    pub args: JobArgs,
    /// The number of pieces of each chunk.
    pub pieces: usize,
}

/// The valid chunks of a job, and the first reason why one is invalid.
struct Chunks<M> {
    valid: Vec<JobChunk<M>>,
    invalid: Option<String>,
}

impl JobWork {
    /// Begins to save the chunks.
    pub fn save(self) -> impl Future<Output = JobEnd> + Send + 'static {
        let borrower = Borrower::new(&self.store.load_targets);
        let bytes = self.args.piece_bytes;
        let chunks = self.chunks(|at| self.region.view(at, bytes, &borrower));
        let borrow = borrower.into_borrow();
        let events = {
            let mut state = self.state();
            // `drain` waits for this memory even after the job has ended at its deadline.
            state.saves.insert(self.args.job, borrow.clone());
            state.events.clone()
        };
        for (events, chunk) in
            events.iter().flat_map(|log| chunks.valid.iter().map(move |c| (log, c)))
        {
            // Before the save begins: its event may come before the save returns, and without the
            // name it would be dropped.
            events.remember(*chunk.key.digest(), &self.args.names[chunk.at].0);
        }
        let start = self.start(chunks.invalid, borrow);
        jobs::save(Arc::clone(&self.store), start, Arc::clone(&self.request.ends), chunks.valid)
    }

    /// Begins to load the chunks.
    pub fn load(self) -> impl Future<Output = JobEnd> + Send + 'static {
        let borrower = Borrower::new(&self.store.load_targets);
        let bytes = self.args.piece_bytes;
        let chunks = self.chunks(|at| self.region.lease(at, bytes, &borrower));
        let start = self.start(chunks.invalid, borrower.into_borrow());
        jobs::load(Arc::clone(&self.store), start, Arc::clone(&self.request.ends), chunks.valid)
    }

    fn chunks<M>(&self, borrow: impl Fn(usize) -> Result<M, String>) -> Chunks<M> {
        let mut chunks = Chunks { valid: Vec::with_capacity(self.args.names.len()), invalid: None };
        for (at, name) in self.args.names.iter().enumerate() {
            // `JobArgs::pieces` has checked that there are as many offsets.
            let offsets = &self.args.offsets[at * self.pieces..(at + 1) * self.pieces];
            let memory: Result<Vec<M>, String> = offsets.iter().map(|at| borrow(*at)).collect();
            // One chunk that is wrong fails alone. The engine computes it, and uses the others.
            let named = self.request.key(&name.0).and_then(|chunk| Ok((chunk, memory?)));
            match named {
                Ok((EngineKey { key, group }, memory)) => {
                    // The engine may not have the position of a chunk; then the chunk is in no
                    // chain.
                    let end = self.args.ends.get(at).copied().flatten();
                    let depth = self.request.keys.depth(group, end);
                    chunks.valid.push(JobChunk { at, key, group, depth, memory });
                }
                Err(text) => _ = chunks.invalid.get_or_insert(text),
            }
        }
        chunks
    }

    fn start(&self, invalid: Option<String>, borrow: BatchBorrow) -> JobStart {
        JobStart {
            job: self.args.job,
            hint: self.request.hint,
            len: self.args.names.len(),
            invalid,
            borrow,
            began: Instant::now(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
