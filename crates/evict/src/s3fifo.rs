//! S3-FIFO: a small queue, the main queue, and the ghosts of evicted slots.

use crate::ghosts::{Ghosts, S3FIFO_GHOSTS_PER_SLOT};
use crate::segments::{Segments, calls_of_segments};
use crate::{Policy, SlotInfo};

const SMALL: usize = 0;
const MAIN: usize = 1;
/// The small queue holds one slot in this many.
const SLOTS_PER_SMALL: usize = 10;
/// Hits are counted up to this.
const HITS_MAX: u8 = 3;

/// Three queues. New slots enter a small queue (a tenth of all). They move to the main queue if
/// they are hit more than once there, or if they return soon after their eviction. The main queue
/// gives slots that were hit another round.
#[derive(Clone, Debug)]
pub struct S3Fifo {
    /// Hits by slot.
    queues: Segments<u8, 2>,
    gone: Ghosts,
}

impl S3Fifo {
    /// Empty queues.
    pub fn new() -> Self {
        S3Fifo { queues: Segments::new(), gone: Ghosts::new() }
    }
}

impl Default for S3Fifo {
    fn default() -> Self {
        S3Fifo::new()
    }
}

impl Policy for S3Fifo {
    fn name(&self) -> &'static str {
        "s3-fifo"
    }

    fn insert(&mut self, entry: SlotInfo) {
        if self.queues.is_tracked(entry.slot) {
            return self.touch(entry.slot);
        }
        // A chunk that returns while its ghost is remembered was evicted too early.
        let back = self.gone.remove(entry.tag);
        self.queues.insert(entry.slot, if back { MAIN } else { SMALL }, 0);
    }

    fn touch(&mut self, slot: u32) {
        if self.queues.is_tracked(slot) {
            let hits = self.queues.of(slot);
            *hits = (*hits + 1).min(HITS_MAX);
        }
    }

    fn remove(&mut self, slot: u32) {
        if self.queues.is_tracked(slot) {
            self.queues.remove(slot);
        }
    }

    fn evict(&mut self, slot: u32, tag: u64) {
        if !self.queues.is_tracked(slot) {
            return;
        }
        if self.queues.list_of(slot) == SMALL {
            // What left the main queue had its second chance, and is not remembered.
            self.gone.push(tag);
        }
        self.queues.remove(slot);
        while self.gone.len() > S3FIFO_GHOSTS_PER_SLOT * self.queues.len().max(1) {
            self.gone.pop();
        }
    }

    fn forget(&mut self, tag: u64) {
        self.gone.remove(tag);
    }

    fn victim(&mut self) -> Option<u32> {
        loop {
            // Each turn moves a slot out of the small queue or takes a hit from one in the main
            // queue, so the loop ends.
            let from_small = self.queues.len_of(SMALL) * SLOTS_PER_SMALL >= self.queues.len()
                || self.queues.len_of(MAIN) == 0;
            let first = self.queues.coldest(if from_small { SMALL } else { MAIN });
            // The chosen queue may have nothing but pinned slots.
            let slot = first
                .or_else(|| self.queues.coldest(MAIN))
                .or_else(|| self.queues.coldest(SMALL))?;
            let hits = *self.queues.of(slot);
            match self.queues.list_of(slot) {
                SMALL if hits > 1 => {
                    *self.queues.of(slot) = 0;
                    self.queues.renew(slot, MAIN);
                }
                MAIN if hits > 0 => {
                    *self.queues.of(slot) = hits - 1;
                    self.queues.renew(slot, MAIN);
                }
                _ => return Some(slot),
            }
        }
    }

    calls_of_segments!(queues);

    fn memory_bytes(&self) -> usize {
        self.queues.memory_bytes() + self.gone.memory_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_hit_wonders_leave_by_the_small_queue_and_returning_ones_enter_the_main_queue() {
        let mut policy = S3Fifo::new();
        (0..10)
            .for_each(|slot| policy.insert(SlotInfo::new(slot, 1).with_tag(u64::from(slot) + 1)));
        (0..2).for_each(|_| policy.touch(0));
        assert_eq!(policy.victim(), Some(1), "0 was hit and moved on");
        policy.evict(1, 2);
        policy.insert(SlotInfo::new(1, 1).with_tag(2));
        assert_eq!((policy.queues.list_of(0), policy.queues.list_of(1)), (MAIN, MAIN));
        assert_eq!(policy.victim(), Some(2));
    }

    #[test]
    fn a_chunk_whose_ghost_is_forgotten_returns_to_the_small_queue() {
        let mut policy = S3Fifo::new();
        for (tag, list) in [(0, MAIN), (2, SMALL)] {
            policy.insert(SlotInfo::new(1, 1).with_tag(2));
            policy.evict(1, 2);
            policy.forget(tag);
            policy.insert(SlotInfo::new(1, 1).with_tag(2));
            assert_eq!(policy.queues.list_of(1), list, "{tag} is forgotten");
            policy.remove(1);
        }
    }

    #[test]
    fn memory_is_that_of_the_queues_and_of_the_ghosts() {
        let mut policy = S3Fifo::new();
        [0, 1].into_iter().for_each(|slot| policy.insert(SlotInfo::new(slot, 1)));
        policy.evict(0, 1);
        let (queues, ghosts) = (policy.queues.memory_bytes(), policy.gone.memory_bytes());
        assert!(queues > 8192 && ghosts > 8192, "{queues}, {ghosts}");
        assert_eq!(policy.memory_bytes(), queues + ghosts);
    }
}
