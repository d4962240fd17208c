//! Least recently used first.

use alloc::vec::Vec;

use crate::deferred::Deferred;
use crate::{Policy, SLOTS_MAX, SlotInfo};

/// Ends the list on either side.
const NIL: u32 = u32::MAX;
/// In `colder`: the slot is not tracked.
const UNTRACKED: u32 = u32::MAX - 1;
/// In `colder`: the slot is tracked but out of the list, because it is pinned.
const PINNED: u32 = u32::MAX - 2;

/// The slots before and after one slot in the list.
#[derive(Clone, Copy, Debug)]
struct LruLinks {
    colder: u32,
    hotter: u32,
}

/// Of a slot that is not tracked.
const UNKNOWN: LruLinks = LruLinks { colder: UNTRACKED, hotter: NIL };

/// Least recently used first: a doubly linked list through one flat array, 8 bytes a slot. Pinned
/// slots leave the list.
#[derive(Clone, Debug)]
pub struct Lru {
    links: Vec<LruLinks>,
    coldest: u32,
    hottest: u32,
    len: usize,
    hits: Deferred<u32>,
}

impl Lru {
    /// An empty list.
    pub fn new() -> Self {
        Lru { links: Vec::new(), coldest: NIL, hottest: NIL, len: 0, hits: Deferred::new() }
    }

    /// Applies the deferred hits: before anything but another hit.
    fn apply_hits(&mut self) {
        if !self.hits.is_empty() {
            self.apply_all_hits();
        }
    }

    #[inline(never)]
    fn apply_all_hits(&mut self) {
        let (slots, len) = self.hits.take();
        // Issues all reads that moving them needs at once.
        let links = |slot: u32| self.links.get(slot as usize).copied().unwrap_or(UNKNOWN);
        let near = |all: u32, slot: &u32| {
            let LruLinks { colder, hotter } = links(*slot);
            all ^ links(colder).hotter ^ links(hotter).colder
        };
        core::hint::black_box(slots[..len].iter().fold(0, near));
        slots[..len].iter().for_each(|slot| self.renew(*slot));
    }

    fn renew(&mut self, slot: u32) {
        if slot == self.hottest {
            return;
        }
        if let Some(links) = self.listed(slot) {
            self.unlink(links);
            self.push_hottest(slot);
        }
    }

    /// The links of a tracked slot.
    fn tracked(&self, slot: u32) -> Option<LruLinks> {
        self.links.get(slot as usize).copied().filter(|links| links.colder != UNTRACKED)
    }

    /// The links of a slot that is in the list: tracked and not pinned.
    fn listed(&self, slot: u32) -> Option<LruLinks> {
        self.tracked(slot).filter(|links| links.colder != PINNED)
    }

    fn mark(&mut self, slot: u32, marker: u32) {
        self.links[slot as usize] = LruLinks { colder: marker, hotter: NIL };
    }

    fn push_hottest(&mut self, slot: u32) {
        self.links[slot as usize] = LruLinks { colder: self.hottest, hotter: NIL };
        match self.hottest {
            NIL => self.coldest = slot,
            last => self.links[last as usize].hotter = slot,
        }
        self.hottest = slot;
    }

    fn unlink(&mut self, LruLinks { colder, hotter }: LruLinks) {
        match colder {
            NIL => self.coldest = hotter,
            slot => self.links[slot as usize].hotter = hotter,
        }
        match hotter {
            NIL => self.hottest = colder,
            slot => self.links[slot as usize].colder = colder,
        }
    }
}

impl Default for Lru {
    fn default() -> Self {
        Lru::new()
    }
}

impl Policy for Lru {
    fn name(&self) -> &'static str {
        "lru"
    }

    fn insert(&mut self, entry: SlotInfo) {
        let slot = entry.slot;
        assert!(slot < SLOTS_MAX, "slots are numbered below SLOTS_MAX");
        self.apply_hits();
        if self.tracked(slot).is_some() {
            // A pinned slot is in no list and stays so.
            return self.renew(slot);
        }
        if self.links.len() <= slot as usize {
            self.links.resize(slot as usize + 1, UNKNOWN);
        }
        self.len += 1;
        self.push_hottest(slot);
    }

    fn touch(&mut self, slot: u32) {
        if self.hits.push(slot) {
            self.apply_all_hits();
        }
    }

    fn remove(&mut self, slot: u32) {
        self.apply_hits();
        let Some(links) = self.tracked(slot) else { return };
        if links.colder != PINNED {
            self.unlink(links);
        }
        self.len -= 1;
        self.mark(slot, UNTRACKED);
    }

    fn pin(&mut self, slot: u32) {
        self.apply_hits();
        if let Some(links) = self.listed(slot) {
            self.unlink(links);
            self.mark(slot, PINNED);
        }
    }

    fn unpin(&mut self, slot: u32) {
        self.apply_hits();
        if self.tracked(slot).is_some_and(|links| links.colder == PINNED) {
            // In use until now, so it is the most recent.
            self.push_hottest(slot);
        }
    }

    fn victim(&mut self) -> Option<u32> {
        self.apply_hits();
        (self.coldest != NIL).then_some(self.coldest)
    }

    fn len(&self) -> usize {
        self.len
    }

    fn eviction_order(&mut self) -> Vec<u32> {
        self.apply_hits();
        let mut order = Vec::with_capacity(self.len);
        let mut at = self.coldest;
        while at != NIL {
            order.push(at);
            at = self.links[at as usize].hotter;
        }
        let pinned = (0..).zip(&self.links).filter(|(_, links)| links.colder == PINNED);
        order.extend(pinned.map(|(slot, _): (u32, _)| slot));
        order
    }

    fn memory_bytes(&self) -> usize {
        self.links.capacity() * size_of::<LruLinks>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn lru(slots: impl IntoIterator<Item = u32>) -> Lru {
        let mut lru = Lru::new();
        slots.into_iter().for_each(|slot| lru.insert(SlotInfo::new(slot, 1)));
        lru
    }

    #[test]
    fn the_oldest_goes_first() {
        let mut lru = lru([3, 0, 2]);
        assert_eq!((lru.eviction_order(), lru.victim()), (vec![3, 0, 2], Some(3)));
        lru.touch(3);
        assert_eq!((lru.eviction_order(), lru.victim()), (vec![0, 2, 3], Some(0)));
        lru.remove(2);
        lru.insert(SlotInfo::new(0, 1));
        assert_eq!((lru.eviction_order(), lru.len()), (vec![3, 0], 2));
    }

    #[test]
    fn a_pinned_slot_is_no_victim_and_comes_back_as_the_newest() {
        let mut lru = lru([0, 1, 2]);
        lru.pin(0);
        lru.touch(0);
        lru.insert(SlotInfo::new(0, 9));
        assert_eq!((lru.eviction_order(), lru.victim(), lru.len()), (vec![1, 2, 0], Some(1), 3));
        lru.pin(1);
        lru.pin(2);
        assert_eq!(lru.victim(), None);
        lru.unpin(0);
        lru.unpin(2);
        assert_eq!(lru.eviction_order(), vec![0, 2, 1]);
        lru.remove(1);
        lru.unpin(1);
        assert_eq!((lru.eviction_order(), lru.len()), (vec![0, 2], 2));
    }

    #[test]
    fn reading_the_order_applies_deferred_hits() {
        let mut lru = lru([0, 1]);
        lru.touch(0);
        assert_eq!(
            (lru.eviction_order(), lru.hits.is_empty()),
            (vec![1, 0], true),
            "not in a copy of all"
        );
    }

    #[test]
    fn unknown_slots_are_ignored() {
        let mut lru = lru([1]);
        for slot in [0, 2, 77, u32::MAX] {
            lru.touch(slot);
            lru.pin(slot);
            lru.unpin(slot);
            lru.remove(slot);
        }
        assert_eq!((lru.eviction_order(), lru.len()), (vec![1], 1));
        lru.remove(1);
        assert_eq!((lru.victim(), lru.is_empty()), (None, true));
    }

    #[test]
    fn eight_bytes_a_slot() {
        assert_eq!(size_of::<LruLinks>(), 8);
        let full = lru(0..1 << 16);
        assert_eq!(full.memory_bytes(), 8 << 16);
    }
}
