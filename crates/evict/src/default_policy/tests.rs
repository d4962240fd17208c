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

#[test]
fn memory_is_that_of_all_parts() {
    let mut policy = KvPolicy::new();
    (0..3).for_each(|slot| policy.insert(SlotInfo::new(slot, 1)));
    policy.evict(0, 77);
    policy.hint(1, &EvictionHint::new().with_retention_ms(5));
    let parts = [
        policy.nodes.memory_bytes(),
        policy.history.memory_bytes(),
        policy.returns.memory_bytes(),
        policy.retained.memory_bytes(),
    ];
    assert!(parts.iter().all(|bytes| *bytes > 8), "{parts:?}");
    assert_eq!(policy.memory_bytes(), parts.iter().sum::<usize>() + 4 * 192 * 8);
}

#[test]
fn a_slot_is_no_older_after_its_pin_than_the_one_before_it() {
    let mut policy = KvPolicy::new();
    (0..3).for_each(|slot| policy.insert(SlotInfo::new(slot, 1)));
    let stamps = |policy: &KvPolicy| [0, 1, 2].map(|slot| policy.nodes[slot].stamp);
    policy.pin(2);
    policy.unpin(2);
    assert_eq!(stamps(&policy), [1, 2, 3], "it was the newest");
    policy.pin(0);
    policy.unpin(0);
    assert_eq!(stamps(&policy), [3, 2, 3]);
}

#[test]
fn a_parent_is_the_next_victim_while_its_child_is_evicted() {
    let mut policy = KvPolicy::new();
    policy.insert(SlotInfo::new(0, 1));
    policy.insert(SlotInfo::new(1, 1).with_chain(Some(0), 1));
    policy.insert(SlotInfo::new(2, 1));
    policy.begin_evict(1);
    assert_eq!((policy.nodes[1].is_pinned(), policy.nodes[0].children()), (true, 0));
    assert_eq!(policy.victim(), Some(0));
}

#[test]
fn a_request_shows_what_follows_what_where_the_caller_did_not() {
    let mut policy = KvPolicy::new();
    (0..3).for_each(|slot| policy.insert(SlotInfo::new(slot, 1)));
    policy.insert(SlotInfo::new(3, 1).with_chain(Some(2), 1));
    policy.touch_chain(&[0, 1, 3]);
    assert_eq!([0, 1, 3].map(|slot| policy.parent_of(slot)), [None, Some(0), Some(2)]);
}

#[test]
fn after_a_chunk_with_several_children_a_new_conversation_begins() {
    let mut policy = KvPolicy::new();
    policy.insert(SlotInfo::new(0, 1));
    let mut gaps = Vec::new();
    for child in 1..4 {
        policy.insert(SlotInfo::new(child, 1).with_chain(Some(0), 1));
        gaps.push([0, 1].map(|own| policy.gap_since(0, own) == reuse_class::NEW));
    }
    assert_eq!(gaps, [[false, false], [true, false], [true, true]]);
}

#[test]
fn a_request_that_adds_a_chunk_beside_one_other_goes_on() {
    let mut policy = KvPolicy::new();
    policy.insert(SlotInfo::new(0, 1));
    policy.insert(SlotInfo::new(1, 1).with_chain(Some(0), 1));
    policy.touch_request(&[0, 1], 0);
    policy.insert(SlotInfo::new(2, 1).with_chain(Some(0), 1));
    assert_ne!(policy.last_request(&[0, 2]).gap(), reuse_class::NEW);
    policy.insert(SlotInfo::new(3, 1).with_chain(Some(0), 1));
    assert_eq!(policy.last_request(&[0, 3]).gap(), reuse_class::NEW, "two others share the prompt");
}

#[test]
fn the_weight_of_a_chunk_multiplies_its_density() {
    let mut policy = KvPolicy::new();
    (0..2).for_each(|slot| policy.insert(SlotInfo::new(slot, 1)));
    (0..100).for_each(|_| policy.touch_chain(&[1]));
    policy.insert(SlotInfo::new(2, 1));
    policy.hint(2, &EvictionHint::new().with_priority(-1));
    (0..4).for_each(|_| policy.touch_chain(&[1]));
    assert_eq!(policy.victim(), Some(0), "worth less than half of the other");
}

#[test]
fn the_list_found_last_is_used_for_as_many_victims_as_are_left() {
    let mut policy = KvPolicy::new();
    (0..3).for_each(|slot| policy.insert(SlotInfo::new(slot, 1)));
    policy.hint(2, &EvictionHint::new().with_priority(2));
    let dear = policy.nodes[2].list();
    policy.cheap = (dear, 1);
    assert_eq!(policy.victim(), Some(2));
    policy.cheap = (dear, 0);
    assert_eq!(policy.victim(), Some(0));
    policy.cheap = (dear, 1);
    policy.pin(2);
    assert_eq!((policy.victim(), policy.cheap), (Some(0), (policy.nodes[0].list(), 0)));
}

#[test]
fn one_search_finds_a_victim_for_each_65536_chunks() {
    let mut policy = KvPolicy::new();
    (0..131_072).for_each(|slot| policy.insert(SlotInfo::new(slot, 1)));
    let left = [0, 1, 2, 3].map(|slot| {
        assert_eq!(policy.victim(), Some(slot));
        policy.evict(slot, 0);
        policy.cheap.1
    });
    assert_eq!(left, [1, 0, 0, 0]);
}

#[test]
fn chunks_that_are_present_are_watched_by_each_update() {
    let mut policy = KvPolicy::new();
    (0..100).for_each(|slot| policy.insert(SlotInfo::new(slot, 1)));
    let class = policy.nodes[0].class().index();
    (0..100).for_each(|_| policy.returns.returned(class, 50, 1.0));
    let densities = [(); 3].map(|()| {
        policy.learn();
        policy.returns.hit_density(class, 10)
    });
    assert_eq!(densities, [densities[0]; 3]);
}

#[test]
fn chunks_that_were_evicted_are_watched_too() {
    let density = |remembered: bool| {
        let mut policy = KvPolicy::new();
        (0..1000).for_each(|slot| policy.insert(SlotInfo::new(slot, 1)));
        let class = policy.nodes[0].class().index();
        (0..100).for_each(|_| policy.returns.returned(class, 50, 1.0));
        // One stays, so that both have a table.
        for slot in 1..1000 {
            policy.evict(slot, if remembered { u64::from(slot) << 40 | 7 } else { 0 });
        }
        policy.learn();
        policy.returns.hit_density(class, 10)
    };
    assert!(density(true) < 0.9 * density(false), "{} {}", density(true), density(false));
}

/// A full cache of ten chunks, the first of which was evicted. Others, each after the parent that
/// `parent_of` gives for its slot, are saved in its turn, and last the first again. Whether LRU is
/// ahead then.
fn is_lru_ahead_after(saves: u32, parent_of: fn(u32) -> Option<u32>) -> bool {
    let mut policy = KvPolicy::new();
    (0..10).for_each(|slot| policy.insert(SlotInfo::new(slot, 1)));
    policy.evict(9, 77);
    let save = |policy: &mut KvPolicy, n: u32, tag| {
        let slot = 9 - n % 9;
        policy.evict(slot, u64::from(n) + 1000);
        policy.insert(SlotInfo::new(slot, 1).with_chain(parent_of(n), n).with_tag(tag));
    };
    (0..saves).for_each(|n| save(&mut policy, n, 0));
    save(&mut policy, saves, 77);
    policy.guard.class_weight(10) < 1.0
}

#[test]
fn what_a_chain_displaces_itself_was_still_held_when_its_request_began() {
    let chain = |n: u32| n.checked_sub(1).map(|before| 9 - before % 9);
    assert!(is_lru_ahead_after(40, chain), "LRU would have had the hit");
    // Each of these is a request of its own, since all continue one chunk.
    assert!(!is_lru_ahead_after(40, |_| Some(0)), "LRU has evicted it long before");
}
