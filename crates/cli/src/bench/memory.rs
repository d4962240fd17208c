use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use kvtier::mem::{Arena, ArenaConfig, Lease};

/// More than a CPU caches: what comes round again has been forgotten by then.
const COLD_BYTES: usize = 128 << 20;

/// The chunks' memory, in huge pages, used in turn, so that each chunk lies in memory that the CPU has not seen for long: as one does that a
/// GPU or a disk has just written.
pub struct Memory {
    pub arena: Arena,
    slots: Mutex<VecDeque<Lease>>,
}

impl Memory {
    /// Room for `inflight` chunks of `size` bytes at least.
    pub fn new(size: usize, inflight: usize) -> Result<Self> {
        let slot = size.next_multiple_of(4096);
        let count = inflight.max(COLD_BYTES.div_ceil(slot));
        let config = ArenaConfig::huge(count * slot).with_slots(slot).with_prefault();
        let arena = Arena::new(config).context("no memory for the chunks in flight")?;
        let slots = (0..count).map(|_| arena.lease(size)).collect::<Result<_, _>>()?;
        Ok(Memory { arena, slots: Mutex::new(slots) })
    }

    /// The memory that was given back longest ago.
    pub fn take(&self) -> Result<Lease> {
        self.slots
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop_front()
            .context("more chunks in flight than memory")
    }

    /// Takes memory back.
    pub fn give(&self, lease: Lease) {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).push_back(lease);
    }
}
