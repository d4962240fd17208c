//! Chunks that look like keys and values in bf16, in memory that the CPU's caches do not hold.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kvtier::config::OpenTiers;
use kvtier::mem::{Arena, ArenaConfig, Lease};
use kvtier::prelude::*;

/// More than a CPU caches.
const COLD_BYTES: usize = 128 << 20;

/// Memory with content, used in turn, and the keys of the chunks.
pub struct Chunks {
    pub len: usize,
    arena: Arena,
    idle: Mutex<VecDeque<Lease>>,
    namespace: Arc<Namespace>,
}

impl Chunks {
    pub fn new(len: usize, inflight: usize) -> Self {
        let count = COLD_BYTES.div_ceil(len).max(2 * inflight);
        let config = ArenaConfig::huge(count * len).with_slots(len).with_prefault();
        let arena = Arena::new(config).unwrap();
        let content = kv_like(len);
        let lease = || {
            let mut lease = arena.lease(len).unwrap();
            lease.write_at(0, &content).unwrap();
            lease
        };
        let idle = Mutex::new((0..count).map(|_| lease()).collect());
        Chunks { len, idle, namespace: Namespace::from_name("bench"), arena }
    }

    pub fn key(&self, n: u64) -> Key {
        Key::from_name(&self.namespace, format!("chunk {n}"))
    }

    /// Lets the tier use the memory directly, where it can.
    pub fn register(&self, tiers: &OpenTiers) {
        tiers.register(&self.arena).unwrap();
    }

    fn take(&self) -> Lease {
        self.idle.lock().unwrap().pop_front().unwrap()
    }

    fn put_back(&self, lease: Lease) {
        self.idle.lock().unwrap().push_back(lease);
    }

    /// Saves chunk `n`.
    pub fn save(&self, tier: &dyn Tier, n: u64) {
        let mut lease = self.take();
        lease.assume_filled(self.len);
        let op = Save { key: self.key(n), from: vec![lease.freeze()] };
        let done = tier.save(&ctx(), vec![op]).wait().remove(0);
        assert_eq!(done.result.unwrap(), Saved::Stored);
        done.op.from.into_iter().for_each(|view| self.put_back(view.into_lease().unwrap()));
    }

    /// Loads chunk `n`.
    pub fn load(&self, tier: &dyn Tier, n: u64) {
        let op = Load { key: self.key(n), into: vec![self.take()] };
        let done = tier.load(&ctx(), vec![op]).wait().remove(0);
        assert_eq!(done.result.unwrap(), Loaded::Hit { len: self.len as u64 });
        done.op.into.into_iter().for_each(|lease| self.put_back(lease));
    }
}

fn ctx() -> Ctx {
    Ctx::within(Duration::from_secs(120))
}

/// Elements of a normal distribution, each of 1,024 channels with a scale of its own, as keys and
/// values have; the same as in the tests of the stages.
fn kv_like(len: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(1);
    let mut gaussian = || {
        let radius = (-2.0 * random.f32().max(1e-9).ln()).sqrt();
        radius * (std::f32::consts::TAU * random.f32()).cos()
    };
    let scales: Vec<f32> = (0..1024).map(|_| (0.8 * gaussian()).exp()).collect();
    let elements = scales.iter().cycle().take(len.div_ceil(2));
    let mut bytes: Vec<u8> = elements
        .flat_map(|scale| (((scale * gaussian()).to_bits() >> 16) as u16).to_le_bytes())
        .collect();
    bytes.truncate(len);
    bytes
}
