use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::slots::{NIL, SlotList, Slots};
use crate::{EvictionHint, Policy, SlotInfo};

/// So many of an owner's coldest slots are looked at for one that [may go](Policy::is_evictable) before
/// the coldest goes all the same.
const LOOKS_MAX: usize = 64;

/// The slots of one owner.
#[derive(Clone, Copy, Debug)]
struct TenantSlots {
    /// Those that are not pinned.
    list: SlotList,
    /// Pinned ones too.
    slots: usize,
}

impl TenantSlots {
    const NEW: TenantSlots = TenantSlots { list: SlotList::EMPTY, slots: 0 };
}

/// Any policy, and beside it for each owner ([`SlotInfo::tenant`]) the order in which its slots were
/// used: who goes, the policy says, and which slot of one owner goes, that order. 12 bytes a slot
/// more than the policy takes.
#[derive(Debug)]
pub struct PerTenant {
    policy: Box<dyn Policy>,
    /// Whose each slot is; in its owner's list unless it is pinned.
    slots: Slots<u32>,
    owners: BTreeMap<u32, TenantSlots>,
}

impl PerTenant {
    /// Around a policy that tracks slots already: whose they are, and which of them are pinned, the
    /// caller knows. Until they are used, they are in the order of the policy.
    pub fn around(
        mut policy: Box<dyn Policy>,
        group_of: impl Fn(u32) -> u32,
        is_pinned: impl Fn(u32) -> bool,
    ) -> Self {
        let (mut slots, mut owners) = (Slots::new(), BTreeMap::new());
        for of_one in policy.eviction_order().chunk_by(|a, b| group_of(*a) == group_of(*b)) {
            let group = group_of(of_one[0]);
            // Slots that stand together have one owner, mostly.
            let owner = owners.entry(group).or_insert(TenantSlots::NEW);
            owner.slots += of_one.len();
            for slot in of_one.iter().copied() {
                slots.track(slot, group);
                if !is_pinned(slot) {
                    slots.push_hottest(&mut owner.list, slot);
                }
            }
        }
        PerTenant { policy, slots, owners }
    }

    /// Makes a slot this owner's, as the hottest. One that is pinned stays so.
    fn own(&mut self, slot: u32, group: u32) {
        let pinned = self.slots.is_tracked(slot) && !self.slots.is_listed(slot);
        self.disown(slot);
        self.slots.track(slot, group);
        self.owners.entry(group).or_insert(TenantSlots::NEW).slots += 1;
        if !pinned {
            self.link(slot);
        }
    }

    fn disown(&mut self, slot: u32) {
        if !self.slots.is_tracked(slot) {
            return;
        }
        self.unlink(slot);
        let group = self.slots[slot];
        self.slots.untrack(slot);
        let owner = self.owner(group);
        owner.slots -= 1;
        if owner.slots == 0 {
            self.owners.remove(&group);
        }
    }

    fn owner(&mut self, group: u32) -> &mut TenantSlots {
        self.owners.get_mut(&group).expect("a tracked slot has an owner")
    }

    /// Makes a slot the hottest of its owner's, if it is tracked and in no list.
    fn link(&mut self, slot: u32) {
        if self.slots.is_tracked(slot) && !self.slots.is_listed(slot) {
            let group = self.slots[slot];
            let mut list = self.owner(group).list;
            self.slots.push_hottest(&mut list, slot);
            self.owner(group).list = list;
        }
    }

    /// Takes a slot out of its owner's list, if it is there. Answers whether it was.
    fn unlink(&mut self, slot: u32) -> bool {
        let listed = self.slots.is_listed(slot);
        if listed {
            let group = self.slots[slot];
            let mut list = self.owner(group).list;
            self.slots.unlink(&mut list, slot);
            self.owner(group).list = list;
        }
        listed
    }

    fn renew(&mut self, slot: u32) {
        if self.unlink(slot) {
            self.link(slot);
        }
    }
}

impl Policy for PerTenant {
    fn name(&self) -> &'static str {
        self.policy.name()
    }

    fn insert(&mut self, entry: SlotInfo) {
        self.policy.insert(entry);
        self.own(entry.slot, entry.tenant);
    }

    fn reserve(&mut self, entry: SlotInfo) {
        self.policy.reserve(entry);
        self.own(entry.slot, entry.tenant);
    }

    fn touch(&mut self, slot: u32) {
        self.policy.touch(slot);
        self.renew(slot);
    }

    fn touch_chain(&mut self, chain: &[u32]) {
        self.policy.touch_chain(chain);
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
        self.disown(slot);
    }

    fn evict(&mut self, slot: u32, tag: u64) {
        self.policy.evict(slot, tag);
        self.disown(slot);
    }

    fn forget(&mut self, tag: u64) {
        self.policy.forget(tag);
    }

    fn pin(&mut self, slot: u32) {
        self.policy.pin(slot);
        self.unlink(slot);
    }

    fn begin_evict(&mut self, slot: u32) {
        self.policy.begin_evict(slot);
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

    fn tenant_victim(&mut self, group: u32) -> Option<u32> {
        let list = self.owners.get(&group)?.list;
        let coldest = (list.coldest != NIL).then_some(list.coldest);
        self.slots
            .iter(list)
            .take(LOOKS_MAX)
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
            + self.owners.len() * 2 * size_of::<(u32, TenantSlots)>()
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::PolicyKind;

    fn entry(slot: u32, group: u32) -> SlotInfo {
        SlotInfo::new(slot, 1).with_tenant(group)
    }

    #[test]
    fn of_one_owner_the_least_recently_used_goes_whatever_the_policy_says_of_all() {
        let mut owners = PerTenant::around(PolicyKind::Fifo.build(), |_| 0, |_| false);
        for (slot, group) in [(0, 7), (1, 8), (2, 7), (3, 8)] {
            owners.insert(entry(slot, group));
        }
        owners.touch(0);
        assert_eq!(
            (owners.victim(), owners.tenant_victim(7), owners.tenant_victim(8)),
            (Some(0), Some(2), Some(1))
        );
        owners.pin(2);
        owners.touch(2);
        assert_eq!((owners.tenant_victim(7), owners.tenant_victim(9)), (Some(0), None));
        owners.insert(entry(2, 7));
        assert_eq!(owners.tenant_victim(7), Some(0), "pinned, it stays so");
        owners.begin_evict(0);
        assert_eq!(owners.tenant_victim(7), None);
        owners.unpin(2);
        owners.insert(entry(1, 7));
        assert_eq!(
            (owners.tenant_victim(7), owners.tenant_victim(8)),
            (Some(2), Some(3)),
            "1 has another owner"
        );
        [0, 1, 2].into_iter().for_each(|slot| owners.evict(slot, 1));
        assert_eq!((owners.tenant_victim(7), owners.owners.len(), owners.len()), (None, 1, 1));
    }

    #[test]
    fn a_policy_that_tracks_slots_already_keeps_them() {
        let mut policy = PolicyKind::Lru.build();
        (0..6).for_each(|slot| policy.insert(entry(slot, slot % 2)));
        policy.pin(1);
        policy.touch(0);
        let mut owners = PerTenant::around(policy, |slot| slot % 2, |slot| slot == 1);
        assert_eq!(
            (owners.tenant_victim(0), owners.tenant_victim(1), owners.victim()),
            (Some(2), Some(3), Some(2))
        );
        owners.unpin(1);
        assert_eq!(owners.eviction_order(), vec![2, 3, 4, 5, 0, 1]);
    }

    #[test]
    fn tails_of_chains_go_before_heads_and_what_is_retained_last() {
        let mut owners = PerTenant::around(PolicyKind::Default.build(), |_| 0, |_| false);
        owners.set_time(0);
        (0..4).for_each(|slot| owners.insert(entry(slot, 7).with_chain(slot.checked_sub(1), slot)));
        owners.insert(entry(9, 7));
        let mut gone = vec![];
        owners.hint(9, &EvictionHint::new().with_retention_ms(1000));
        while let Some(slot) = owners.tenant_victim(7) {
            owners.begin_evict(slot);
            owners.evict(slot, 1);
            gone.push(slot);
        }
        assert_eq!(gone, [3, 2, 1, 0, 9]);
    }

    #[test]
    fn owners_take_twelve_bytes_a_slot() {
        let mut owners = PerTenant::around(PolicyKind::Default.build(), |_| 0, |_| false);
        (0..1 << 16).for_each(|slot| owners.insert(entry(slot, slot % 3)));
        assert!(owners.memory_bytes() - owners.policy.memory_bytes() <= (12 << 16) + 2048);
    }
}
