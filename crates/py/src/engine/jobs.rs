//! Saves and loads of whole jobs.
//!
//! A job names many chunks and, for each, pieces of the registered region. Its chunks are grouped
//! into runs, each a part of one prefix chain, so that eviction keeps a chunk longer than those that need it.
//!
//! When a job ends:
//!
//! - At the latest at its deadline, with the chunks that were transferred until then.
//! - A load ends only when no medium can write into its memory any more, since the engine reuses the
//!   memory at once. That is later than the deadline only where the kernel does not answer: a device
//!   or mount that hangs. Until then all lookups are misses, so that no further request waits.
//! - A save may end before the kernel has read its memory. If the engine then overwrites it, the
//!   stored checksums do not match, and the chunk is a miss. `drain` waits for such saves too.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kvtier::core::{
    Chain, Class, Ctx, Digest, ErrorKind, Hint, Key, Load, Loaded, Save, Saved, ShedReason, TierExt,
};
use kvtier::{Lease, View};

use super::join_all::join_all;
use super::load_counts::LoadCounts;
use crate::borrow::BatchBorrow;
use crate::catch_panic::PANIC_TEXT;
use crate::open_store::Store;
use crate::ops::shed_error;
use crate::result::{BatchError, BatchResult};

/// One chunk of a job, with its memory.
#[derive(Debug)]
pub struct JobChunk<M> {
    /// Its place in the job.
    pub at: usize,
    pub key: Key,
    pub group: u32,
    /// The number of chunks before it in its group of its request; `None` if unknown.
    pub depth: Option<u32>,
    /// The atomic set that it is saved as a part of.
    pub set: Option<Arc<[Digest]>>,
    pub memory: Vec<M>,
}

/// Consecutive chunks of one prefix chain, or chunks of unknown order.
#[derive(Debug)]
struct Run<M> {
    chain: Option<Chain>,
    chunks: Vec<JobChunk<M>>,
}

/// A job that ended.
#[derive(Debug)]
pub struct JobEnd {
    /// The engine's number of it.
    pub job: u64,
    /// For each chunk whether it was transferred.
    pub done: Vec<bool>,
    pub error: Option<BatchError>,
    pub took: Duration,
    pub bytes: u64,
    pub is_load: bool,
    /// The digests of the chunks by place; `None` for an invalid key.
    pub digests: Vec<Option<Digest>>,
    /// The places of saves that failed without a decision of the tier: their chunks may appear later.
    pub failed_saves: Vec<usize>,
    /// The keys of saves whose chunks were there already.
    pub present: Vec<Key>,
    /// What became of the chunks of a load.
    pub loads: LoadCounts,
}

/// The last chunk of each run that a request stored, by group and depth: the parents of the next
/// runs.
#[derive(Debug, Default)]
pub struct ChainEnds(Mutex<HashMap<u32, ChainEnd>>);

#[derive(Clone, Copy, Debug)]
struct ChainEnd {
    depth: u32,
    digest: Digest,
}

impl ChainEnds {
    /// The end of a chain of group 0: the chunk at this depth.
    pub fn at(depth: u32, digest: Digest) -> Self {
        ChainEnds(Mutex::new(HashMap::from([(0, ChainEnd { depth, digest })])))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u32, ChainEnd>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Splits the chunks of a job into runs, in the order of their chains.
    fn runs<M>(&self, mut chunks: Vec<JobChunk<M>>) -> Vec<Run<M>> {
        // The engine names chunks in any order. A tier learns a chain from the order in a batch.
        chunks.sort_by_key(|chunk| (chunk.group, chunk.depth));
        let mut ends = self.lock();
        let mut runs: Vec<Run<M>> = Vec::new();
        let mut last: Option<(u32, Option<u32>)> = None;
        for chunk in chunks {
            let (group, depth) = (chunk.group, chunk.depth);
            let continues = last.is_some_and(|(last_group, last_depth)| {
                // Chunks of unknown depth (`None` after `None`) form one run too, without a chain.
                last_group == group && last_depth.map(|last| last.checked_add(1)) == depth.map(Some)
            });
            last = Some((group, depth));
            if let Some(run) = runs.last_mut().filter(|_| continues) {
                run.chunks.push(chunk);
            } else {
                // The parent is what this request stored or loaded before, in an earlier job.
                let chain = depth.and_then(|depth| chain_at(ends.get(&group), depth));
                runs.push(Run { chain, chunks: vec![chunk] });
            }
        }
        // Only now: the runs above must see the ends of earlier jobs, and not of this one.
        for run in &runs {
            if let Some((JobChunk { key, group, .. }, depth)) =
                run.chunks.last().and_then(|chunk| Some((chunk, chunk.depth?)))
            {
                ends.insert(*group, ChainEnd { depth, digest: *key.digest() });
            }
        }
        runs
    }
}

/// The position of a run; `None` if its parent is unknown.
fn chain_at(end: Option<&ChainEnd>, depth: u32) -> Option<Chain> {
    if depth == 0 {
        return Some(Chain { parent: None, depth });
    }
    // After a gap the parent is unknown: the engine had the chunks between itself.
    end.filter(|end| end.depth.checked_add(1) == Some(depth))
        .map(|end| Chain { parent: Some(end.digest), depth })
}

/// What a job is submitted with, beside its chunks.
pub struct JobStart {
    pub job: u64,
    pub hint: Hint,
    /// One entry per chunk of the job: the reason why a key or its memory is invalid.
    pub len: usize,
    pub invalid: Option<String>,
    pub borrow: BatchBorrow,
    pub began: Instant,
}

/// The deadline and the priority of a job's operations, and what the engine expects of its chunks.
fn ctx(store: &Store, start: &JobStart, class: Class, chain: Option<Chain>) -> Ctx {
    let ctx = store.ctx(class).with_hint(start.hint);
    chain.into_iter().fold(ctx, Ctx::with_chain)
}

impl JobEnd {
    fn new<M>(start: &JobStart, chunks: &[JobChunk<M>], is_load: bool) -> Self {
        let mut digests = vec![None; start.len];
        chunks.iter().for_each(|chunk| digests[chunk.at] = Some(*chunk.key.digest()));
        let invalid = |text: &String| BatchError { kind: ErrorKind::Invalid, text: text.clone() };
        JobEnd {
            job: start.job,
            done: vec![false; start.len],
            error: start.invalid.as_ref().map(invalid),
            took: Duration::ZERO,
            bytes: 0,
            is_load,
            digests,
            failed_saves: Vec::new(),
            present: Vec::new(),
            loads: LoadCounts::default(),
        }
    }

    /// A job whose code panicked. None of its chunks counts as transferred, and any may have been.
    pub fn panicked(job: u64, is_load: bool, digests: Vec<Option<Digest>>, took: Duration) -> Self {
        let len = digests.len();
        let failed = if is_load { len as u64 } else { 0 };
        JobEnd {
            job,
            done: vec![false; len],
            error: Some(BatchError { kind: ErrorKind::Io, text: PANIC_TEXT.into() }),
            took,
            bytes: 0,
            is_load,
            digests,
            failed_saves: if is_load { Vec::new() } else { (0..len).collect() },
            present: Vec::new(),
            loads: LoadCounts { failed, ..LoadCounts::default() },
        }
    }

    /// Whether every chunk was transferred.
    pub fn is_whole(&self) -> bool {
        self.done.iter().all(|done| *done)
    }

    fn record(&mut self, result: BatchResult) {
        // The first error is mostly the cause of the others.
        if let (None, Some(error)) = (&self.error, result.error) {
            self.error = Some(error);
        }
    }
}

/// Saves the chunks of a job.
pub async fn save(
    store: Arc<Store>,
    start: JobStart,
    ends: Arc<ChainEnds>,
    chunks: Vec<JobChunk<View>>,
) -> JobEnd {
    let mut end = JobEnd::new(&start, &chunks, false);
    let runs = ends.runs(chunks).into_iter().map(|run| save_run(&store, &start, run));
    for (at, done) in join_all(runs.collect()).await.into_iter().flatten() {
        let mut result = BatchResult::new(0);
        match done.result {
            Ok(Saved::Stored) => {
                end.done[at] = true;
                end.bytes += done.op.from.iter().map(|view| view.len() as u64).sum::<u64>();
            }
            // A chunk that the admission policy declines is no failure: later it is a miss.
            Ok(Saved::Shed(ShedReason::NotWorth)) => end.done[at] = true,
            Ok(Saved::Present) => {
                end.done[at] = true;
                end.present.push(done.op.key);
            }
            Ok(Saved::Shed(reason)) => {
                let (kind, text) = shed_error(reason);
                result.record(kind, text.into());
            }
            // Other answers may be added to the type: none of them is taken for a stored chunk.
            Ok(_) => result.record(ErrorKind::Full, "the chunk was not kept".into()),
            Err(e) => {
                // The medium may still publish the chunk, from rows that the engine reuses by then.
                // Its checksum would not match; as a miss it is not even asked for.
                end.failed_saves.push(at);
                result.record_error(&e);
            }
        }
        end.record(result);
    }
    end.took = start.began.elapsed();
    end
}

type RunDone<O, T> = Vec<(usize, kvtier::core::Done<O, T>)>;

async fn save_run(store: &Store, start: &JobStart, run: Run<View>) -> RunDone<Save, Saved> {
    let ctx = ctx(store, start, Class::Write, run.chain);
    if run.chunks.iter().all(|chunk| chunk.set.is_none()) {
        return save_chunks(store, ctx, run.chunks).await;
    }
    // A batch of a tier is a part of one atomic set, so each chunk is a batch of its own.
    let keys: Vec<Digest> = run.chunks.iter().map(|chunk| *chunk.key.digest()).collect();
    let saves = run.chunks.into_iter().enumerate().map(|(at, chunk)| {
        let part = ctx.for_part(&keys, &[at]);
        let part = chunk.set.iter().map(Arc::clone).fold(part, Ctx::with_atomic_set);
        save_chunks(store, part, vec![chunk])
    });
    join_all(saves.collect()).await.into_iter().flatten().collect()
}

async fn save_chunks(store: &Store, ctx: Ctx, chunks: Vec<JobChunk<View>>) -> RunDone<Save, Saved> {
    let places: Vec<usize> = chunks.iter().map(|chunk| chunk.at).collect();
    let ops = chunks.into_iter().map(|chunk| Save { key: chunk.key, from: chunk.memory });
    places.into_iter().zip(store.tier().save_waiting(&ctx, ops.collect()).await).collect()
}

/// Loads the chunks of a job. Ends when its memory was returned.
pub async fn load(
    store: Arc<Store>,
    start: JobStart,
    ends: Arc<ChainEnds>,
    chunks: Vec<JobChunk<Lease>>,
) -> JobEnd {
    let mut end = JobEnd::new(&start, &chunks, true);
    end.loads.invalid = (start.len - chunks.len()) as u64;
    let wanted: HashMap<usize, u64> = chunks
        .iter()
        .map(|chunk| (chunk.at, chunk.memory.iter().map(|lease| lease.len() as u64).sum()))
        .collect();
    let runs = ends.runs(chunks).into_iter().map(|run| load_run(&store, &start, run));
    for (at, done) in join_all(runs.collect()).await.into_iter().flatten() {
        let mut result = BatchResult::new(0);
        match done.result {
            // A shorter chunk would leave bytes of another chunk in the rest of the row.
            Ok(Loaded::Hit { len }) if wanted.get(&at) == Some(&len) => {
                end.done[at] = true;
                end.bytes += len;
                end.loads.hits += 1;
            }
            Ok(Loaded::Hit { len }) => {
                end.loads.length += 1;
                let text = format!("the chunk {} has {len} bytes", done.op.key.digest());
                result.record(ErrorKind::Invalid, text);
            }
            Ok(Loaded::Miss(reason)) => end.loads.miss(reason),
            Ok(_) => end.loads.failed += 1,
            Err(e) => {
                end.loads.error(&e);
                result.record_error(&e);
            }
        }
        end.record(result);
    }
    // The engine gives the rows of an ended job to other chunks at once, so no deadline here: a row
    // that a medium may still write to must not be one of them.
    start.borrow.returned(&store.return_timer, Duration::MAX).await;
    end.took = start.began.elapsed();
    end
}

async fn load_run(store: &Store, start: &JobStart, run: Run<Lease>) -> RunDone<Load, Loaded> {
    let places: Vec<usize> = run.chunks.iter().map(|chunk| chunk.at).collect();
    let ops = run.chunks.into_iter().map(|chunk| Load { key: chunk.key, into: chunk.memory });
    // Before all else: a request of a user waits for these chunks.
    let ctx = ctx(store, start, Class::Demand, run.chain);
    places.into_iter().zip(store.tier().load_waiting(&ctx, ops.collect()).await).collect()
}
