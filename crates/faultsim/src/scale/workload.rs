//! What the nodes save and use.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kvtier_core::{Ctx, Hint, Key, Namespace, Save, Saved, Tier};
use kvtier_key::{ChunkHash, Digest, KvRank, ObjectKey};
use kvtier_mem::View;
use tokio::time::{Instant, sleep};

use super::node::ScaleNode;
use super::{CHUNK_BYTES, FULL, ScaleSetup};
use crate::world::World;

/// Saves a second of one caller, at most.
const CALLER_RATE_MAX: f64 = 5.0;
/// The time limit of a save.
const DEADLINE: Duration = Duration::from_secs(5);

/// Saves of all nodes.
#[derive(Debug, Default)]
pub struct Saves {
    stored: AtomicU64,
    shed: AtomicU64,
    next: AtomicU64,
}

impl Saves {
    pub fn reset(&self) {
        self.stored.store(0, Ordering::Relaxed);
        self.shed.store(0, Ordering::Relaxed);
    }

    /// Those that were stored, and those that were shed.
    pub fn counts(&self) -> (u64, u64) {
        (self.stored.load(Ordering::Relaxed), self.shed.load(Ordering::Relaxed))
    }
}

/// The key of the chunk of that number.
pub fn key(n: u64) -> Key {
    let hash = Digest::derive("kvtier faultsim scale", &n.to_le_bytes());
    let hash = ChunkHash::new(hash.as_bytes());
    let id = ObjectKey::new("model", KvRank(0), 0, hash, "").expect("a valid key");
    Key::new(namespace(), id.into())
}

fn namespace() -> Arc<Namespace> {
    Arc::new(Namespace::new("", Digest::derive("kvtier faultsim", b"geometry")))
}

/// Starts the callers of nodes.
#[derive(Debug)]
pub struct Workload {
    world: Arc<World>,
    saves: Arc<Saves>,
    callers: usize,
    /// From one save of a caller to the next.
    pause: Duration,
    uses: u64,
    chunks: u64,
}

impl Workload {
    pub fn new(world: &Arc<World>, setup: &ScaleSetup, saves: &Arc<Saves>) -> Self {
        let rate = setup.churn * setup.chunks as f64 / setup.nodes as f64;
        let callers = (rate / CALLER_RATE_MAX).ceil().max(1.0);
        let there = if setup.is_full { (setup.chunks as f64 * FULL) as u64 } else { 0 };
        saves.next.store(there, Ordering::Relaxed);
        Workload {
            world: Arc::clone(world),
            saves: Arc::clone(saves),
            callers: callers as usize,
            pause: Duration::from_secs_f64(callers / rate),
            uses: setup.uses_per_save,
            chunks: setup.chunks,
        }
    }

    pub fn start(&mut self, node: &ScaleNode) {
        for _ in 0..self.callers {
            let first = self.pause.mul_f64(self.world.below(1000) as f64 / 1000.0);
            let caller = Caller {
                world: Arc::clone(&self.world),
                saves: Arc::clone(&self.saves),
                node: node.clone(),
                uses: self.uses,
                chunks: self.chunks,
            };
            tokio::spawn(caller.run(first, self.pause));
        }
    }
}

struct Caller {
    world: Arc<World>,
    saves: Arc<Saves>,
    node: ScaleNode,
    uses: u64,
    chunks: u64,
}

impl Caller {
    async fn run(self, first: Duration, pause: Duration) {
        let mut due = Instant::now() + first;
        while !self.node.host.is_killed() {
            tokio::time::sleep_until(due).await;
            due += pause;
            self.save().await;
            self.uses();
            if due < Instant::now() {
                due = Instant::now();
                sleep(Duration::from_millis(1)).await;
            }
        }
    }

    async fn save(&self) {
        let n = self.saves.next.fetch_add(1, Ordering::Relaxed);
        let view = View::from_owner(vec![n as u8; CHUNK_BYTES as usize]);
        let mut ctx = Ctx::within(DEADLINE);
        ctx.deadline = (Instant::now() + DEADLINE).into_std();
        let save = Save { key: key(n), from: vec![view] };
        let done = self.node.tier.save(&ctx, vec![save]).await;
        match done.first().map(|done| &done.result) {
            Some(Ok(Saved::Stored)) => self.saves.stored.fetch_add(1, Ordering::Relaxed),
            _ => self.saves.shed.fetch_add(1, Ordering::Relaxed),
        };
    }

    /// Uses some of the youngest chunks, as many as the cap is.
    fn uses(&self) {
        let newest = self.saves.next.load(Ordering::Relaxed);
        for _ in 0..self.uses {
            let back = self.world.below(self.chunks.min(newest).max(1));
            let digest = super::digest(newest.saturating_sub(1 + back));
            self.node.tier.touch(&[digest], &Hint::default());
        }
    }
}
