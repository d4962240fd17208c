use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use kvtier::core::key::{ChunkHash, KeyId, KvRank, ObjectKey};
use kvtier::core::{Ctx, Digest, Key, Namespace};
use kvtier::file::inspect::Scratch;
use kvtier::file::{FileConfig, FileTier};
use kvtier::{Observe, Tier};
use serde_json::{Value, json};

use super::Plan;
use super::cell::{Op, each, put};
use super::memory::Memory;
use crate::BadInput;
use crate::usage::{cpu_s, percentile, rss_mib, system_s};

/// What puts find in the directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Case {
    /// Room for all.
    Fresh,
    /// A full directory, of chunks of another length.
    Churning,
    /// A full directory, of chunks of the same length.
    Recycled,
}

impl FromStr for Case {
    type Err = BadInput;

    fn from_str(text: &str) -> Result<Self, BadInput> {
        match text {
            "fresh" => Ok(Case::Fresh),
            "churning" => Ok(Case::Churning),
            "recycled" => Ok(Case::Recycled),
            _ => Err(BadInput(format!("no case {text:?}; choose fresh, churning, recycled"))),
        }
    }
}

/// A tier, memory and keys for all cells of one size and concurrency.
pub struct Stage {
    tier: FileTier,
    memory: Memory,
    case: Case,
    size: usize,
    concurrency: usize,
    /// Chunks in a cell.
    count: u64,
    /// Of those, the last so many are still there after a put of all.
    kept: u64,
    ns: Arc<Namespace>,
    /// Dropped last.
    _scratch: Scratch,
}

impl Stage {
    pub fn new(plan: &Plan, size: usize, concurrency: usize) -> Result<Self> {
        let count = ((plan.gb * 1e9 / size as f64).ceil() as u64).max(1);
        let file = (size as u64).next_multiple_of(4096) + 4096;
        let capacity = plan.capacity.unwrap_or(match plan.case {
            Case::Fresh => (count + 16) * (file + 4096) * 11 / 10,
            // The tier keeps below a high mark of its cap.
            Case::Churning | Case::Recycled => (count + concurrency as u64) * file * 104 / 100,
        });
        let fits = (capacity as f64 * 0.95 / file as f64) as u64;
        // A directory of its own: the bench's cap must not cost a cache that lies here anything.
        let scratch = std::fs::create_dir_all(&plan.path).and_then(|()| Scratch::new(&plan.path, "bench"));
        let scratch =
            scratch.map_err(|e| BadInput(format!("cannot write to {}: {e}; check the path", plan.path.display())))?;
        let config = FileConfig::new(scratch.path(), capacity).with_engine(plan.engine);
        let tier = FileTier::open(config).map_err(crate::cannot_open)?;
        // What fills the directory for a churning put is a page longer.
        let memory = Memory::new(size + 4096, concurrency)?;
        tier.register(&memory.arena)?;
        // Keys of this run alone: what an earlier one left behind must not be found.
        let now = format!("{:?}{}", std::time::SystemTime::now(), std::process::id());
        let ns = Arc::new(Namespace::new("bench", Digest::of("kvtier bench", now.as_bytes())));
        Ok(Stage {
            tier,
            memory,
            case: plan.case,
            size,
            concurrency,
            count,
            kept: fits.clamp(1, count),
            ns,
            _scratch: scratch,
        })
    }

    /// Measures the operations in order, and leaves nothing behind.
    pub fn play(&self, ops: &[Op], cells: &mut Vec<Value>) -> Result<()> {
        // A first get needs something to read; this put is not measured.
        let first = ops.iter().find(|op| **op != Op::Sum).copied().filter(|op| *op == Op::Get);
        let filled = first.map_or(Ok(()), |_| self.all(Op::Put).map(drop));
        let measured = filled.and_then(|()| {
            ops.iter().try_for_each(|op| {
                cells.push(self.cell(*op)?);
                Ok(())
            })
        });
        self.clear()?;
        measured
    }

    fn cell(&self, op: Op) -> Result<Value> {
        if op.is_put() {
            self.clear()?;
            self.fill()?;
        }
        let before = self.tier.status();
        let (began, cpu, system) = (std::time::Instant::now(), cpu_s(), system_s());
        let mut ms = self.all(op)?;
        let (wall, cpu, system) = (began.elapsed().as_secs_f64(), cpu_s() - cpu, system_s() - system);
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

    /// One operation on all chunks that it is for; the time of each in ms.
    fn all(&self, op: Op) -> Result<Vec<f64>> {
        let range = if op == Op::Get { self.count - self.kept..self.count } else { 0..self.count };
        op.run(&self.tier, &self.memory, (self.size, self.concurrency), range, |n| self.key(n))
    }

    /// Makes the directory full, where the case asks for that.
    fn fill(&self) -> Result<()> {
        let size = match self.case {
            Case::Fresh => return Ok(()),
            Case::Churning => self.size + 4096,
            Case::Recycled => self.size,
        };
        let old = |n| self.key(self.count + n);
        each(self.concurrency, 0..self.count + self.concurrency as u64, |n| put(&self.tier, &self.memory, size, old(n)))
            .map(drop)
    }

    /// Removes all that was put.
    fn clear(&self) -> Result<()> {
        let old = if self.case == Case::Fresh { 0 } else { self.count + self.concurrency as u64 };
        let all: Arc<[Key]> = (0..self.count + old).map(|n| self.key(n)).collect();
        let removed = self.tier.remove(&Ctx::within(Duration::from_secs(600)), all).wait();
        removed.context("cannot remove the bench's chunks").map(drop)
    }

    fn key(&self, n: u64) -> Key {
        let hash = ChunkHash::new(&n.to_be_bytes());
        let key = ObjectKey { model: "bench".into(), rank: KvRank(0), group: 0, hash, salt: "".into() };
        Key::new(Arc::clone(&self.ns), KeyId::Object(key))
    }
}
