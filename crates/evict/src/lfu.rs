//! Least frequently used first.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::slots::{SlotList, Slots};
use crate::{Policy, SlotInfo};

/// What LFU keeps of a slot.
#[derive(Clone, Copy, Debug, Default)]
struct Uses {
    /// Insertion and hits.
    count: u32,
    pinned: bool,
}

/// Least frequently used first; ties by age at that count. LMCache's LFU. One list per count of
/// uses.
#[derive(Clone, Debug)]
pub struct Lfu {
    uses: Slots<Uses>,
    lists: BTreeMap<u32, SlotList>,
}

impl Lfu {
    /// A policy without slots.
    pub fn new() -> Self {
        Lfu { uses: Slots::new(), lists: BTreeMap::new() }
    }

    fn link(&mut self, slot: u32) {
        let list = self.lists.entry(self.uses[slot].count).or_insert(SlotList::EMPTY);
        self.uses.push_hottest(list, slot);
    }

    fn unlink(&mut self, slot: u32) {
        let count = self.uses[slot].count;
        let list =
            self.lists.get_mut(&count).expect("a slot that is listed is in the list of its count");
        self.uses.unlink(list, slot);
        if list.is_empty() {
            // `victim` relies on it: the first list of the map has a slot.
            self.lists.remove(&count);
        }
    }
}

impl Default for Lfu {
    fn default() -> Self {
        Lfu::new()
    }
}

impl Policy for Lfu {
    fn name(&self) -> &'static str {
        "lfu"
    }

    fn insert(&mut self, entry: SlotInfo) {
        let slot = entry.slot;
        if self.uses.is_tracked(slot) {
            return self.touch(slot);
        }
        self.uses.track(slot, Uses { count: 1, pinned: false });
        self.link(slot);
    }

    fn touch(&mut self, slot: u32) {
        if !self.uses.is_tracked(slot) {
            return;
        }
        if self.uses.is_listed(slot) {
            // Before the count changes, by which its list is found. A slot that a search has parked
            // is linked again below, and parked again if it is still pinned.
            self.unlink(slot);
        }
        self.uses[slot].count = self.uses[slot].count.saturating_add(1);
        self.link(slot);
    }

    fn remove(&mut self, slot: u32) {
        if self.uses.is_listed(slot) {
            self.unlink(slot);
        }
        if self.uses.is_tracked(slot) {
            self.uses.untrack(slot);
        }
    }

    fn pin(&mut self, slot: u32) {
        if self.uses.is_tracked(slot) {
            self.uses[slot].pinned = true;
        }
    }

    fn unpin(&mut self, slot: u32) {
        if !self.uses.is_tracked(slot) {
            return;
        }
        self.uses[slot].pinned = false;
        if !self.uses.is_listed(slot) {
            // The list is gone if this was its last slot.
            let list = self.lists.entry(self.uses[slot].count).or_insert(SlotList::EMPTY);
            self.uses.push_coldest(list, slot);
        }
    }

    fn victim(&mut self) -> Option<u32> {
        loop {
            let slot = self.lists.first_key_value()?.1.coldest;
            if !self.uses[slot].pinned {
                return Some(slot);
            }
            // Parked, so that no later search meets it.
            self.unlink(slot);
        }
    }

    fn len(&self) -> usize {
        self.uses.len()
    }

    fn eviction_order(&mut self) -> Vec<u32> {
        let listed = || self.lists.values().flat_map(|list| self.uses.iter(*list));
        let mut order: Vec<u32> = listed().filter(|slot| !self.uses[*slot].pinned).collect();
        order.extend(listed().filter(|slot| self.uses[*slot].pinned));
        order.extend(self.uses.unlisted());
        order
    }

    fn memory_bytes(&self) -> usize {
        self.uses.memory_bytes() + self.lists.len() * 2 * size_of::<(u32, SlotList)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_that_of_the_slots_and_of_a_list_for_each_count() {
        let mut policy = Lfu::new();
        // The counts are 1, 2 and 3.
        for slot in 0..3 {
            policy.insert(SlotInfo::new(slot, 1));
            (0..slot).for_each(|_| policy.touch(slot));
        }
        assert_eq!(policy.memory_bytes(), policy.uses.memory_bytes() + 3 * 2 * 12);
    }
}
