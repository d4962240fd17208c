//! Names the chunks of a job, borrows their memory and starts the job.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::job_args::{ChunkName, JobArgs};
use super::jobs::{self, JobChunk, JobEnd, JobStart};
use super::keys::EngineKey;
use super::registered_memory::{Piece, RegisteredMemory};
use super::shared_state::{RequestState, State};
use crate::borrow::{BatchBorrow, Borrower};
use crate::catch_panic::Panicked;
use crate::open_store::Store;

/// A job that was not submitted yet.
#[derive(Debug)]
pub struct JobWork {
    pub store: Arc<Store>,
    pub state: Arc<Mutex<State>>,
    pub request: Arc<RequestState>,
    pub registered: Arc<RegisteredMemory>,
    pub args: Arc<JobArgs>,
    /// The memory of the job.
    pub borrow: BatchBorrow,
    /// The number of pieces of each chunk.
    pub pieces: usize,
}

/// A job as it ends if its code panics.
#[derive(Debug)]
pub struct JobFallback {
    store: Arc<Store>,
    request: Arc<RequestState>,
    args: Arc<JobArgs>,
    borrow: BatchBorrow,
    began: Instant,
    is_load: bool,
}

/// The valid chunks of a job, and the first reason why one is invalid.
struct Chunks<M> {
    valid: Vec<JobChunk<M>>,
    invalid: Option<String>,
}

impl JobWork {
    /// What the end of the job needs if its code panics.
    pub fn fallback(&self, is_load: bool) -> JobFallback {
        JobFallback {
            store: Arc::clone(&self.store),
            request: Arc::clone(&self.request),
            args: Arc::clone(&self.args),
            borrow: self.borrow.clone(),
            began: Instant::now(),
            is_load,
        }
    }

    /// Begins to save the chunks.
    pub fn save(self) -> impl Future<Output = JobEnd> + Send + 'static {
        let borrower = Borrower::of(self.borrow.clone(), &self.store.load_targets);
        let chunks = self.chunks(|piece| self.registered.view(piece, &borrower));
        let events = {
            let mut state = self.state();
            // `drain` waits for this memory even after the job has ended at its deadline.
            state.saves.insert(self.args.job, self.borrow.clone());
            state.events.clone()
        };
        for (events, chunk) in
            events.iter().flat_map(|log| chunks.valid.iter().map(move |c| (log, c)))
        {
            // Before the save begins: its event may come before the save returns, and without the
            // name it would be dropped.
            events.remember(*chunk.key.digest(), &self.args.names[chunk.at].0);
        }
        let start = self.start(chunks.invalid);
        jobs::save(Arc::clone(&self.store), start, Arc::clone(&self.request.ends), chunks.valid)
    }

    /// Begins to load the chunks.
    pub fn load(self) -> impl Future<Output = JobEnd> + Send + 'static {
        let borrower = Borrower::of(self.borrow.clone(), &self.store.load_targets);
        let chunks = self.chunks(|piece| self.registered.lease(piece, &borrower));
        let start = self.start(chunks.invalid);
        jobs::load(Arc::clone(&self.store), start, Arc::clone(&self.request.ends), chunks.valid)
    }

    fn chunks<M>(&self, borrow: impl Fn(Piece) -> Result<M, String>) -> Chunks<M> {
        let mut chunks = Chunks { valid: Vec::with_capacity(self.args.names.len()), invalid: None };
        for (at, name) in self.args.names.iter().enumerate() {
            // `JobArgs::pieces_per_chunk` has checked that there are as many.
            let pieces = &self.args.pieces[at * self.pieces..(at + 1) * self.pieces];
            let memory: Result<Vec<M>, String> =
                pieces.iter().map(|piece| borrow(*piece)).collect();
            // One chunk that is wrong fails alone. The engine computes it, and uses the others.
            let named = self.request.key(&name.0).and_then(|chunk| Ok((chunk, memory?)));
            match named {
                Ok((EngineKey { key, group }, memory)) => {
                    // The engine may not have the position of a chunk; then the chunk is in no
                    // chain.
                    let end = self.args.ends.get(at).copied().flatten();
                    let depth = self.request.keys.depth(group, end);
                    let set = self.args.sets.get(at).cloned();
                    chunks.valid.push(JobChunk { at, key, group, depth, set, memory });
                }
                Err(text) => _ = chunks.invalid.get_or_insert(text),
            }
        }
        chunks
    }

    fn start(&self, invalid: Option<String>) -> JobStart {
        JobStart {
            job: self.args.job,
            hint: self.request.hint,
            len: self.args.names.len(),
            invalid,
            borrow: self.borrow.clone(),
            began: Instant::now(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl JobFallback {
    /// The end of the job: its own, or that of a failed job if its code panicked.
    pub async fn end(self, job: impl Future<Output = Result<JobEnd, Panicked>>) -> JobEnd {
        if let Ok(end) = job.await {
            return end;
        }
        // What the job had submitted goes on without it, and a medium may still use its memory.
        self.borrow.returned(&self.store.return_timer, Duration::MAX).await;
        let names = &self.args.names;
        let digest = |name: &ChunkName| Some(*self.request.key(&name.0).ok()?.key.digest());
        let digests = names.iter().map(digest).collect();
        JobEnd::panicked(self.args.job, self.is_load, digests, self.began.elapsed())
    }
}
