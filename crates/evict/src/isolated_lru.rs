//! One LRU per tenant; the tenant with the most bytes is evicted from first.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use crate::slots::{NIL, SlotList, Slots};
use crate::{Policy, SlotInfo};

/// What the policy keeps of a slot.
#[derive(Clone, Copy, Debug, Default)]
struct Owned {
    tenant: u32,
    /// The bytes in 48 bits, so that a node has 20 bytes; no slot holds more.
    bytes_low: u32,
    bytes_high: u16,
    pinned: bool,
}

impl Owned {
    fn new(entry: &SlotInfo, pinned: bool) -> Self {
        let bytes = entry.bytes.min((1 << 48) - 1);
        Owned {
            tenant: entry.tenant,
            bytes_low: bytes as u32,
            bytes_high: (bytes >> 32) as u16,
            pinned,
        }
    }

    fn bytes(self) -> u64 {
        u64::from(self.bytes_high) << 32 | u64::from(self.bytes_low)
    }
}

/// The slots of one tenant.
#[derive(Clone, Copy, Debug)]
struct TenantQueue {
    list: SlotList,
    bytes: u64,
    slots: usize,
}

/// One LRU for each tenant ([`SlotInfo::tenant`]; a cache salt, say): LMCache's IsolatedLRU. A
/// victim of no particular tenant is one of the tenant with the most bytes.
#[derive(Clone, Debug)]
pub struct IsolatedLru {
    slots: Slots<Owned>,
    tenants: BTreeMap<u32, TenantQueue>,
    /// Tenants by their bytes.
    by_bytes: BTreeSet<(u64, u32)>,
}

impl IsolatedLru {
    /// A policy without slots.
    pub fn new() -> Self {
        IsolatedLru { slots: Slots::new(), tenants: BTreeMap::new(), by_bytes: BTreeSet::new() }
    }

    /// Adds a slot to a tenant's counts or subtracts it.
    fn update_tenant(&mut self, tenant: u32, change: impl FnOnce(&mut TenantQueue)) {
        let queue = self.tenants.entry(tenant).or_insert(TenantQueue {
            list: SlotList::EMPTY,
            bytes: 0,
            slots: 0,
        });
        // The set is in the order of the bytes, so the entry leaves before they change.
        self.by_bytes.remove(&(queue.bytes, tenant));
        change(queue);
        // A tenant without slots is dropped: a salt that appears once must not take memory for
        // ever.
        match queue.slots {
            0 => drop(self.tenants.remove(&tenant)),
            _ => drop(self.by_bytes.insert((queue.bytes, tenant))),
        }
    }

    fn list(&mut self, slot: u32) -> &mut SlotList {
        &mut self
            .tenants
            .get_mut(&self.slots[slot].tenant)
            .expect("a tracked slot has a tenant")
            .list
    }

    fn link(&mut self, slot: u32) {
        // A copy, since `slots` and the list are both borrowed from `self`.
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
        // The tenant and the bytes may have changed, so it is removed and added.
        self.remove(entry.slot);
        let owned = Owned::new(&entry, pinned);
        self.slots.track(entry.slot, owned);
        self.update_tenant(entry.tenant, |queue| {
            (queue.bytes, queue.slots) = (queue.bytes + owned.bytes(), queue.slots + 1)
        });
        // After the counts: only now the tenant certainly has a list.
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
            // Before the counts: they drop the list of a tenant with its last slot.
            self.unlink(slot);
        }
        let owned = self.slots[slot];
        self.slots.untrack(slot);
        self.update_tenant(owned.tenant, |queue| {
            (queue.bytes, queue.slots) = (queue.bytes - owned.bytes(), queue.slots - 1)
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
        // The tenants before the first that has a victim have nothing but pinned slots.
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

    fn tenant_victim(&mut self, tenant: u32) -> Option<u32> {
        loop {
            let slot = self.tenants.get(&tenant)?.list.coldest;
            if slot == NIL {
                return None;
            }
            if !self.slots[slot].pinned {
                return Some(slot);
            }
            // Parked until its pin ends, so that no later search passes it.
            self.unlink(slot);
        }
    }

    fn len(&self) -> usize {
        self.slots.len()
    }

    fn eviction_order(&mut self) -> Vec<u32> {
        let by_size =
            || self.by_bytes.iter().rev().filter_map(|(_, tenant)| self.tenants.get(tenant));
        let listed = || by_size().flat_map(|queue| self.slots.iter(queue.list));
        let mut order: Vec<u32> = listed().filter(|slot| !self.slots[*slot].pinned).collect();
        order.extend(listed().filter(|slot| self.slots[*slot].pinned));
        order.extend(self.slots.unlisted());
        order
    }

    fn memory_bytes(&self) -> usize {
        self.slots.memory_bytes()
            + self.tenants.len() * 2 * size_of::<(u32, TenantQueue, u64, u32)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_tenants(slots: &[(u32, u64)]) -> IsolatedLru {
        let mut policy = IsolatedLru::new();
        for (slot, (tenant, bytes)) in (0..).zip(slots) {
            policy.insert(SlotInfo::new(slot, *bytes).with_tenant(*tenant));
        }
        policy
    }

    #[test]
    fn a_tenant_has_the_bytes_of_its_slots_and_goes_with_the_last() {
        let mut policy = with_tenants(&[(7, 6), (7, 2), (8, 1 << 40)]);
        let by_bytes = |policy: &IsolatedLru| policy.by_bytes.iter().copied().collect::<Vec<_>>();
        assert_eq!(by_bytes(&policy), [(8, 7), (1 << 40, 8)]);
        policy.remove(1);
        assert_eq!(by_bytes(&policy), [(6, 7), (1 << 40, 8)]);
        policy.remove(2);
        assert_eq!((by_bytes(&policy), policy.tenants.len()), (alloc::vec![(6, 7)], 1));
    }

    #[test]
    fn memory_is_that_of_the_slots_and_of_each_tenant() {
        let policy = with_tenants(&[(1, 1), (2, 1), (3, 1), (3, 1)]);
        assert_eq!(policy.memory_bytes(), policy.slots.memory_bytes() + 3 * 2 * 40);
    }
}
