//! ARC, adaptive replacement: balances recency and frequency by the ghosts that return.

use alloc::vec::Vec;

use crate::ghosts::{ARC_ONCE_AND_GHOSTS, ARC_SLOTS_AND_GHOSTS, Ghosts};
use crate::slots::{NIL, SlotList, Slots};
use crate::{Policy, SlotInfo};

/// What ARC keeps of a slot.
#[derive(Clone, Copy, Debug, Default)]
struct Resident {
    /// Hit since it was inserted: in T2, else in T1.
    often: bool,
    pinned: bool,
    /// Being evicted: no longer counted in T1.
    evicting: bool,
    /// Reserved for a chunk that is being written; its completion is no hit.
    reserved: bool,
}

/// Adaptive replacement. Slots hit once (T1) and slots hit again (T2) share the cache, each in the
/// order of last use. Evicted chunks that return (B1, B2) shift the balance. LMCache's ARC: it
/// counts slots instead of bytes, and its capacity is the most slots there ever were.
#[derive(Clone, Debug)]
pub struct ArcPolicy {
    slots: Slots<Resident>,
    once: SlotList,
    often: SlotList,
    /// Slots in T1, parked ones included, those being evicted not.
    once_len: usize,
    gone_once: Ghosts,
    gone_often: Ghosts,
    /// How many slots T1 should have.
    once_wanted: f64,
    capacity: usize,
}

impl ArcPolicy {
    /// A policy without slots.
    pub fn new() -> Self {
        ArcPolicy {
            slots: Slots::new(),
            once: SlotList::EMPTY,
            often: SlotList::EMPTY,
            once_len: 0,
            gone_once: Ghosts::new(),
            gone_often: Ghosts::new(),
            once_wanted: 0.0,
            capacity: 0,
        }
    }

    /// Takes a slot out of its list and out of the count of T1.
    fn unlink(&mut self, slot: u32) {
        let Resident { often, evicting, .. } = self.slots[slot];
        if self.slots.is_listed(slot) {
            self.slots.unlink(if often { &mut self.often } else { &mut self.once }, slot);
        }
        // `begin_evict` has already subtracted a slot that is being evicted.
        self.once_len -= usize::from(!often && !evicting);
    }

    /// Puts a slot at the hot end of a list.
    fn link(&mut self, slot: u32, often: bool) {
        self.slots[slot].often = often;
        self.once_len += usize::from(!often && !self.slots[slot].evicting);
        self.slots.push_hottest(if often { &mut self.often } else { &mut self.once }, slot);
    }

    /// Whether a new chunk is among the ghosts. If so, T1 was too small or too large.
    fn remembered(&mut self, tag: u64) -> bool {
        // Read before the removal: where a list has the tag it is not empty, so its ratio is
        // defined.
        let once = self.gone_once.len() as f64;
        let often = self.gone_often.len() as f64;
        if self.gone_once.remove(tag) {
            self.once_wanted =
                (self.once_wanted + (often / once).max(1.0)).min(self.capacity as f64);
        } else if self.gone_often.remove(tag) {
            self.once_wanted = (self.once_wanted - (once / often).max(1.0)).max(0.0);
        } else {
            return false;
        }
        true
    }

    fn add(&mut self, entry: &SlotInfo, reserved: bool) {
        let often = self.remembered(entry.tag);
        self.slots.track(entry.slot, Resident { reserved, ..Resident::default() });
        // A ghost shifts the balance at once, but a chunk that is still being written begins in T1.
        self.link(entry.slot, often && !reserved);
        self.capacity = self.capacity.max(self.slots.len());
        self.trim();
    }

    /// Drops the oldest ghosts.
    fn trim(&mut self) {
        let resident = self.slots.len();
        // The bounds of ARC: T1 and B1 within the capacity, all four lists within twice that.
        let once_max = ARC_ONCE_AND_GHOSTS * self.capacity;
        while self.once_len + self.gone_once.len() > once_max && self.gone_once.pop() {}
        let all_max = ARC_SLOTS_AND_GHOSTS * self.capacity;
        while resident + self.gone_once.len() + self.gone_often.len() > all_max
            && (self.gone_often.pop() || self.gone_once.pop())
        {}
    }

    /// The coldest of a list that is not pinned; pinned ones before it are parked.
    fn coldest(&mut self, often: bool) -> Option<u32> {
        loop {
            let list = if often { &mut self.often } else { &mut self.once };
            let slot = list.coldest;
            match slot {
                NIL => return None,
                _ if !self.slots[slot].pinned => return Some(slot),
                _ => self.slots.unlink(list, slot),
            }
        }
    }
}

impl Default for ArcPolicy {
    fn default() -> Self {
        ArcPolicy::new()
    }
}

impl Policy for ArcPolicy {
    fn name(&self) -> &'static str {
        "arc"
    }

    fn insert(&mut self, entry: SlotInfo) {
        let slot = entry.slot;
        if !self.slots.is_tracked(slot) {
            self.add(&entry, false);
        } else if self.slots[slot].reserved {
            // The end of its reservation, and no second use.
            self.slots[slot].reserved = false;
        } else {
            self.touch(slot);
        }
    }

    fn reserve(&mut self, entry: SlotInfo) {
        let slot = entry.slot;
        let pinned = self.slots.is_tracked(slot) && self.slots[slot].pinned;
        self.remove(slot);
        self.add(&entry, true);
        self.slots[slot].pinned = pinned;
    }

    fn touch(&mut self, slot: u32) {
        if self.slots.is_tracked(slot) {
            self.unlink(slot);
            // A pinned slot that was parked is linked again; the next search parks it again.
            self.link(slot, true);
        }
    }

    fn remove(&mut self, slot: u32) {
        if self.slots.is_tracked(slot) {
            self.unlink(slot);
            self.slots.untrack(slot);
        }
    }

    fn evict(&mut self, slot: u32, tag: u64) {
        if !self.slots.is_tracked(slot) {
            return;
        }
        let often = self.slots[slot].often;
        self.remove(slot);
        if often {
            self.gone_often.push(tag)
        } else {
            self.gone_once.push(tag)
        }
        self.trim();
    }

    fn forget(&mut self, tag: u64) {
        let _ = self.gone_once.remove(tag) || self.gone_often.remove(tag);
    }

    fn pin(&mut self, slot: u32) {
        if self.slots.is_tracked(slot) {
            self.slots[slot].pinned = true;
        }
    }

    fn begin_evict(&mut self, slot: u32) {
        if !self.slots.is_tracked(slot) || self.slots[slot].evicting {
            return;
        }
        // T1 is smaller at once, so the next victim is chosen as if this one were gone. A batch of
        // victims could else all come from T1.
        self.once_len -= usize::from(!self.slots[slot].often);
        (self.slots[slot].pinned, self.slots[slot].evicting) = (true, true);
    }

    fn unpin(&mut self, slot: u32) {
        if !self.slots.is_tracked(slot) {
            return;
        }
        let Resident { often, evicting, .. } = self.slots[slot];
        // Its eviction failed, so it counts again.
        self.once_len += usize::from(evicting && !often);
        (self.slots[slot].pinned, self.slots[slot].evicting) = (false, false);
        if !self.slots.is_listed(slot) {
            self.slots.push_coldest(if often { &mut self.often } else { &mut self.once }, slot);
        }
    }

    fn victim(&mut self) -> Option<u32> {
        self.once_wanted = self.once_wanted.min(self.capacity as f64);
        // While T1 is below its share, T2 gives the victim.
        let often_first = (self.once_len as u64) < self.once_wanted as u64;
        // A list may have nothing but pinned slots.
        self.coldest(often_first).or_else(|| self.coldest(!often_first))
    }

    fn len(&self) -> usize {
        self.slots.len()
    }

    fn eviction_order(&mut self) -> Vec<u32> {
        let listed = || [self.once, self.often].into_iter().flat_map(|list| self.slots.iter(list));
        let mut order: Vec<u32> = listed().filter(|slot| !self.slots[*slot].pinned).collect();
        order.extend(listed().filter(|slot| self.slots[*slot].pinned));
        order.extend(self.slots.unlisted());
        order
    }

    fn memory_bytes(&self) -> usize {
        self.slots.memory_bytes() + self.gone_once.memory_bytes() + self.gone_often.memory_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_that_of_the_slots_and_of_both_lists_of_ghosts() {
        let mut policy = ArcPolicy::new();
        for slot in 0..3 {
            policy.insert(SlotInfo::new(slot, 1).with_tag(u64::from(slot) + 1));
        }
        policy.touch(1);
        [0, 1].into_iter().for_each(|slot| policy.evict(slot, u64::from(slot) + 1));
        let parts = [&policy.gone_once, &policy.gone_often].map(Ghosts::memory_bytes);
        assert!(parts.iter().all(|bytes| *bytes > 8192), "{parts:?}");
        assert_eq!(policy.memory_bytes(), policy.slots.memory_bytes() + parts[0] + parts[1]);
    }

    fn entry(slot: u32, tag: u64) -> SlotInfo {
        SlotInfo::new(slot, 1).with_tag(tag)
    }

    #[test]
    fn slots_and_ghosts_are_at_most_twice_the_capacity_and_the_oldest_ghost_goes() {
        let mut policy = ArcPolicy::new();
        // Two slots that were hit again leave two ghosts.
        [0, 1].into_iter().for_each(|slot| policy.insert(entry(slot, u64::from(slot) + 1)));
        policy.touch_chain(&[0, 1]);
        [0, 1].into_iter().for_each(|slot| policy.evict(slot, u64::from(slot) + 1));
        [0, 1].into_iter().for_each(|slot| policy.insert(entry(slot, u64::from(slot) + 3)));
        let ghosts = |policy: &ArcPolicy| (policy.gone_once.len(), policy.gone_often.len());
        assert_eq!(ghosts(&policy), (0, 2), "four of four");
        policy.evict(0, 3);
        assert_eq!(ghosts(&policy), (1, 2));
        policy.touch(1);
        policy.insert(entry(0, 5));
        assert_eq!(ghosts(&policy), (1, 1), "one more than four: one ghost goes");
        assert!(!policy.gone_often.remove(1) && policy.gone_often.remove(2), "the oldest");
    }

    #[test]
    fn a_slot_leaves_the_count_once_however_often_its_eviction_begins() {
        let mut policy = ArcPolicy::new();
        [0, 1].into_iter().for_each(|slot| policy.insert(entry(slot, 0)));
        (0..2).for_each(|_| policy.begin_evict(0));
        assert_eq!((policy.once_len, policy.victim()), (1, Some(1)));
        policy.unpin(0);
        assert_eq!((policy.once_len, policy.victim()), (2, Some(0)));
    }
}
