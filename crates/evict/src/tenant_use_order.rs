//! Extends any policy by a use order within each tenant, for quotas.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::slots::{NIL, SlotList, Slots};
use crate::{EvictionHint, Policy, SlotInfo};

/// The number of a tenant's coldest slots that are checked for an [evictable](Policy::is_evictable)
/// one before the coldest is chosen all the same.
const SCAN_MAX: usize = 64;

/// The slots of one tenant.
#[derive(Clone, Copy, Debug)]
struct TenantSlots {
    /// Those that are not pinned.
    list: SlotList,
    /// Their number, pinned ones included.
    slots: usize,
}

impl TenantSlots {
    const NEW: TenantSlots = TenantSlots { list: SlotList::EMPTY, slots: 0 };
}

/// Any policy, extended by a use order per tenant ([`SlotInfo::tenant`]). The policy decides which
/// slot is evicted in general; the use order decides which slot of one tenant is. 12 bytes a slot
/// in addition to the policy's own.
#[derive(Debug)]
pub struct PerTenant {
    policy: Box<dyn Policy>,
    /// The tenant of each slot; the slot is in its tenant's list unless it is pinned.
    slots: Slots<u32>,
    tenants: BTreeMap<u32, TenantSlots>,
}

impl PerTenant {
    /// Extends a policy that may track slots already: `tenant_of` gives their tenants, `is_pinned`
    /// which of them are pinned. Until they are used, they are in the order of the policy.
    pub fn around(
        mut policy: Box<dyn Policy>,
        tenant_of: impl Fn(u32) -> u32,
        is_pinned: impl Fn(u32) -> bool,
    ) -> Self {
        let mut slots = Slots::new();
        let mut tenants = BTreeMap::new();
        // The policy's order is all that is known of uses before this: coldest first, pinned slots
        // last.
        for of_one in policy.eviction_order().chunk_by(|a, b| tenant_of(*a) == tenant_of(*b)) {
            let tenant = tenant_of(of_one[0]);
            // Consecutive slots mostly have one tenant.
            let slots_of = tenants.entry(tenant).or_insert(TenantSlots::NEW);
            slots_of.slots += of_one.len();
            for slot in of_one.iter().copied() {
                slots.track(slot, tenant);
                if !is_pinned(slot) {
                    slots.push_hottest(&mut slots_of.list, slot);
                }
            }
        }
        PerTenant { policy, slots, tenants }
    }

    /// Assigns a slot to a tenant, as its hottest. A pinned slot stays pinned.
    fn assign(&mut self, slot: u32, tenant: u32) {
        // Pins are kept by the lists alone: a tracked slot is pinned where it is in no list.
        let pinned = self.slots.is_tracked(slot) && !self.slots.is_listed(slot);
        self.unassign(slot);
        self.slots.track(slot, tenant);
        self.tenants.entry(tenant).or_insert(TenantSlots::NEW).slots += 1;
        if !pinned {
            self.link(slot);
        }
    }

    fn unassign(&mut self, slot: u32) {
        if !self.slots.is_tracked(slot) {
            return;
        }
        self.unlink(slot);
        let tenant = self.slots[slot];
        self.slots.untrack(slot);
        let slots_of = self.slots_of(tenant);
        slots_of.slots -= 1;
        if slots_of.slots == 0 {
            // A salt that appears once must not take memory for ever.
            self.tenants.remove(&tenant);
        }
    }

    fn slots_of(&mut self, tenant: u32) -> &mut TenantSlots {
        self.tenants.get_mut(&tenant).expect("a tracked slot has a tenant")
    }

    /// Makes a slot the hottest of its tenant, if it is tracked and in no list.
    fn link(&mut self, slot: u32) {
        if self.slots.is_tracked(slot) && !self.slots.is_listed(slot) {
            let tenant = self.slots[slot];
            // A copy, since `slots` and the list are both borrowed from `self`.
            let mut list = self.slots_of(tenant).list;
            self.slots.push_hottest(&mut list, slot);
            self.slots_of(tenant).list = list;
        }
    }

    /// Removes a slot from its tenant's list. Returns whether it was there.
    fn unlink(&mut self, slot: u32) -> bool {
        let listed = self.slots.is_listed(slot);
        if listed {
            let tenant = self.slots[slot];
            let mut list = self.slots_of(tenant).list;
            self.slots.unlink(&mut list, slot);
            self.slots_of(tenant).list = list;
        }
        listed
    }

    fn renew(&mut self, slot: u32) {
        if self.unlink(slot) {
            self.link(slot);
        }
    }
}

// Every method is passed on, those with a default too (`is_empty` follows from `len`). A default
// would hide the call from the policy within, which then learns less than alone.
impl Policy for PerTenant {
    fn name(&self) -> &'static str {
        self.policy.name()
    }

    fn insert(&mut self, entry: SlotInfo) {
        self.policy.insert(entry);
        self.assign(entry.slot, entry.tenant);
    }

    fn reserve(&mut self, entry: SlotInfo) {
        self.policy.reserve(entry);
        self.assign(entry.slot, entry.tenant);
    }

    fn touch(&mut self, slot: u32) {
        self.policy.touch(slot);
        self.renew(slot);
    }

    fn touch_chain(&mut self, chain: &[u32]) {
        self.policy.touch_chain(chain);
        // The head last, so that tails of chains are the coldest.
        chain.iter().rev().for_each(|slot| self.renew(*slot));
    }

    fn touch_request(&mut self, chain: &[u32], absent: usize) {
        self.policy.touch_request(chain, absent);
        chain.iter().rev().for_each(|slot| self.renew(*slot));
    }

    fn hint(&mut self, slot: u32, hint: &EvictionHint) {
        self.policy.hint(slot, hint);
    }

    fn set_time(&mut self, now_ms: u64) {
        self.policy.set_time(now_ms);
    }

    fn remove(&mut self, slot: u32) {
        self.policy.remove(slot);
        self.unassign(slot);
    }

    fn evict(&mut self, slot: u32, tag: u64) {
        self.policy.evict(slot, tag);
        self.unassign(slot);
    }

    fn forget(&mut self, tag: u64) {
        self.policy.forget(tag);
    }

    fn shed(&mut self, tag: u64) {
        self.policy.shed(tag);
    }

    fn pin(&mut self, slot: u32) {
        self.policy.pin(slot);
        self.unlink(slot);
    }

    fn begin_evict(&mut self, slot: u32) {
        self.policy.begin_evict(slot);
        // No victim again while it is being evicted.
        self.unlink(slot);
    }

    fn unpin(&mut self, slot: u32) {
        self.policy.unpin(slot);
        // It was in use until now.
        self.link(slot);
    }

    fn victim(&mut self) -> Option<u32> {
        self.policy.victim()
    }

    fn victim_for(&mut self, parent: Option<u32>) -> Option<u32> {
        self.policy.victim_for(parent)
    }

    fn accepts_orphans(&self) -> bool {
        self.policy.accepts_orphans()
    }

    fn is_evictable(&self, slot: u32) -> bool {
        self.policy.is_evictable(slot)
    }

    fn tracks_tenants(&self) -> bool {
        true
    }

    fn tenant_victim(&mut self, tenant: u32) -> Option<u32> {
        let list = self.tenants.get(&tenant)?.list;
        let coldest = (list.coldest != NIL).then_some(list.coldest);
        // Retained chunks and those with children are passed over, up to a limit: a tenant may have
        // nothing else, and each save above its quota searches.
        self.slots
            .iter(list)
            .take(SCAN_MAX)
            .find(|slot| self.policy.is_evictable(*slot))
            .or(coldest)
    }

    fn len(&self) -> usize {
        self.policy.len()
    }

    fn eviction_order(&mut self) -> Vec<u32> {
        self.policy.eviction_order()
    }

    fn memory_bytes(&self) -> usize {
        self.policy.memory_bytes()
            + self.slots.memory_bytes()
            + self.tenants.len() * 2 * size_of::<(u32, TenantSlots)>()
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::PolicyKind;

    fn entry(slot: u32, tenant: u32) -> SlotInfo {
        SlotInfo::new(slot, 1).with_tenant(tenant)
    }

    #[test]
    fn the_least_recently_used_slot_of_a_tenant_is_its_victim_under_any_policy() {
        let mut tenants = PerTenant::around(PolicyKind::Fifo.build(), |_| 0, |_| false);
        for (slot, tenant) in [(0, 7), (1, 8), (2, 7), (3, 8)] {
            tenants.insert(entry(slot, tenant));
        }
        tenants.touch(0);
        assert_eq!(
            (tenants.victim(), tenants.tenant_victim(7), tenants.tenant_victim(8)),
            (Some(0), Some(2), Some(1))
        );
        tenants.pin(2);
        tenants.touch(2);
        assert_eq!((tenants.tenant_victim(7), tenants.tenant_victim(9)), (Some(0), None));
        tenants.insert(entry(2, 7));
        assert_eq!(tenants.tenant_victim(7), Some(0), "pinned, it stays so");
        tenants.begin_evict(0);
        assert_eq!(tenants.tenant_victim(7), None);
        tenants.unpin(2);
        tenants.insert(entry(1, 7));
        assert_eq!(
            (tenants.tenant_victim(7), tenants.tenant_victim(8)),
            (Some(2), Some(3)),
            "1 has another tenant"
        );
        [0, 1, 2].into_iter().for_each(|slot| tenants.evict(slot, 1));
        assert_eq!((tenants.tenant_victim(7), tenants.tenants.len(), tenants.len()), (None, 1, 1));
    }

    #[test]
    fn a_policy_that_tracks_slots_already_keeps_them() {
        let mut policy = PolicyKind::Lru.build();
        (0..6).for_each(|slot| policy.insert(entry(slot, slot % 2)));
        policy.pin(1);
        policy.touch(0);
        let mut tenants = PerTenant::around(policy, |slot| slot % 2, |slot| slot == 1);
        assert_eq!(
            (tenants.tenant_victim(0), tenants.tenant_victim(1), tenants.victim()),
            (Some(2), Some(3), Some(2))
        );
        tenants.unpin(1);
        assert_eq!(tenants.eviction_order(), vec![2, 3, 4, 5, 0, 1]);
    }

    #[test]
    fn the_policy_within_learns_what_it_would_alone() {
        fn use_of(policy: &mut dyn Policy) {
            policy.set_time(7);
            (0..4).for_each(|slot| policy.insert(entry(slot, 7)));
            policy.reserve(entry(4, 8));
            policy.touch(0);
            policy.touch_chain(&[0, 1]);
            policy.touch_request(&[0, 1, 2], 5);
            policy.hint(3, &EvictionHint::new().with_session_ended());
            [70, 71].into_iter().for_each(|tag| policy.shed(tag));
            policy.forget(71);
            policy.pin(0);
            policy.unpin(0);
            policy.begin_evict(1);
            policy.evict(1, 72);
            policy.remove(2);
            // Policies with a memory still have the other one.
            policy.evict(3, 73);
            policy.forget(72);
            policy.victim();
        }
        for kind in PolicyKind::ALL {
            let mut alone = kind.build();
            let mut tenants = PerTenant::around(kind.build(), |_| 0, |_| false);
            use_of(&mut *alone);
            use_of(&mut tenants);
            let same = alloc::format!("{alone:?}") == alloc::format!("{:?}", tenants.policy);
            assert!(same, "{kind} learns less");
            assert_eq!((tenants.name(), tenants.len()), (kind.name(), alone.len()));
            assert_eq!(tenants.victim_for(None), alone.victim_for(None), "{kind}");
            let evictable = [0, 4].map(|slot| tenants.is_evictable(slot));
            assert_eq!(evictable, [0, 4].map(|slot| alone.is_evictable(slot)), "{kind}");
        }
    }

    #[test]
    fn tails_of_chains_go_before_heads_and_what_is_retained_last() {
        let mut tenants = PerTenant::around(PolicyKind::Default.build(), |_| 0, |_| false);
        tenants.set_time(0);
        (0..4)
            .for_each(|slot| tenants.insert(entry(slot, 7).with_chain(slot.checked_sub(1), slot)));
        tenants.insert(entry(9, 7));
        let mut gone = vec![];
        tenants.hint(9, &EvictionHint::new().with_retention_ms(1000));
        while let Some(slot) = tenants.tenant_victim(7) {
            tenants.begin_evict(slot);
            tenants.evict(slot, 1);
            gone.push(slot);
        }
        assert_eq!(gone, [3, 2, 1, 0, 9]);
    }

    #[test]
    fn tenants_take_twelve_bytes_a_slot() {
        let mut tenants = PerTenant::around(PolicyKind::Default.build(), |_| 0, |_| false);
        (0..1 << 16).for_each(|slot| tenants.insert(entry(slot, slot % 3)));
        assert!(tenants.memory_bytes() - tenants.policy.memory_bytes() <= (12 << 16) + 2048);
    }

    #[test]
    fn the_policy_within_decides_on_orphans() {
        let accepts = [PolicyKind::Lru, PolicyKind::Default]
            .map(|kind| PerTenant::around(kind.build(), |_| 0, |_| false).accepts_orphans());
        assert_eq!(accepts, [true, false]);
    }

    #[test]
    fn memory_is_that_of_the_policy_and_of_the_slots_and_tenants() {
        let mut tenants = PerTenant::around(PolicyKind::Lru.build(), |_| 0, |_| false);
        [5, 6, 7].into_iter().for_each(|tenant| tenants.insert(entry(tenant, tenant)));
        let slots = tenants.policy.memory_bytes() + tenants.slots.memory_bytes();
        assert_eq!(tenants.memory_bytes(), slots + 3 * 2 * 24);
    }
}
