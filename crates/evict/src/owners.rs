use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::slots::{List, NIL, Slots};
use crate::{Entry, Hint, Policy};

/// So many of an owner's coldest slots are looked at for one that [may go](Policy::may_go) before
/// the coldest goes all the same.
const LOOKS_MAX: usize = 64;

/// The slots of one owner.
#[derive(Clone, Copy, Debug)]
struct Owner {
    /// Those that are not pinned.
    list: List,
    /// Pinned ones too.
    slots: usize,
}

impl Owner {
    const NEW: Owner = Owner { list: List::EMPTY, slots: 0 };
}

/// Any policy, and beside it for each owner ([`Entry::group`]) the order in which its slots were
/// used: who goes, the policy says, and which slot of one owner goes, that order. 12 bytes a slot
/// more than the policy takes.
#[derive(Debug)]
pub struct Owners {
    policy: Box<dyn Policy>,
    /// Whose each slot is; in its owner's list unless it is pinned.
    slots: Slots<u32>,
    owners: BTreeMap<u32, Owner>,
}

impl Owners {
    /// Around a policy that tracks slots already: whose they are, and which of them are pinned, the
    /// caller knows. Until they are used, they are in the order of the policy.
    pub fn around(
        mut policy: Box<dyn Policy>,
        group_of: impl Fn(u32) -> u32,
        is_pinned: impl Fn(u32) -> bool,
    ) -> Self {
        let (mut slots, mut owners) = (Slots::new(), BTreeMap::new());
        for of_one in policy.order().chunk_by(|a, b| group_of(*a) == group_of(*b)) {
            let group = group_of(of_one[0]);
            // Slots that stand together have one owner, mostly.
            let owner = owners.entry(group).or_insert(Owner::NEW);
            owner.slots += of_one.len();
            for slot in of_one.iter().copied() {
                slots.track(slot, group);
                if !is_pinned(slot) {
                    slots.push_hottest(&mut owner.list, slot);
                }
            }
        }
        Owners { policy, slots, owners }
    }

    /// Makes a slot this owner's, as the hottest. One that is pinned stays so.
    fn own(&mut self, slot: u32, group: u32) {
        let pinned = self.slots.is_tracked(slot) && !self.slots.is_listed(slot);
        self.disown(slot);
        self.slots.track(slot, group);
        self.owners.entry(group).or_insert(Owner::NEW).slots += 1;
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

    fn owner(&mut self, group: u32) -> &mut Owner {
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

impl Policy for Owners {
    fn name(&self) -> &'static str {
        self.policy.name()
    }

    fn insert(&mut self, entry: Entry) {
        self.policy.insert(entry);
        self.own(entry.slot, entry.group);
    }

    fn reserve(&mut self, entry: Entry) {
        self.policy.reserve(entry);
        self.own(entry.slot, entry.group);
    }

    fn touch(&mut self, slot: u32) {
        self.policy.touch(slot);
        self.renew(slot);
    }

    fn touch_chain(&mut self, chain: &[u32]) {
        self.policy.touch_chain(chain);
        chain.iter().rev().for_each(|slot| self.renew(*slot));
    }

    fn hint(&mut self, slot: u32, hint: &Hint) {
        self.policy.hint(slot, hint);
    }

    fn at(&mut self, now_ms: u64) {
        self.policy.at(now_ms);
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

    fn leave(&mut self, slot: u32) {
        self.policy.leave(slot);
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

    fn takes_orphans(&self) -> bool {
        self.policy.takes_orphans()
    }

    fn may_go(&self, slot: u32) -> bool {
        self.policy.may_go(slot)
    }

    fn knows_owners(&self) -> bool {
        true
    }

    fn victim_of(&mut self, group: u32) -> Option<u32> {
        let list = self.owners.get(&group)?.list;
        let coldest = (list.coldest != NIL).then_some(list.coldest);
        self.slots.iter(list).take(LOOKS_MAX).find(|slot| self.policy.may_go(*slot)).or(coldest)
    }

    fn len(&self) -> usize {
        self.policy.len()
    }

    fn order(&mut self) -> Vec<u32> {
        self.policy.order()
    }

    fn memory_bytes(&self) -> usize {
        self.policy.memory_bytes()
            + self.slots.memory_bytes()
            + self.owners.len() * 2 * size_of::<(u32, Owner)>()
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::PolicyKind;

    fn entry(slot: u32, group: u32) -> Entry {
        Entry::new(slot, 1).with_group(group)
    }

    #[test]
    fn of_one_owner_the_least_recently_used_goes_whatever_the_policy_says_of_all() {
        let mut owners = Owners::around(PolicyKind::Fifo.build(), |_| 0, |_| false);
        for (slot, group) in [(0, 7), (1, 8), (2, 7), (3, 8)] {
            owners.insert(entry(slot, group));
        }
        owners.touch(0);
        assert_eq!(
            (owners.victim(), owners.victim_of(7), owners.victim_of(8)),
            (Some(0), Some(2), Some(1))
        );
        owners.pin(2);
        owners.touch(2);
        assert_eq!((owners.victim_of(7), owners.victim_of(9)), (Some(0), None));
        owners.insert(entry(2, 7));
        assert_eq!(owners.victim_of(7), Some(0), "pinned, it stays so");
        owners.leave(0);
        assert_eq!(owners.victim_of(7), None);
        owners.unpin(2);
        owners.insert(entry(1, 7));
        assert_eq!(
            (owners.victim_of(7), owners.victim_of(8)),
            (Some(2), Some(3)),
            "1 has another owner"
        );
        [0, 1, 2].into_iter().for_each(|slot| owners.evict(slot, 1));
        assert_eq!((owners.victim_of(7), owners.owners.len(), owners.len()), (None, 1, 1));
    }

    #[test]
    fn a_policy_that_tracks_slots_already_keeps_them() {
        let mut policy = PolicyKind::Lru.build();
        (0..6).for_each(|slot| policy.insert(entry(slot, slot % 2)));
        policy.pin(1);
        policy.touch(0);
        let mut owners = Owners::around(policy, |slot| slot % 2, |slot| slot == 1);
        assert_eq!(
            (owners.victim_of(0), owners.victim_of(1), owners.victim()),
            (Some(2), Some(3), Some(2))
        );
        owners.unpin(1);
        assert_eq!(owners.order(), vec![2, 3, 4, 5, 0, 1]);
    }

    #[test]
    fn tails_of_chains_go_before_heads_and_what_is_retained_last() {
        let mut owners = Owners::around(PolicyKind::Default.build(), |_| 0, |_| false);
        owners.at(0);
        (0..4).for_each(|slot| owners.insert(entry(slot, 7).with_chain(slot.checked_sub(1), slot)));
        owners.insert(entry(9, 7));
        let mut gone = vec![];
        owners.hint(9, &Hint::new().with_retention_ms(1000));
        while let Some(slot) = owners.victim_of(7) {
            owners.leave(slot);
            owners.evict(slot, 1);
            gone.push(slot);
        }
        assert_eq!(gone, [3, 2, 1, 0, 9]);
    }

    #[test]
    fn owners_take_twelve_bytes_a_slot() {
        let mut owners = Owners::around(PolicyKind::Default.build(), |_| 0, |_| false);
        (0..1 << 16).for_each(|slot| owners.insert(entry(slot, slot % 3)));
        assert!(owners.memory_bytes() - owners.policy.memory_bytes() <= (12 << 16) + 2048);
    }
}
