//! A queue whose pinned slots keep their positions: the basis of FIFO, MRU and LMCache's literal
//! LRU.

use alloc::vec::Vec;

use crate::slots::{NIL, SlotList, Slots};

/// The end of a queue that is evicted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum First {
    Oldest,
    Newest,
}

/// Slots in one order. A pinned slot stays in the list until a search for a victim reaches it. Then
/// it is parked; when it is unpinned it returns to the end where searches begin. So no search
/// passes it twice, and it loses no rank.
#[derive(Clone, Debug)]
pub(crate) struct SlotQueue {
    /// Whether the slot is pinned.
    pinned: Slots<bool>,
    list: SlotList,
    first: First,
}

impl SlotQueue {
    pub fn new(first: First) -> Self {
        SlotQueue { pinned: Slots::new(), list: SlotList::EMPTY, first }
    }

    /// Tracks a slot as the newest.
    pub fn insert(&mut self, slot: u32) {
        if !self.pinned.is_tracked(slot) {
            self.pinned.track(slot, false);
            self.pinned.push_hottest(&mut self.list, slot);
        } else {
            // It may be pinned and parked: then it is in the list again until a search parks it
            // again.
            self.renew(slot);
        }
    }

    /// Makes a slot the newest.
    pub fn renew(&mut self, slot: u32) {
        if self.pinned.is_listed(slot) {
            self.pinned.unlink(&mut self.list, slot);
        }
        if self.pinned.is_tracked(slot) {
            self.pinned.push_hottest(&mut self.list, slot);
        }
    }

    pub fn remove(&mut self, slot: u32) {
        if self.pinned.is_listed(slot) {
            self.pinned.unlink(&mut self.list, slot);
        }
        if self.pinned.is_tracked(slot) {
            self.pinned.untrack(slot);
        }
    }

    pub fn pin(&mut self, slot: u32) {
        if self.pinned.is_tracked(slot) {
            self.pinned[slot] = true;
        }
    }

    pub fn unpin(&mut self, slot: u32) {
        if !self.pinned.is_tracked(slot) {
            return;
        }
        self.pinned[slot] = false;
        // Parked, since a search reached it: so it was at the end where searches begin.
        if !self.pinned.is_listed(slot) {
            match self.first {
                First::Oldest => self.pinned.push_coldest(&mut self.list, slot),
                First::Newest => self.pinned.push_hottest(&mut self.list, slot),
            }
        }
    }

    pub fn victim(&mut self) -> Option<u32> {
        loop {
            let slot = match self.first {
                First::Oldest => self.list.coldest,
                First::Newest => self.list.hottest,
            };
            if slot == NIL {
                return None;
            }
            if !self.pinned[slot] {
                return Some(slot);
            }
            // Parked until its pin ends: no later search passes it, however many slots are pinned.
            self.pinned.unlink(&mut self.list, slot);
        }
    }

    pub fn len(&self) -> usize {
        self.pinned.len()
    }

    pub fn eviction_order(&self) -> Vec<u32> {
        let mut order: Vec<u32> =
            self.pinned.iter(self.list).filter(|slot| !self.pinned[*slot]).collect();
        if self.first == First::Newest {
            order.reverse();
        }
        // Pinned slots that no search has met are still in the list.
        order.extend(self.pinned.iter(self.list).filter(|slot| self.pinned[*slot]));
        order.extend(self.pinned.unlisted());
        order
    }

    pub fn memory_bytes(&self) -> usize {
        self.pinned.memory_bytes()
    }
}

/// Implements [`Policy`](crate::Policy) for a struct around a [`SlotQueue`]; `$hit` is what a hit does.
macro_rules! policy_of_queue {
    ($name:literal, $policy:ty, |$queue:ident, $slot:ident| $hit:expr) => {
        impl crate::Policy for $policy {
            fn name(&self) -> &'static str {
                $name
            }

            fn insert(&mut self, entry: crate::SlotInfo) {
                self.0.insert(entry.slot);
            }

            fn touch(&mut self, $slot: u32) {
                let $queue = &mut self.0;
                $hit
            }

            fn remove(&mut self, slot: u32) {
                self.0.remove(slot);
            }

            fn pin(&mut self, slot: u32) {
                self.0.pin(slot);
            }

            fn unpin(&mut self, slot: u32) {
                self.0.unpin(slot);
            }

            fn victim(&mut self) -> Option<u32> {
                self.0.victim()
            }

            fn len(&self) -> usize {
                self.0.len()
            }

            fn eviction_order(&mut self) -> alloc::vec::Vec<u32> {
                self.0.eviction_order()
            }

            fn memory_bytes(&self) -> usize {
                self.0.memory_bytes()
            }
        }
    };
}
pub(crate) use policy_of_queue;
