//! Measures the operations of a benchmark, cell by cell.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use kvtier::core::key::{ChunkHash, KeyId, KvRank, ObjectKey};
use kvtier::core::{Ctx, Digest, Key, Namespace};
use kvtier::file::inspect::Scratch;
use kvtier::file::{FileConfig, FileTier};
use kvtier::{Observe, Tier};
use serde_json::Value;

use super::Plan;
use super::chunk_ops::{CellPlan, ChunkOp, each, put};
use super::fill_case::Case;
use super::space_needed::Need;
use crate::BadInput;
use crate::bench::cold_memory::ColdMemory;
use crate::json::json;
use crate::process_usage::{cpu_s, percentile, rss_mib, system_s};

/// A warm-up pass has this many chunks for each in flight.
const WARM_UP_ROUNDS: u64 = 2;

/// A tier, memory and keys for all cells of one size and concurrency.
pub struct Stage {
    tier: FileTier,
    memory: ColdMemory,
    case: Case,
    size: usize,
    concurrency: usize,
    /// Chunks in a cell.
    count: u64,
    /// Of those, the number that remains after a put of all.
    kept: u64,
    /// Chunks of the pass before a cell's clock starts.
    warm_up: u64,
    ns: Arc<Namespace>,
    /// Dropped last.
    _scratch: Scratch,
}

impl Stage {
    pub fn new(plan: &Plan, size: usize, concurrency: usize) -> Result<Self> {
        let Need { count, file, capacity, .. } = Need::of(plan, size, concurrency);
        // A get must find what it asks for: only chunks that are surely still there.
        let fits = (capacity as f64 * 0.95 / file as f64) as u64;
        // A directory of its own: the bench's cap must not evict chunks of a cache in the same place.
        let scratch =
            std::fs::create_dir_all(&plan.path).and_then(|()| Scratch::new(&plan.path, "bench"));
        let scratch = scratch.map_err(|e| {
            BadInput(format!("cannot write to {}: {e}; check the path", plan.path.display()))
        })?;
        // Every chunk that the bench has in flight is let in, and a churning directory's are a page
        // longer.
        let inflight = (file + 4096).saturating_mul(concurrency as u64);
        let config = FileConfig::new(scratch.path(), capacity)
            .with_engine(plan.engine)
            .with_inflight(concurrency.max(256) as u32, inflight.max(1 << 30));
        let tier = FileTier::open(config).map_err(crate::cannot_open)?;
        // What fills the directory for a churning put is a page longer.
        let memory = ColdMemory::new(size + 4096, concurrency)?;
        tier.register(&memory.arena)?;
        // Keys of this run alone: what an earlier one left behind must not be found.
        let now = format!("{:?}{}", std::time::SystemTime::now(), std::process::id());
        let ns = Arc::new(Namespace::new("bench", Digest::derive("kvtier bench", now.as_bytes())));
        let kept = fits.clamp(1, count);
        Ok(Stage {
            tier,
            memory,
            case: plan.case,
            size,
            concurrency,
            count,
            kept,
            warm_up: (WARM_UP_ROUNDS * concurrency as u64).min(kept),
            ns,
            _scratch: scratch,
        })
    }

    /// Measures the operations in order, and leaves nothing behind.
    pub fn play(&self, ops: &[ChunkOp], cells: &mut Vec<Value>) -> Result<()> {
        // A first get needs something to read; this put is not measured.
        let first =
            ops.iter().find(|op| **op != ChunkOp::Sum).copied().filter(|op| *op == ChunkOp::Get);
        let filled = first.map_or(Ok(()), |_| self.all(ChunkOp::Put).map(drop));
        let measured = filled.and_then(|()| {
            ops.iter().try_for_each(|op| {
                cells.push(self.cell(*op)?);
                Ok(())
            })
        });
        self.clear()?;
        measured
    }

    fn cell(&self, op: ChunkOp) -> Result<Value> {
        if op.is_put() {
            // Every put begins with the directory of its case: empty, or full of old chunks.
            self.clear()?;
            self.fill()?;
        }
        // Threads, rings and pages exist before the clock starts.
        self.warm_up(op)?;
        let before = self.tier.status();
        let began = std::time::Instant::now();
        let cpu = cpu_s();
        let system = system_s();
        let mut ms = self.all(op)?;
        let wall = began.elapsed().as_secs_f64();
        let cpu = cpu_s() - cpu;
        let system = system_s() - system;
        let gb = ms.len() as f64 * self.size as f64 / 1e9;
        let after = self.tier.status();
        let counted = |name| after.counter(name) - before.counter(name);
        Ok(json!({
            "op": op.name(), "size": self.size, "concurrency": self.concurrency, "case": format!("{:?}", self.case).to_lowercase(),
            "engine": format!("{:?}", self.tier.engine()), "memory": format!("{:?}", self.memory.arena.backing()),
            "chunks": ms.len(), "mb_per_s": gb * 1e3 / wall, "cpu_s_per_gb": cpu / gb, "system_s_per_gb": system / gb,
            "p50_ms": percentile(&mut ms, 0.5), "p99_ms": percentile(&mut ms, 0.99), "rss_mib": rss_mib(),
            "evicted": counted("evicted"), "recycled": counted("recycled"),
        }))
    }

    fn plan(&self, range: Range<u64>) -> CellPlan {
        CellPlan { size: self.size, concurrency: self.concurrency, range }
    }

    /// One operation on all chunks that it is for; the time of each in ms.
    fn all(&self, op: ChunkOp) -> Result<Vec<f64>> {
        let range =
            if op == ChunkOp::Get { self.count - self.kept..self.count } else { 0..self.count };
        op.run(&self.tier, &self.memory, self.plan(range), |n| self.key(n))
    }

    /// Makes the directory full, where the case asks for that.
    fn fill(&self) -> Result<()> {
        let size = match self.case {
            Case::Fresh => return Ok(()),
            Case::Churning => self.size + 4096,
            Case::Recycled => self.size,
        };
        let old = |n| self.key(self.count + n);
        each(self.concurrency, 0..self.count + self.concurrency as u64, |n| {
            put(&self.tier, &self.memory, size, old(n))
        })
        .map(drop)
    }

    /// A pass before the clock starts: the engine, the memory and the directory have then been used
    /// once.
    fn warm_up(&self, op: ChunkOp) -> Result<()> {
        let range = match op {
            ChunkOp::Get => self.count - self.warm_up..self.count,
            ChunkOp::Sum => 0..self.warm_up,
            // What filled the directory was the warm-up.
            ChunkOp::Put | ChunkOp::PutSummed if self.case != Case::Fresh => return Ok(()),
            ChunkOp::Put | ChunkOp::PutSummed => self.count..self.count + self.warm_up,
        };
        op.run(&self.tier, &self.memory, self.plan(range.clone()), |n| self.key(n))?;
        // Or the measured puts would find them present.
        if op.is_put() { self.remove(range) } else { Ok(()) }
    }

    /// Removes all that was put.
    fn clear(&self) -> Result<()> {
        let old = if self.case == Case::Fresh { 0 } else { self.count + self.concurrency as u64 };
        self.remove(0..self.count + old)
    }

    fn remove(&self, range: Range<u64>) -> Result<()> {
        let all: Arc<[Key]> = range.map(|n| self.key(n)).collect();
        let removed = self.tier.remove(&Ctx::within(Duration::from_secs(600)), all).wait();
        removed.context("cannot remove the bench's chunks").map(drop)
    }

    fn key(&self, n: u64) -> Key {
        let hash = ChunkHash::new(&n.to_be_bytes());
        let key =
            ObjectKey { model: "bench".into(), rank: KvRank(0), group: 0, hash, salt: "".into() };
        Key::new(Arc::clone(&self.ns), KeyId::Object(key))
    }
}
