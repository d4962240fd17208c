//! A simulated machine with one process: its name, its wall clock, whether the network reaches it. A
//! restarted node is a new host.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

use crate::world::{EPOCH_S, World};

/// A process on its machine.
#[derive(Debug)]
pub struct Host {
    pub world: Arc<World>,
    name: String,
    /// How far its wall clock is ahead of the store's.
    ahead_ms: AtomicI64,
    is_partitioned: AtomicBool,
    is_killed: AtomicBool,
}

impl Host {
    pub fn new(world: &Arc<World>, name: String, ahead_ms: i64) -> Arc<Self> {
        let world = Arc::clone(world);
        let ahead_ms = AtomicI64::new(ahead_ms);
        let (is_partitioned, is_killed) = Default::default();
        Arc::new(Host { world, name, ahead_ms, is_partitioned, is_killed })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn set_partitioned(&self, partitioned: bool) {
        self.is_partitioned.store(partitioned, Ordering::Relaxed);
    }

    pub fn set_clock(&self, ahead_ms: i64) {
        self.ahead_ms.store(ahead_ms, Ordering::Relaxed);
    }

    /// From now on no byte leaves or reaches it.
    pub fn kill(&self) {
        self.is_killed.store(true, Ordering::Relaxed);
    }

    pub fn is_killed(&self) -> bool {
        self.is_killed.load(Ordering::Relaxed)
    }

    /// Whether bytes reach the store and come back.
    pub fn is_connected(&self) -> bool {
        !self.is_killed() && !self.is_partitioned.load(Ordering::Relaxed)
    }

    /// The time of day by its clock.
    pub fn wall(&self) -> SystemTime {
        let true_ms = EPOCH_S * 1000 + self.world.elapsed().as_millis() as u64;
        let ms = true_ms.saturating_add_signed(self.ahead_ms.load(Ordering::Relaxed));
        SystemTime::UNIX_EPOCH + Duration::from_millis(ms)
    }
}
