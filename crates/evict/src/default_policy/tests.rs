use proptest::prelude::*;

use super::reuse_class::{NEW, TAIL, gap_of};
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
        if slot % 5 == 0 {
            policy.hint(slot, &EvictionHint::new().with_priority(1));
        }
        if slot % 40 == 1 {
            policy.hint(slot, &EvictionHint::new().with_retention_ms(1000));
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

fn of_slots(count: u32) -> KvPolicy {
    let mut policy = KvPolicy::new();
    (0..count).for_each(|slot| policy.insert(SlotInfo::new(slot, 1)));
    policy
}

#[test]
fn the_first_of_retention_return_and_end_is_the_class_of_a_hint() {
    let mut policy = of_slots(1);
    policy.touch_chain(&[0]);
    policy.touch_chain(&[0]);
    let seen = policy.nodes[0].class();
    let returns = EvictionHint::new().with_expected_return_ms(1000);
    let hints = [
        EvictionHint::new().with_priority(1),
        EvictionHint::new().with_session_ended(),
        returns,
        returns.with_session_ended(),
        returns.with_session_ended().with_retention_ms(5),
    ];
    let classes = hints.map(|hint| {
        policy.hint(0, &hint);
        policy.nodes[0].class()
    });
    let expected = [ENDED, hinted(1000), hinted(1000), RETAINED].map(|class| class.with_hits(1));
    assert_eq!((classes[0], &classes[1..]), (seen, &expected[..]));
}

#[test]
fn the_end_of_a_pin_that_was_none_changes_nothing() {
    let mut policy = of_slots(3);
    policy.unpin(0);
    assert_eq!(policy.eviction_order(), [0, 1, 2]);
    policy.begin_evict(0);
    policy.evict(0, 0);
    policy.unpin(0);
    assert_eq!(policy.eviction_order(), [1, 2]);
}

#[test]
fn a_shed_chunk_that_is_saved_later_has_returned() {
    let mut policy = of_slots(3);
    // The first eviction makes the table.
    policy.evict(0, 0);
    policy.shed(77);
    policy.insert(SlotInfo::new(0, 1).with_tag(77));
    assert_eq!(policy.nodes[0].class().hits(), 1);
}

#[test]
fn chunks_saved_one_after_the_other_are_counted() {
    let mut policy = KvPolicy::new();
    for slot in 0..20 {
        let parent = u32::checked_sub(slot, 1);
        policy.insert(SlotInfo::new(slot, 1).with_chain(parent, slot));
        let request = policy.nodes[slot].class().last_request();
        assert_eq!(request, LastRequest::new(NEW, slot as usize + 1), "{slot}");
    }
    policy.insert(SlotInfo::new(20, 1).with_chain(Some(0), 1));
    let request = policy.nodes[20].class().last_request();
    assert_eq!(request, LastRequest::new(gap_of(20, 20), 1), "it does not continue the last one");
}

#[test]
fn a_request_uses_its_chunks_the_deepest_first_and_those_that_are_absent() {
    let mut policy = of_slots(5);
    policy.touch_request(&[3, 0, 4], 2);
    assert_eq!([3, 0, 4].map(|slot| policy.nodes[slot].stamp), [8, 7, 6]);
    // Little enough that one use more would show.
    let mut guard = Guard::new();
    guard.missed(0, 8, 0.006);
    policy.guard.missed(0, 8, 0.006);
    guard.count_uses(5);
    assert_eq!(policy.guard.class_weight(0), guard.class_weight(0));
    assert!((0.2..0.9).contains(&guard.class_weight(0)));
}

#[test]
fn the_mean_of_request_sizes_moves_by_a_part_of_the_difference() {
    let mut policy = KvPolicy::new();
    policy.touch_chain(&(0..64).collect::<Vec<u32>>());
    assert_eq!(policy.request_chunks, 16.0 + 48.0 / 256.0);
}

#[test]
fn only_the_last_chunk_of_a_request_is_a_tail_and_only_before_its_first_hit() {
    let classes = |absent: usize, requests: usize| {
        let mut policy = of_slots(3);
        (0..requests).for_each(|_| policy.touch_request(&[0, 1, 2], absent));
        [0, 1, 2].map(|slot| policy.nodes[slot].class())
    };
    let new = |added| ReuseClass::seen(0, LastRequest::new(NEW, added));
    assert_eq!(classes(0, 1), [new(3), new(3), TAIL]);
    assert_eq!(classes(9, 1), [new(12); 3]);
    assert_eq!(classes(0, 2).map(ReuseClass::hits), [1; 3]);
    assert!(classes(0, 2).iter().all(|class| *class != TAIL.with_hits(1)));
}

#[test]
fn a_touch_completes_saves_of_the_last_two_requests_of_its_size_or_a_part_of_all_chunks() {
    let policy = of_slots(97);
    let completed =
        [1, 2, 5, 10].map(|n| (0..97).filter(|slot| policy.completes(*slot, n)).count());
    // Of age 0 to 3, 4, 10 and 20.
    assert_eq!(completed, [4, 5, 11, 21]);
}

#[test]
fn a_request_that_only_added_absent_chunks_has_no_child_of_its_own() {
    let mut policy = of_slots(1);
    policy.touch_chain(&[0]);
    for child in 1..3 {
        policy.insert(SlotInfo::new(child, 1).with_chain(Some(0), 1));
    }
    assert_eq!(policy.last_request(&[0]), LastRequest::new(NEW, 0), "two others share the prompt");
    assert_eq!(policy.last_request(&[0, 2]), LastRequest::new(gap_of(2, 3), 1));
}

#[test]
fn a_request_whose_chunks_return_from_eviction_has_the_pause_that_they_had() {
    let mut policy = of_slots(20);
    policy.evict(4, 77);
    policy.insert(SlotInfo::new(4, 1).with_tag(77));
    let pause = gap_of(16, 19);
    assert_eq!((policy.nodes[4].class().hits(), pause), (1, 2));
    policy.insert(SlotInfo::new(20, 1).with_chain(Some(4), 1));
    policy.insert(SlotInfo::new(21, 1).with_chain(Some(20), 2));
    policy.absent = 3;
    assert_eq!(policy.last_request(&[4, 20, 21]), LastRequest::new(pause, 5));
    assert_eq!(policy.last_request(&[20, 21]), LastRequest::new(NEW, 5), "these are new");
}

#[test]
fn the_model_is_updated_after_as_many_uses_as_an_eighth_of_the_chunks() {
    let mut policy = of_slots(40_000);
    let learnt = [0, 4999, 1, 4999, 1].map(|uses| {
        policy.now += uses;
        policy.victim();
        policy.learnt_at
    });
    assert_eq!(learnt, [40_000, 40_000, 45_000, 45_000, 50_000]);
}

#[test]
fn each_update_watches_one_of_several_parts_for_all_of_them() {
    let mut policy = KvPolicy::new();
    // One slot and one ghost, each in the second part of two.
    policy.insert(SlotInfo::new(40_000, 1));
    let (slot, ghost) = (policy.nodes[40_000].class(), hinted(1000));
    policy.history.make(1 << 20);
    let parts = [0..1 << 15, 1 << 15..1 << 16];
    let is_second = |history: &ReuseHistory| history.ghosts(parts[1].clone()).count() == 1;
    let pushed = (1..).filter(|tag| policy.history.samples(*tag)).find(|tag| {
        let mut history = ReuseHistory::new();
        history.make(1 << 20);
        history.push(*tag, Ghost { stamp: 0, class: ghost });
        is_second(&history)
    });
    policy.history.push(pushed.unwrap(), Ghost { stamp: 0, class: ghost });
    for class in [slot, ghost] {
        (0..100).for_each(|_| policy.returns.returned(class.index(), 50, 1.0));
    }
    policy.now = 100;
    let model = |watched: &Watched| {
        let mut returns = policy.returns.clone();
        let evidence =
            Evidence { events_max: 1e9, request_chunks: policy.request_chunks, class_weight: 1.0 };
        returns.learn(watched, &evidence);
        [slot, ghost].map(|class| returns.hit_density(class.index(), 10))
    };
    let first = model(&Watched::new());
    let mut watched = Watched::new();
    watched.add(slot.index(), 99, 2.0);
    // A ghost stands for eight.
    watched.add(ghost.index(), 100, 16.0);
    let second = model(&watched);
    let densities = [(); 3].map(|()| {
        policy.learn();
        [slot, ghost].map(|class| policy.returns.hit_density(class.index(), 10))
    });
    assert_eq!(densities, [first, second, first]);
    assert_ne!(first, second);
}

#[test]
fn a_slot_that_was_left_is_no_parent_even_when_its_generations_begin_again() {
    let mut policy = of_slots(1);
    policy.insert(SlotInfo::new(1, 1).with_chain(Some(0), 1));
    policy.remove(0);
    for _ in 1..16 {
        policy.insert(SlotInfo::new(0, 1));
        policy.insert(SlotInfo::new(2, 1).with_chain(Some(0), 1));
        policy.remove(0);
    }
    let generation = policy.nodes.of_any(0).unwrap().generation();
    assert_eq!(generation, policy.nodes[1].parent_generation());
    assert_eq!(policy.parent_of(1), None);
}

#[test]
fn a_parent_that_was_not_passed_over_keeps_its_place_when_it_loses_its_child() {
    let mut policy = of_slots(2);
    policy.insert(SlotInfo::new(2, 1).with_chain(Some(1), 1));
    policy.remove(2);
    assert_eq!(policy.eviction_order(), [0, 1]);
}

#[test]
fn a_list_of_retained_chunks_is_used_for_one_victim_only() {
    let mut policy = of_slots(1 << 16);
    policy.hint(9, &EvictionHint::new().with_retention_ms(5));
    let retained = policy.nodes[9].list();
    (0..1 << 16).filter(|slot| *slot != 9).for_each(|slot| policy.pin(slot));
    assert_eq!((policy.victim(), policy.cheap), (Some(9), (retained, 0)));
    policy.unpin(7);
    assert_eq!((policy.victim(), policy.cheap), (Some(7), (policy.nodes[7].list(), 1)));
}
