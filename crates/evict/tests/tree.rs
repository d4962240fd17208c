//! The default policy on prefix trees: leaves before their parents, nothing is left behind, hints
//! take effect.
#![allow(clippy::unwrap_used)]

use std::collections::{HashMap, HashSet};

use kvtier_evict::{EvictionHint, Policy, PolicyKind, SlotInfo};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    /// A chain of this many chunks continues from a present chunk.
    Save {
        from: usize,
        n: usize,
    },
    /// A chunk is used, with all before it.
    Use(usize),
    Evict,
    Remove(usize),
    Pin(usize),
    Unpin(usize),
    Hint(usize, u8),
}

fn op() -> impl Strategy<Value = Op> {
    let any = 0..1000usize;
    prop_oneof![
        4 => (any.clone(), 1..5usize).prop_map(|(from, n)| Op::Save { from, n }),
        3 => any.clone().prop_map(Op::Use),
        4 => Just(Op::Evict),
        1 => any.clone().prop_map(Op::Remove),
        1 => any.clone().prop_map(Op::Pin),
        1 => any.clone().prop_map(Op::Unpin),
        1 => (any, 0..4u8).prop_map(|(at, hint)| Op::Hint(at, hint)),
    ]
}

#[derive(Default)]
struct Tree {
    /// Parents by slot.
    parents: HashMap<u32, Option<u32>>,
    pinned: HashSet<u32>,
    vacant: Vec<u32>,
}

impl Tree {
    fn pick(&self, at: usize) -> Option<u32> {
        let mut slots: Vec<u32> = self.parents.keys().copied().collect();
        slots.sort_unstable();
        (!slots.is_empty()).then(|| slots[at % slots.len()])
    }

    fn add(&mut self, parent: Option<u32>) -> u32 {
        let slot = self.vacant.pop().unwrap_or(self.parents.len() as u32);
        self.parents.insert(slot, parent);
        slot
    }

    /// Takes a slot away; its children are roots from now on.
    fn remove(&mut self, slot: u32) {
        self.parents.remove(&slot);
        self.pinned.remove(&slot);
        self.parents
            .values_mut()
            .filter(|parent| **parent == Some(slot))
            .for_each(|parent| *parent = None);
        self.vacant.push(slot);
    }

    fn chain(&self, slot: u32) -> Vec<u32> {
        let mut chain: Vec<u32> =
            std::iter::successors(Some(slot), |slot| self.parents[slot]).collect();
        chain.reverse();
        chain
    }

    fn is_leaf(&self, slot: u32) -> bool {
        !self.parents.values().any(|parent| *parent == Some(slot))
    }
}

fn evict(policy: &mut dyn Policy, tree: &mut Tree) -> Result<bool, TestCaseError> {
    let free = |slot: &u32| !tree.pinned.contains(slot);
    let Some(victim) = policy.victim() else {
        prop_assert!(!tree.parents.keys().any(free), "what is not pinned can go");
        return Ok(false);
    };
    prop_assert_eq!(policy.victim(), Some(victim));
    prop_assert!(tree.parents.contains_key(&victim) && free(&victim));
    let leaves = tree.parents.keys().any(|slot| free(slot) && tree.is_leaf(*slot));
    prop_assert!(tree.is_leaf(victim) || !leaves, "a leaf goes before its parent");
    policy.begin_evict(victim);
    policy.evict(victim, u64::from(victim) + 1);
    tree.remove(victim);
    Ok(true)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn leaves_go_before_their_parents_and_everything_can_go(ops in prop::collection::vec(op(), 1..200)) {
        let mut policy = PolicyKind::Default.build();
        let mut tree = Tree::default();
        for (time, op) in (0..).zip(ops) {
            policy.set_time(time * 100);
            match op {
                Op::Save { from, n } => {
                    let mut parent = tree.pick(from);
                    for depth in 0..n as u32 {
                        let slot = tree.add(parent);
                        policy.insert(SlotInfo::new(slot, 1).with_chain(parent, depth).with_tag(u64::from(slot) + 1));
                        parent = Some(slot);
                    }
                    policy.touch_chain(&tree.chain(parent.unwrap()));
                }
                Op::Use(at) => tree.pick(at).into_iter().for_each(|slot| policy.touch_chain(&tree.chain(slot))),
                Op::Evict => _ = evict(&mut *policy, &mut tree)?,
                // Removing out of order makes holes, and slots whose children are orphans are filled again.
                Op::Remove(at) => if let Some(slot) = tree.pick(at) {
                    policy.remove(slot);
                    tree.remove(slot);
                }
                Op::Pin(at) => if let Some(slot) = tree.pick(at) {
                    policy.pin(slot);
                    tree.pinned.insert(slot);
                }
                Op::Unpin(at) => if let Some(slot) = tree.pick(at) {
                    policy.unpin(slot);
                    tree.pinned.remove(&slot);
                }
                Op::Hint(at, hint) => if let Some(slot) = tree.pick(at) {
                    let hints = [
                        EvictionHint::new().with_session_ended(),
                        EvictionHint::new().with_expected_return_ms(1 << (at % 40)),
                        EvictionHint::new().with_priority(at as i8),
                        EvictionHint::new().with_retention_ms(at as u64),
                    ];
                    policy.hint(slot, &hints[usize::from(hint)]);
                }
            }
            prop_assert_eq!(policy.len(), tree.parents.len());
            prop_assert_eq!(policy.eviction_order().len(), tree.parents.len());
        }
        std::mem::take(&mut tree.pinned).into_iter().for_each(|slot| policy.unpin(slot));
        while evict(&mut *policy, &mut tree)? {}
        prop_assert!(policy.is_empty());
    }
}

fn saved(n: u32) -> Box<dyn Policy> {
    let mut policy = PolicyKind::Default.build();
    (0..n).for_each(|slot| policy.insert(SlotInfo::new(slot, 1).with_tag(u64::from(slot) + 1)));
    policy
}

#[test]
fn retained_chunks_are_evicted_last_until_their_time() {
    let mut policy = saved(3);
    policy.set_time(1000);
    policy.hint(0, &EvictionHint::new().with_retention_ms(500));
    policy.touch(0);
    policy.set_time(1499);
    assert_eq!((policy.victim(), policy.eviction_order()), (Some(1), vec![1, 2, 0]));
    policy.remove(1);
    policy.remove(2);
    assert_eq!(policy.victim(), Some(0), "kept, but not against all else");
    policy.insert(SlotInfo::new(1, 1));
    assert_eq!(policy.victim(), Some(1));
    policy.set_time(1500);
    policy.touch(1);
    assert_eq!(policy.victim(), Some(0));
}

#[test]
fn a_retention_that_is_set_again_ends_at_the_later_time() {
    for [first, second] in [[500, 900], [900, 500]] {
        let mut policy = saved(2);
        policy.hint(0, &EvictionHint::new().with_retention_ms(first));
        policy.hint(0, &EvictionHint::new().with_retention_ms(second));
        policy.set_time(899);
        policy.touch(1);
        assert_eq!(policy.victim(), Some(1), "{first} and {second}");
        policy.set_time(900);
        policy.touch(1);
        assert_eq!(policy.victim(), Some(0));
    }
}

#[test]
fn a_retained_chunk_has_its_own_time_in_the_slot_of_another() {
    for another_hint in [false, true] {
        let mut policy = saved(2);
        policy.hint(0, &EvictionHint::new().with_retention_ms(500));
        if another_hint {
            policy.hint(0, &EvictionHint::new().with_session_ended());
        } else {
            policy.remove(0);
            policy.insert(SlotInfo::new(0, 1));
        }
        policy.hint(0, &EvictionHint::new().with_retention_ms(400));
        policy.set_time(400);
        policy.touch(1);
        assert_eq!(policy.victim(), Some(0), "not kept until 500");
        policy.hint(0, &EvictionHint::new().with_retention_ms(400));
        policy.set_time(500);
        policy.touch(1);
        assert_eq!(policy.victim(), Some(1), "kept until 800");
    }
}

#[test]
fn a_retention_that_is_set_often_takes_memory_once() {
    let mut policy = saved(1);
    policy.hint(0, &EvictionHint::new().with_retention_ms(1));
    let before = policy.memory_bytes();
    (0..1000).for_each(|ms| policy.hint(0, &EvictionHint::new().with_retention_ms(1000 + ms)));
    assert_eq!(policy.memory_bytes(), before);
}

#[test]
fn priority_outlasts_recency_a_while() {
    let mut policy = saved(3);
    policy.hint(0, &EvictionHint::new().with_priority(2));
    assert_eq!(policy.victim(), Some(1));
    policy.hint(2, &EvictionHint::new().with_priority(-1));
    assert_eq!(policy.eviction_order().last(), Some(&0));
}

#[test]
fn a_chunk_that_costs_more_for_its_bytes_stays_longer() {
    let mut policy = PolicyKind::Default.build();
    for slot in 0..40 {
        let cost = if slot == 0 { 4000 } else { 1000 };
        policy.insert(SlotInfo::new(slot, 1000).with_cost(if slot < 2 { cost } else { 1000 }));
    }
    policy.insert(SlotInfo::new(40, 1000).with_cost(9000));
    policy.insert(SlotInfo::new(41, 1000).with_cost(1000));
    let order = policy.eviction_order();
    let at = |slot: u32| order.iter().position(|s| *s == slot).unwrap();
    assert!(at(40) > at(41), "costs more to compute again");
}

#[test]
fn chunks_after_the_one_of_lowest_density_are_shed() {
    let mut policy = PolicyKind::Default.build();
    policy.insert(SlotInfo::new(0, 1));
    assert_eq!((policy.victim_for(None), policy.victim_for(Some(0))), (Some(0), None));
    assert_eq!(policy.victim_for(Some(7)), Some(0));
}

#[test]
fn a_slot_takes_20_bytes_and_the_memory_of_the_gone_at_most_4() {
    let slots = 1 << 20;
    let mut policy = saved(slots);
    let before = policy.memory_bytes();
    assert!(before <= 21 * slots as usize, "{before}");
    for slot in 0..slots {
        policy.begin_evict(slot);
        policy.evict(slot, u64::from(slot) + 1);
        policy.insert(SlotInfo::new(slot, 1).with_tag(u64::from(slot) + u64::from(slots) + 1));
    }
    assert!(policy.memory_bytes() <= before + 4 * slots as usize, "{}", policy.memory_bytes());
}
