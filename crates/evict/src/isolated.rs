use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use crate::slots::{NIL, SlotList, Slots};
use crate::{Policy, SlotInfo};

/// What the policy keeps of a slot.
#[derive(Clone, Copy, Debug, Default)]
struct Owned {
    group: u32,
    /// The bytes in 48 bits, so that a node has 20 bytes: more than anybody keeps in one slot.
    bytes_low: u32,
    bytes_high: u16,
    pinned: bool,
}

impl Owned {
    fn new(entry: &SlotInfo, pinned: bool) -> Self {
        let bytes = entry.bytes.min((1 << 48) - 1);
        Owned {
            group: entry.tenant,
            bytes_low: bytes as u32,
            bytes_high: (bytes >> 32) as u16,
            pinned,
        }
    }

    fn bytes(self) -> u64 {
        u64::from(self.bytes_high) << 32 | u64::from(self.bytes_low)
    }
}

/// The slots of one owner.
#[derive(Clone, Copy, Debug)]
struct TenantQueue {
    list: SlotList,
    bytes: u64,
    slots: usize,
}

/// One LRU for each owner ([`SlotInfo::tenant`]; a cache salt, say): LMCache's IsolatedLRU. Asked for a
/// victim of no owner in particular, it takes one from whoever has the most bytes.
#[derive(Clone, Debug)]
pub struct IsolatedLru {
    slots: Slots<Owned>,
    owners: BTreeMap<u32, TenantQueue>,
    /// Owners by their bytes.
    by_bytes: BTreeSet<(u64, u32)>,
}

impl IsolatedLru {
    /// A policy without slots.
    pub fn new() -> Self {
        IsolatedLru { slots: Slots::new(), owners: BTreeMap::new(), by_bytes: BTreeSet::new() }
    }

    /// Takes away or gives, once, a slot of so many bytes.
    fn book(&mut self, group: u32, change: impl FnOnce(&mut TenantQueue)) {
        let owner = self.owners.entry(group).or_insert(TenantQueue {
            list: SlotList::EMPTY,
            bytes: 0,
            slots: 0,
        });
        self.by_bytes.remove(&(owner.bytes, group));
        change(owner);
        match owner.slots {
            0 => drop(self.owners.remove(&group)),
            _ => drop(self.by_bytes.insert((owner.bytes, group))),
        }
    }

    fn list(&mut self, slot: u32) -> &mut SlotList {
        &mut self.owners.get_mut(&self.slots[slot].group).expect("a tracked slot has an owner").list
    }

    fn link(&mut self, slot: u32) {
        let mut list = *self.list(slot);
        self.slots.push_hottest(&mut list, slot);
        *self.list(slot) = list;
    }

    fn unlink(&mut self, slot: u32) {
        let mut list = *self.list(slot);
        self.slots.unlink(&mut list, slot);
        *self.list(slot) = list;
    }
}

impl Default for IsolatedLru {
    fn default() -> Self {
        IsolatedLru::new()
    }
}

impl Policy for IsolatedLru {
    fn name(&self) -> &'static str {
        "isolated-lru"
    }

    fn insert(&mut self, entry: SlotInfo) {
        let pinned = self.slots.is_tracked(entry.slot) && self.slots[entry.slot].pinned;
        self.remove(entry.slot);
        let owned = Owned::new(&entry, pinned);
        self.slots.track(entry.slot, owned);
        self.book(entry.tenant, |owner| {
            (owner.bytes, owner.slots) = (owner.bytes + owned.bytes(), owner.slots + 1)
        });
        self.link(entry.slot);
    }

    fn touch(&mut self, slot: u32) {
        if self.slots.is_listed(slot) {
            self.unlink(slot);
        }
        if self.slots.is_tracked(slot) {
            self.link(slot);
        }
    }

    fn remove(&mut self, slot: u32) {
        if !self.slots.is_tracked(slot) {
            return;
        }
        if self.slots.is_listed(slot) {
            self.unlink(slot);
        }
        let owned = self.slots[slot];
        self.slots.untrack(slot);
        self.book(owned.group, |owner| {
            (owner.bytes, owner.slots) = (owner.bytes - owned.bytes(), owner.slots - 1)
        });
    }

    fn pin(&mut self, slot: u32) {
        if self.slots.is_tracked(slot) {
            self.slots[slot].pinned = true;
        }
    }

    fn unpin(&mut self, slot: u32) {
        if !self.slots.is_tracked(slot) {
            return;
        }
        self.slots[slot].pinned = false;
        if !self.slots.is_listed(slot) {
            let mut list = *self.list(slot);
            self.slots.push_coldest(&mut list, slot);
            *self.list(slot) = list;
        }
    }

    fn victim(&mut self) -> Option<u32> {
        // The owners before the first that has a victim have nothing but pinned slots.
        let mut before = (u64::MAX, u32::MAX);
        loop {
            let largest = *self.by_bytes.range(..before).next_back()?;
            if let Some(slot) = self.tenant_victim(largest.1) {
                return Some(slot);
            }
            before = largest;
        }
    }

    fn tracks_tenants(&self) -> bool {
        true
    }

    fn tenant_victim(&mut self, group: u32) -> Option<u32> {
        loop {
            let slot = self.owners.get(&group)?.list.coldest;
            if slot == NIL {
                return None;
            }
            if !self.slots[slot].pinned {
                return Some(slot);
            }
            self.unlink(slot);
        }
    }

    fn len(&self) -> usize {
        self.slots.len()
    }

    fn eviction_order(&mut self) -> Vec<u32> {
        let by_size = || self.by_bytes.iter().rev().filter_map(|(_, group)| self.owners.get(group));
        let listed = || by_size().flat_map(|owner| self.slots.iter(owner.list));
        let mut order: Vec<u32> = listed().filter(|slot| !self.slots[*slot].pinned).collect();
        order.extend(listed().filter(|slot| self.slots[*slot].pinned));
        order.extend(self.slots.unlisted());
        order
    }

    fn memory_bytes(&self) -> usize {
        self.slots.memory_bytes()
            + self.owners.len() * 2 * size_of::<(u32, TenantQueue, u64, u32)>()
    }
}
