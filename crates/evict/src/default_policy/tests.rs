use proptest::prelude::*;

use super::reuse_class::gap_of;
use super::reuse_model::{Evidence, Watched};
use super::*;

/// Every slot's way up ends, and every parent counts its children.
fn check(policy: &KvPolicy) -> Result<(), TestCaseError> {
    let slots: Vec<u32> = (0..16).filter(|slot| policy.nodes.is_tracked(*slot)).collect();
    for slot in &slots {
        let way = core::iter::successors(Some(*slot), |slot| policy.parent_of(*slot));
        prop_assert!(way.take(17).count() <= 16, "a ring through {slot}");
        let children = slots.iter().filter(|kid| policy.parent_of(**kid) == Some(*slot)).count();
        prop_assert_eq!(usize::from(policy.nodes[*slot].children()), children);
    }
    Ok(())
}

#[derive(Clone, Debug)]
enum Op {
    Insert(u32, Option<u32>),
    Touch(Vec<u32>),
    Remove(u32),
    Leave(u32),
    Evict,
}

fn op() -> impl Strategy<Value = Op> {
    let slot = 0..8u32;
    prop_oneof![
        4 => (slot.clone(), prop::option::of(slot.clone())).prop_map(|(slot, parent)| Op::Insert(slot, parent)),
        3 => prop::collection::vec(slot.clone(), 1..6).prop_map(Op::Touch),
        1 => slot.clone().prop_map(Op::Remove),
        1 => slot.prop_map(Op::Leave),
        1 => Just(Op::Evict),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn no_chains_of_callers_make_a_ring(ops in prop::collection::vec(op(), 1..60)) {
        let mut policy = KvPolicy::new();
        for op in ops {
            match op {
                Op::Insert(slot, parent) => policy.insert(SlotInfo::new(slot, 1).with_chain(parent, 0)),
                Op::Touch(chain) => policy.touch_chain(&chain),
                Op::Remove(slot) => policy.remove(slot),
                Op::Leave(slot) => policy.begin_evict(slot),
                Op::Evict => if let Some(victim) = policy.victim() {
                    policy.begin_evict(victim);
                    policy.evict(victim, 1);
                }
            }
            check(&policy)?;
        }
    }
}

#[test]
fn the_order_is_the_order_of_eviction() {
    let mut policy = KvPolicy::new();
    // A chunk with such a hint is worth more the closer its return, and is still evicted in its
    // turn.
    (0..10_000).for_each(|_| policy.returns.returned(hinted(1000).index(), 900, 1.0));
    policy.returns.learn(
        &Watched::new(),
        &Evidence { events_max: 1e9, request_chunks: 1.0, class_weight: 1.0 },
    );
    for slot in 0..1000 {
        policy.insert(SlotInfo::new(slot, 1));
        if slot % 3 == 0 {
            policy.hint(slot, &EvictionHint::new().with_expected_return_ms(1000));
        }
        if slot % 7 == 0 {
            policy.touch(slot / 2);
        }
    }
    [4, 5, 900].into_iter().for_each(|slot| policy.pin(slot));
    let order = policy.eviction_order();
    for slot in &order[..997] {
        assert_eq!(policy.victim(), Some(*slot));
        policy.begin_evict(*slot);
        policy.evict(*slot, 0);
    }
    assert_eq!((&order[997..], policy.victim()), (&[4, 5, 900][..], None));
}

#[test]
fn reading_the_order_applies_deferred_hits() {
    let mut policy = KvPolicy::new();
    (0..2).for_each(|slot| policy.insert(SlotInfo::new(slot, 1)));
    policy.touch(0);
    assert_eq!(
        (policy.eviction_order(), policy.hits.is_empty()),
        (alloc::vec![1, 0], true),
        "not in a copy of all"
    );
}

#[test]
fn a_chunk_that_returns_at_once_is_recognised() {
    let mut policy = KvPolicy::new();
    (0..4).for_each(|slot| policy.insert(SlotInfo::new(slot, 1)));
    policy.evict(0, 77);
    policy.insert(SlotInfo::new(0, 1).with_tag(77));
    assert_eq!(policy.nodes[0].class().hits(), 1);
    policy.evict(0, 77);
    policy.forget(77);
    policy.insert(SlotInfo::new(0, 1).with_tag(77));
    assert_eq!(policy.nodes[0].class().hits(), 0);
}

#[test]
fn the_first_touch_soon_after_a_save_completes_it_and_later_ones_are_hits() {
    let mut policy = KvPolicy::new();
    policy.insert(SlotInfo::new(0, 1));
    let hits = [(); 3].map(|()| {
        policy.touch_chain(&[0]);
        policy.nodes[0].class().hits()
    });
    assert_eq!(hits, [0, 1, 2]);
}

#[test]
fn chunks_saved_one_after_the_other_share_the_pause_before_the_first() {
    let mut policy = KvPolicy::new();
    policy.insert(SlotInfo::new(0, 1));
    // Uses of another chunk make the pause.
    policy.insert(SlotInfo::new(1, 1));
    (0..9).for_each(|_| policy.touch_chain(&[1]));
    for slot in 2..5 {
        let parent = if slot == 2 { 0 } else { slot - 1 };
        policy.insert(SlotInfo::new(slot, 1).with_chain(Some(parent), slot - 1));
    }
    let gaps = [2, 3, 4].map(|slot| policy.nodes[slot].class().last_request().gap());
    assert_eq!(gaps, [gap_of(11, 2); 3]);
    assert_ne!(gap_of(11, 2), gap_of(1, 3), "the pause since the chunk before");
}

#[test]
fn chunks_whose_parents_are_a_ring_go_in_their_turn() {
    let mut policy = KvPolicy::new();
    policy.insert(SlotInfo::new(0, 1));
    policy.insert(SlotInfo::new(1, 1).with_chain(Some(0), 1));
    policy.insert(SlotInfo::new(0, 1).with_chain(Some(1), 2));
    policy.insert(SlotInfo::new(2, 1));
    assert_eq!(policy.victim(), Some(1));
}

#[test]
fn last_chunks_of_requests_go_first_where_they_never_return() {
    // Requests of four chunks. A later one asks for the first three again, as where engines save
    // the last, partly filled block of a prompt, which the next request has filled.
    let mut policy = KvPolicy::new();
    let chain = |n: u32| core::array::from_fn::<u32, 4, _>(|at| 4 * n + at as u32);
    for n in 0..1000 {
        for (depth, slot) in (0..).zip(chain(n)) {
            let parent = (depth > 0).then(|| slot - 1);
            policy.insert(SlotInfo::new(slot, 1).with_chain(parent, depth));
        }
        policy.touch_request(&chain(n), 0);
        if let Some(before) = n.checked_sub(100) {
            policy.touch_request(&chain(before)[..3], 0);
        }
    }
    policy.victim();
    // Of the last hundred requests nothing has been asked for again yet.
    let order: Vec<u32> =
        policy.eviction_order().into_iter().filter(|slot| *slot >= 4 * 900).collect();
    let tails = order[..90].iter().filter(|slot| **slot % 4 == 3).count();
    assert_eq!(tails, 90, "by recency each fourth would be the last chunk of its request");
}

#[test]
fn the_size_of_requests_is_learnt_from_chains_and_not_from_single_chunks() {
    let mut policy = KvPolicy::new();
    let chain: Vec<u32> = (0..64).collect();
    chain.iter().for_each(|slot| policy.insert(SlotInfo::new(*slot, 1)));
    (0..3000).for_each(|_| policy.touch_chain(&chain));
    assert!((63.0..65.0).contains(&policy.request_chunks), "{}", policy.request_chunks);
    (0..3000).for_each(|n| policy.touch(n % 64));
    policy.victim();
    assert!((63.0..65.0).contains(&policy.request_chunks), "{}", policy.request_chunks);
}
