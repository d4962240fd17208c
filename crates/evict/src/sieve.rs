//! SIEVE: one queue and a hand that passes over hit slots.

use crate::segments::{Segments, calls_of_segments};
use crate::slots::NIL;
use crate::{Policy, SlotInfo};

/// One queue and a hand that goes from old to new: what was hit since the hand last passed stays
/// where it is.
#[derive(Clone, Debug)]
pub struct Sieve {
    /// Whether each slot was hit since the hand passed it.
    queue: Segments<bool, 1>,
    /// Where the hand goes on; `NIL`: at the oldest.
    hand: u32,
}

impl Sieve {
    /// An empty queue.
    pub fn new() -> Self {
        Sieve { queue: Segments::new(), hand: NIL }
    }
}

impl Default for Sieve {
    fn default() -> Self {
        Sieve::new()
    }
}

impl Policy for Sieve {
    fn name(&self) -> &'static str {
        "sieve"
    }

    fn insert(&mut self, entry: SlotInfo) {
        if self.queue.is_tracked(entry.slot) {
            return self.touch(entry.slot);
        }
        self.queue.insert(entry.slot, 0, false);
    }

    fn touch(&mut self, slot: u32) {
        if self.queue.is_tracked(slot) {
            *self.queue.of(slot) = true;
        }
    }

    fn remove(&mut self, slot: u32) {
        if self.queue.is_tracked(slot) {
            if self.hand == slot {
                // The hand must not stay on a slot that is gone: its number is soon that of a new
                // chunk elsewhere.
                self.hand = self.queue.hotter(slot);
            }
            self.queue.remove(slot);
        }
    }

    fn victim(&mut self) -> Option<u32> {
        loop {
            let ahead = self.queue.from(0, self.hand);
            let slot = ahead.or_else(|| self.queue.coldest(0))?;
            // Passing a slot clears its mark, so the second round ends the loop at the latest.
            if !core::mem::take(self.queue.of(slot)) {
                // On the victim and not after it: a second call returns it again.
                self.hand = slot;
                return Some(slot);
            }
            self.hand = self.queue.hotter(slot);
        }
    }

    calls_of_segments!(queue);

    fn memory_bytes(&self) -> usize {
        self.queue.memory_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hand_passes_hit_slots_and_continues_from_there() {
        let mut policy = Sieve::new();
        (0..5).for_each(|slot| policy.insert(SlotInfo::new(slot, 1)));
        [0, 1, 3].into_iter().for_each(|slot| policy.touch(slot));
        let mut victims = alloc::vec::Vec::new();
        while let Some(slot) = policy.victim() {
            victims.push(slot);
            policy.remove(slot);
            if victims.len() == 1 {
                policy.insert(SlotInfo::new(9, 1));
            }
        }
        assert_eq!(victims, [2, 4, 9, 0, 1, 3]);
    }
}
