//! Every policy keeps the promises of `Policy`; LRU is compared with a plain vector, order and all.
use std::collections::{HashMap, HashSet};

use kvtier_evict::{PerTenant, PolicyKind, SlotInfo};
use proptest::prelude::*;

#[derive(Clone, Copy, Debug)]
enum Op {
    Insert(u32),
    Touch(u32),
    Remove(u32),
    Pin(u32),
    Unpin(u32),
    Evict,
}

fn op() -> impl Strategy<Value = Op> {
    let slot = 0u32..24;
    prop_oneof![
        4 => slot.clone().prop_map(Op::Insert),
        4 => slot.clone().prop_map(Op::Touch),
        1 => slot.clone().prop_map(Op::Remove),
        2 => slot.clone().prop_map(Op::Pin),
        2 => slot.prop_map(Op::Unpin),
        2 => Just(Op::Evict),
    ]
}

/// Tracked slots from cold to hot, and which of them are pinned.
#[derive(Default)]
struct Model {
    order: Vec<u32>,
    pinned: HashSet<u32>,
}

impl Model {
    fn move_to_hot(&mut self, slot: u32) {
        self.order.retain(|s| *s != slot);
        self.order.push(slot);
    }

    fn remove(&mut self, slot: u32) {
        self.order.retain(|s| *s != slot);
        self.pinned.remove(&slot);
    }

    fn running(&self) -> Vec<u32> {
        self.order.iter().copied().filter(|slot| !self.pinned.contains(slot)).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn lru_is_a_vector_ordered_by_last_use(ops in prop::collection::vec(op(), 1..200)) {
        let mut lru = PolicyKind::Lru.build();
        let mut model = Model::default();
        for op in ops {
            match op {
                Op::Insert(s) => { lru.insert(SlotInfo::new(s, 1)); model.move_to_hot(s) }
                Op::Touch(s) => { lru.touch(s); if model.order.contains(&s) { model.move_to_hot(s) } }
                Op::Remove(s) => { lru.remove(s); model.remove(s) }
                Op::Pin(s) => { lru.pin(s); if model.order.contains(&s) { model.pinned.insert(s); } }
                Op::Unpin(s) => { lru.unpin(s); if model.pinned.remove(&s) { model.move_to_hot(s) } }
                Op::Evict => {
                    let victim = lru.victim();
                    prop_assert_eq!(victim, model.running().first().copied());
                    victim.into_iter().for_each(|s| { lru.remove(s); model.remove(s) });
                }
            }
            let order = lru.eviction_order();
            let running = model.running();
            prop_assert_eq!(&order[..running.len()], &running[..]);
            prop_assert_eq!(order[running.len()..].iter().copied().collect::<HashSet<_>>(), model.pinned.clone());
            prop_assert_eq!(lru.len(), model.order.len());
        }
    }

    #[test]
    fn every_policy_tracks_its_slots_and_never_evicts_a_pinned_one(ops in prop::collection::vec(op(), 1..200)) {
        for kind in PolicyKind::ALL {
            for around in [false, true] {
                let mut policy = kind.build();
                if around && !policy.tracks_tenants() {
                    policy = Box::new(PerTenant::around(policy, |_| 0, |_| false));
                }
                let mut model = Model::default();
                let mut tenants = HashMap::new();
                for (n, op) in (0..).zip(&ops) {
                    match *op {
                        // A slot that is inserted again may have another tenant.
                        Op::Insert(s) => {
                            policy.insert(SlotInfo::new(s, 1).with_tenant(n % 3));
                            model.move_to_hot(s);
                            tenants.insert(s, n % 3);
                        }
                        Op::Touch(s) => policy.touch(s),
                        Op::Remove(s) => { policy.remove(s); model.remove(s) }
                        Op::Pin(s) => { policy.pin(s); if model.order.contains(&s) { model.pinned.insert(s); } }
                        Op::Unpin(s) => { policy.unpin(s); model.pinned.remove(&s); }
                        Op::Evict => {}
                    }
                    let victim = policy.victim();
                    prop_assert_eq!(victim, policy.victim(), "asking changes nothing");
                    prop_assert_eq!(victim.is_some(), !model.running().is_empty() && kind != PolicyKind::Noop);
                    prop_assert!(victim.is_none_or(|s| model.running().contains(&s)));
                    let order = policy.eviction_order();
                    prop_assert_eq!(order.len(), policy.len());
                    prop_assert_eq!(order.into_iter().collect::<HashSet<_>>(), model.order.iter().copied().collect());
                    for tenant in 0..if policy.tracks_tenants() { 3 } else { 0 } {
                        let running: Vec<u32> = model.running().into_iter().filter(|s| tenants[s] == tenant).collect();
                        let victim = policy.tenant_victim(tenant);
                        prop_assert_eq!(victim.is_some(), !running.is_empty() && kind != PolicyKind::Noop, "{}", kind);
                        prop_assert!(victim.is_none_or(|s| running.contains(&s)));
                    }
                }
            }
        }
    }

    #[test]
    fn deferred_hits_have_no_visible_effect(ops in prop::collection::vec(op(), 1..200)) {
        let known = |s: u32| SlotInfo::new(s, 1).with_tag(u64::from(s) + 1).with_chain((!s.is_multiple_of(4)).then(|| s - 1), s % 4);
        for kind in PolicyKind::ALL {
            let mut single = kind.build();
            let mut at_once = kind.build();
            for op in &ops {
                match *op {
                    Op::Touch(s) => { single.touch(s); at_once.touch_chain(&[s]) }
                    Op::Insert(s) => [&mut single, &mut at_once].into_iter().for_each(|policy| policy.insert(known(s))),
                    Op::Remove(s) => { single.remove(s); at_once.remove(s) }
                    Op::Pin(s) => { single.pin(s); at_once.pin(s) }
                    Op::Unpin(s) => { single.unpin(s); at_once.unpin(s) }
                    Op::Evict => {
                        let victim = single.victim();
                        prop_assert_eq!(victim, at_once.victim(), "{}", kind);
                        if let Some(s) = victim {
                            single.evict(s, u64::from(s) + 1);
                            at_once.evict(s, u64::from(s) + 1);
                        }
                    }
                }
                prop_assert_eq!(single.eviction_order(), at_once.eviction_order(), "{}", kind);
            }
        }
    }
}
