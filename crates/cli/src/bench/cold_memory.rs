use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use kvtier::mem::{Arena, ArenaConfig, Lease};

/// More than a CPU caches: what comes round again has been forgotten by then.
const COLD_BYTES: usize = 128 << 20;

/// The chunks' memory, in huge pages, used in turn, so that each chunk is in memory that the CPU
/// has not seen for long: as one does that a GPU or a disk has just written.
pub struct ColdMemory {
    pub arena: Arena,
    slots: Mutex<VecDeque<Lease>>,
}

impl ColdMemory {
    /// Space for at least `inflight` chunks of `size` bytes.
    pub fn new(size: usize, inflight: usize) -> Result<Self> {
        let slot = size.next_multiple_of(4096);
        // More memory than the CPU's caches hold, used in turn: a chunk that an engine saves is not
        // in the cache either.
        let count = inflight.max(COLD_BYTES.div_ceil(slot));
        // Touched before the measurement, which is not to count page faults.
        let config = ArenaConfig::huge(count * slot).with_slots(slot).with_prefault();
        let arena = Arena::new(config).context("no memory for the chunks in flight")?;
        let slots = (0..count).map(|_| arena.lease(size)).collect::<Result<_, _>>()?;
        Ok(ColdMemory { arena, slots: Mutex::new(slots) })
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

/// How many pages of these leases are made while the leases are written for the first time.
#[cfg(test)]
pub fn page_faults(leases: impl IntoIterator<Item = Lease>) -> i64 {
    use nix::sys::resource::{UsageWho, getrusage};
    let faults = || getrusage(UsageWho::RUSAGE_THREAD).map_or(0, |usage| usage.minor_page_faults());
    let mut leases: Vec<Lease> = leases.into_iter().collect();
    let before = faults();
    leases.iter_mut().filter_map(Lease::as_host_mut).for_each(|bytes| bytes.fill(1));
    // A page of the stack or of the allocator may be among them.
    (faults() - before - 4).max(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_chunks_are_resident_before_they_are_used() {
        let memory = ColdMemory::new(4 << 20, 8).unwrap();
        assert_eq!(page_faults((0..32).map(|_| memory.take().unwrap())), 0);
        let untouched = Arena::new(ArenaConfig::huge(64 << 20)).unwrap();
        assert!(
            page_faults([untouched.lease(64 << 20).unwrap()]) > 0,
            "the measure sees what is not resident"
        );
    }
}
