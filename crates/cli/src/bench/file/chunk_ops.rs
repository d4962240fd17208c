use std::ops::Range;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use kvtier::Tier;
use kvtier::core::{Ctx, Key, Load, Loaded, Save, Saved};
use kvtier::file::FileTier;
use kvtier::key::BlockSums;
use kvtier::mem::{Lease, View};

use crate::BadInput;
use crate::bench::cold_memory::ColdMemory;
use crate::interrupt::Interrupted;

/// What a cell does with each chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChunkOp {
    /// Saves it; its checksums are made on the way.
    Put,
    /// Saves it; its checksums are known, as they are of a chunk that went to another tier before.
    PutSummed,
    /// Loads it.
    Get,
    /// Makes its checksums, and nothing else.
    Sum,
}

/// The size, concurrency and chunks of a cell.
pub struct CellPlan {
    pub size: usize,
    pub concurrency: usize,
    pub range: Range<u64>,
}

impl FromStr for ChunkOp {
    type Err = BadInput;

    fn from_str(text: &str) -> Result<Self, BadInput> {
        let ops = [ChunkOp::Put, ChunkOp::PutSummed, ChunkOp::Get, ChunkOp::Sum];
        let found = ops.into_iter().find(|op| op.name() == text);
        found.ok_or_else(|| {
            BadInput(format!("no operation {text:?}; choose put, put-summed, get, sum"))
        })
    }
}

impl ChunkOp {
    pub fn name(self) -> &'static str {
        match self {
            ChunkOp::Put => "put",
            ChunkOp::PutSummed => "put-summed",
            ChunkOp::Get => "get",
            ChunkOp::Sum => "sum",
        }
    }

    pub fn is_put(self) -> bool {
        matches!(self, ChunkOp::Put | ChunkOp::PutSummed)
    }

    /// Runs the operation on each chunk of a cell; the time of each in ms.
    pub fn run(
        self,
        tier: &FileTier,
        memory: &ColdMemory,
        cell: CellPlan,
        key: impl Fn(u64) -> Key + Sync,
    ) -> Result<Vec<f64>> {
        let CellPlan { size, concurrency, range } = cell;
        match self {
            ChunkOp::Put => each(concurrency, range, |n| put(tier, memory, size, key(n))),
            ChunkOp::Get => each(concurrency, range, |n| get(tier, memory, size, key(n))),
            ChunkOp::Sum => each(concurrency, range, |_| sum(memory, size)),
            ChunkOp::PutSummed => {
                // The same bytes under each key: the sums are made here, once.
                let mut lease = memory.take()?;
                lease.assume_filled(lease.len());
                let view = lease.freeze().slice(0..size);
                let _ = view.memo(|| BlockSums::from_bytes(view.as_ref()));
                let times = each(concurrency, range, |n| {
                    save(tier, key(n), view.clone()).map(|(ms, _)| ms)
                });
                give_view(memory, view);
                times
            }
        }
    }
}

/// Saves a chunk; the time in ms.
pub fn put(tier: &FileTier, memory: &ColdMemory, size: usize, key: Key) -> Result<f64> {
    let mut lease = memory.take()?;
    // Every chunk differs in its first bytes; what the rest holds is of no matter here.
    lease.as_host_mut().into_iter().for_each(|bytes| {
        let n = size.min(32);
        bytes[..n].copy_from_slice(&key.digest().as_bytes()[..n]);
    });
    lease.assume_filled(lease.len());
    // The lease has a page more than most chunks; see the churning case.
    let (ms, view) = save(tier, key, lease.freeze().slice(0..size))?;
    give_view(memory, view);
    Ok(ms)
}

fn save(tier: &FileTier, key: Key, view: View) -> Result<(f64, View)> {
    let began = Instant::now();
    let done = tier.save(&context(), vec![Save { key, from: vec![view] }]).wait();
    let ms = began.elapsed().as_secs_f64() * 1e3;
    let done = done.into_iter().next().context("a put was not answered")?;
    match done.result {
        Ok(Saved::Stored) => {
            Ok((ms, done.op.from.into_iter().next().context("a put kept its memory")?))
        }
        Ok(other) => bail!("a put was not stored: {other:?}"),
        Err(e) => Err(e.into()),
    }
}

fn get(tier: &FileTier, memory: &ColdMemory, size: usize, key: Key) -> Result<f64> {
    let lease = memory.take()?;
    let began = Instant::now();
    let done = tier.load(&context(), vec![Load { key, into: vec![lease] }]).wait();
    let ms = began.elapsed().as_secs_f64() * 1e3;
    let done = done.into_iter().next().context("a get was not answered")?;
    // Before the result is judged: a failed get must not shrink the ring.
    done.op.into.into_iter().for_each(|lease| memory.give(lease));
    match done.result {
        Ok(Loaded::Hit { len }) if len == size as u64 => Ok(ms),
        Ok(other) => bail!("a get found nothing (put first): {other:?}"),
        Err(e) => Err(e.into()),
    }
}

fn sum(memory: &ColdMemory, size: usize) -> Result<f64> {
    let mut lease = memory.take()?;
    // The bytes do not matter, only their number; the arena's memory is always initialised.
    lease.assume_filled(lease.len());
    let bytes = lease.as_host().context("host memory")?;
    let began = Instant::now();
    // Or the compiler would leave out a sum that is not used.
    std::hint::black_box(BlockSums::from_bytes(&bytes[..size]));
    let ms = began.elapsed().as_secs_f64() * 1e3;
    memory.give(lease);
    Ok(ms)
}

/// The memory of a view without other owners.
fn give_view(memory: &ColdMemory, view: View) {
    let lease: Option<Lease> = view.into_lease().ok();
    lease.into_iter().for_each(|lease| memory.give(lease));
}

fn context() -> Ctx {
    Ctx::within(Duration::from_secs(120))
}

/// Runs `work` for each number of `range`, `concurrency` at once; the time of each, in ms.
pub fn each(
    concurrency: usize,
    range: Range<u64>,
    work: impl Fn(u64) -> Result<f64> + Sync,
) -> Result<Vec<f64>> {
    let next = AtomicU64::new(range.start);
    let times = Mutex::new(Vec::new());
    let thread = || -> Result<()> {
        loop {
            // Threads take the next number when they are free, so one slow chunk does not hold up
            // others.
            let n = next.fetch_add(1, Ordering::Relaxed);
            if n >= range.end {
                return Ok(());
            }
            if crate::interrupt::asked() {
                return Err(Interrupted.into());
            }
            let ms = work(n)?;
            times.lock().unwrap_or_else(PoisonError::into_inner).push(ms);
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..concurrency).map(|_| scope.spawn(thread)).collect();
        threads
            .into_iter()
            .try_for_each(|t| t.join().unwrap_or_else(|_| bail!("a worker panicked")))
    })?;
    Ok(times.into_inner().unwrap_or_else(PoisonError::into_inner))
}
