//! Chunks that are there together or not at all.
#![allow(clippy::unwrap_used)]

use kvtier_evict::PolicyKind;
use kvtier_index::{Chunk, Index, IndexConfig, InsertOutcome, Reserve};
use kvtier_key::Digest;

fn key(n: u8) -> Digest {
    Digest([n; 32])
}

fn keys<const N: usize>(numbers: [u8; N]) -> [Digest; N] {
    numbers.map(key)
}

fn index(chunks: u64) -> Index {
    Index::new(IndexConfig::new(chunks * 10).with_high_mark(1.0), PolicyKind::Lru.build()).unwrap()
}

fn save(index: &mut Index, n: u8) -> Vec<u8> {
    let mut gone = Vec::new();
    loop {
        match index.reserve(0, 10) {
            Reserve::Granted(reservation) => {
                assert!(!matches!(
                    index.commit(reservation, Chunk::new(key(n), 8, 10)),
                    InsertOutcome::Refused(_)
                ));
                return gone;
            }
            Reserve::Evict(victims) => gone.extend(victims.iter().map(|victim| {
                index.finish_evict(&victim.chunk.digest);
                victim.chunk.digest.0[0]
            })),
            other => panic!("{other:?}"),
        }
    }
}

/// Declares and saves a set.
fn whole<const N: usize>(index: &mut Index, numbers: [u8; N]) {
    let set = index.declare_set(&keys(numbers)).unwrap().unwrap();
    numbers.into_iter().for_each(|n| assert!(save(index, n).is_empty()));
    index.end_set(set);
}

fn visible(index: &Index) -> Vec<u8> {
    (0..30).filter(|n| index.get(&key(*n)).is_some()).collect()
}

#[test]
fn a_corrupt_member_hides_the_others_until_it_is_written_again() {
    let mut index = index(6);
    whole(&mut index, [1, 2, 3]);
    assert!(save(&mut index, 4).is_empty());
    index.mark_suspect(&key(2));
    assert_eq!(visible(&index), [4]);
    let set = index.declare_set(&keys([1, 2, 3])).unwrap().unwrap();
    assert!(save(&mut index, 2).is_empty());
    index.end_set(set);
    assert_eq!(visible(&index), [1, 2, 3, 4]);
    // A member that is quarantined and then found valid again is visible again.
    index.mark_suspect(&key(3));
    index.clear_suspect(&key(3));
    assert_eq!(visible(&index), [1, 2, 3, 4]);
}

#[test]
fn a_set_is_visible_only_while_it_is_complete() {
    let mut index = index(5);
    let set = index.declare_set(&keys([1, 2, 3])).unwrap().unwrap();
    let seen: Vec<Vec<u8>> = [1, 2, 3].map(|n| (save(&mut index, n), visible(&index)).1).into();
    assert_eq!(seen, [vec![], vec![], vec![1, 2, 3]]);
    index.end_set(set);
    assert_eq!((save(&mut index, 4), save(&mut index, 5)), (vec![], vec![]));
    assert_eq!(save(&mut index, 6), [1], "the oldest");
    assert_eq!(visible(&index), [4, 5, 6]);
    let mut next = [save(&mut index, 7), save(&mut index, 8)].concat();
    next.sort_unstable();
    assert_eq!(next, [2, 3], "its mates, before anything else");
    assert_eq!(visible(&index), [4, 5, 6, 7, 8]);
}

#[test]
fn a_remove_or_a_corrupt_member_hides_the_others_until_it_is_saved_again() {
    let mut index = index(10);
    whole(&mut index, [1, 2]);
    assert!(matches!(index.remove(&key(1)), kvtier_index::RemoveOutcome::Gone(_)));
    assert_eq!(visible(&index), []);
    assert!(save(&mut index, 1).is_empty());
    assert_eq!(visible(&index), [1, 2]);
    assert!(index.forget(&key(2)).is_some());
    assert_eq!(visible(&index), []);
}

#[test]
fn a_hold_on_one_keeps_all() {
    let mut index = index(3);
    whole(&mut index, [1, 2]);
    assert!(save(&mut index, 3).is_empty());
    let hold = index.hold(&keys([2]), 1000).unwrap();
    assert_eq!(save(&mut index, 4), [3], "1 is older");
    assert_eq!(visible(&index), [1, 2, 4]);
    index.release(hold);
    let gone: Vec<u8> = [5, 6, 7].iter().flat_map(|n| save(&mut index, *n)).collect();
    assert_eq!(gone.len(), 3);
    assert_eq!(visible(&index), [5, 6, 7]);
}

#[test]
fn a_set_stays_held_until_its_last_member_is_released() {
    let mut index = index(5);
    whole(&mut index, [1, 2, 3]);
    whole(&mut index, [4, 5]);
    let hold = index.hold(&keys([1, 2, 4]), 1000).unwrap();
    index.release_keys(hold, &keys([4]));
    let held = |index: &Index| (1..=5).filter(|n| index.is_held(&key(*n))).collect::<Vec<_>>();
    assert_eq!(held(&index), [1, 2, 3], "5 was held for the sake of 4 alone");
    index.release_keys(hold, &keys([1]));
    assert_eq!(held(&index), [1, 2, 3]);
    index.release_keys(hold, &keys([2]));
    assert_eq!((held(&index), index.usage().holds), (vec![], 0));
}

#[test]
fn a_member_that_was_named_stays_held_for_another_that_was() {
    let mut index = index(5);
    whole(&mut index, [1, 2]);
    let hold = index.hold(&keys([1, 2]), 1000).unwrap();
    let held = |index: &Index| [1, 2].map(|n| index.is_held(&key(n)));
    index.release_keys(hold, &keys([1]));
    assert_eq!(held(&index), [true, true]);
    index.release_keys(hold, &keys([2]));
    assert_eq!((held(&index), index.usage().holds), ([false, false], 0));
}

#[test]
fn a_set_over_a_corrupt_chunk_is_hidden_until_that_is_written_again() {
    let mut index = index(5);
    assert!(save(&mut index, 1).is_empty());
    index.mark_suspect(&key(1));
    whole(&mut index, [2, 3]);
    let set = index.declare_set(&keys([1, 4])).unwrap().unwrap();
    assert!(save(&mut index, 4).is_empty());
    assert_eq!(visible(&index), [2, 3]);
    assert!(save(&mut index, 1).is_empty());
    index.end_set(set);
    assert_eq!(visible(&index), [1, 2, 3, 4]);
}

#[test]
fn members_of_a_set_that_was_never_complete_are_evicted_first() {
    let mut index = index(4);
    assert!(save(&mut index, 9).is_empty());
    let set = index.declare_set(&keys([1, 2, 3])).unwrap().unwrap();
    [1, 2].into_iter().for_each(|n| assert!(save(&mut index, n).is_empty()));
    index.end_set(set);
    assert!(save(&mut index, 10).is_empty());
    let gone = [save(&mut index, 11), save(&mut index, 12)].concat();
    assert_eq!(gone.len(), 2);
    assert!(!gone.contains(&9), "{gone:?}");
    assert_eq!(visible(&index), [9, 10, 11, 12]);
    // A set of nothing but refusals leaves nothing behind.
    let set = index.declare_set(&keys([20, 21])).unwrap().unwrap();
    index.end_set(set);
    assert_eq!(index.declare_set(&keys([20])), Ok(None));
    let _ = save(&mut index, 20);
    assert_eq!(visible(&index).last(), Some(&20));
}

#[test]
fn a_set_of_two_batches_has_leftovers_when_both_have_ended() {
    let mut index = index(3);
    assert!(save(&mut index, 9).is_empty());
    let batches = [(); 2].map(|()| index.declare_set(&keys([1, 2, 3])).unwrap().unwrap());
    [1, 2].into_iter().for_each(|n| assert!(save(&mut index, n).is_empty()));
    index.end_set(batches[1]);
    assert_eq!(save(&mut index, 10), [9], "the first batch may still save 3");
    index.end_set(batches[0]);
    let mut gone = [save(&mut index, 11), save(&mut index, 12)].concat();
    gone.sort_unstable();
    assert_eq!((gone, visible(&index)), (vec![1, 2], vec![10, 11, 12]));
}

#[test]
fn a_set_that_shares_a_member_takes_the_place_of_the_earlier_one() {
    let mut index = index(10);
    let earlier = index.declare_set(&keys([1, 2])).unwrap().unwrap();
    let later = index.declare_set(&keys([1, 3])).unwrap().unwrap();
    assert_ne!(earlier, later);
    [1, 3].into_iter().for_each(|n| assert!(save(&mut index, n).is_empty()));
    assert_eq!(visible(&index), [1, 3]);
    assert!(index.set_of(&key(2)).is_none());
}

#[test]
fn leftovers_that_appear_after_a_pass_are_evicted_first_too() {
    let mut index = index(8);
    [9, 1, 2].into_iter().for_each(|n| assert!(save(&mut index, n).is_empty()));
    let held = index.hold(&keys([2]), 1000).unwrap();
    let set = index.declare_set(&keys([1, 2, 3, 4, 7])).unwrap().unwrap();
    [3, 4, 5].into_iter().for_each(|n| assert!(save(&mut index, n).is_empty()));
    index.end_set(set);
    let next = |index: &mut Index| {
        let victim = index.evict_bytes(0, 1)[0].chunk.digest;
        assert!(index.finish_evict(&victim));
        victim.0[0]
    };
    assert_eq!([next(&mut index), next(&mut index)], [1, 3]);
    assert!(save(&mut index, 1).is_empty(), "for itself alone, while 4 is yet to go");
    assert_eq!([next(&mut index), next(&mut index)], [1, 4]);
    assert_eq!(next(&mut index), 9, "2 is held, and all else is newer");
    assert!(save(&mut index, 6).is_empty());
    index.release(held);
    assert_eq!(next(&mut index), 2, "though it was used until now");
    assert_eq!(visible(&index), [5, 6]);
}

#[test]
fn a_member_saved_again_is_hidden_without_the_evicted_ones() {
    let mut index = index(10);
    whole(&mut index, [1, 2]);
    assert!(matches!(index.remove(&key(1)), kvtier_index::RemoveOutcome::Gone(_)));
    let again = index.declare_set(&keys([1, 2])).unwrap().unwrap();
    assert!(index.forget(&key(2)).is_some(), "the last of it went while 1 is being saved");
    assert!(save(&mut index, 1).is_empty());
    assert_eq!(visible(&index), []);
    index.end_set(again);
    assert_eq!(visible(&index), []);
    assert!(save(&mut index, 2).is_empty());
    assert_eq!(visible(&index), [1, 2]);
}

#[test]
fn an_aborted_eviction_stays_hidden_without_the_rest_of_its_set() {
    let mut index = index(10);
    whole(&mut index, [1, 2]);
    for n in [1, 2] {
        assert!(matches!(index.begin_evict(&key(n)), kvtier_index::RemoveOutcome::Gone(_)));
    }
    assert!(index.finish_evict(&key(1)) && index.abort_evict(&key(2)));
    assert_eq!(visible(&index), []);
    assert!(matches!(index.remove(&key(2)), kvtier_index::RemoveOutcome::Gone(_)));
    assert!(save(&mut index, 2).is_empty());
    assert_eq!(visible(&index), [2], "the set is over");
}

#[test]
fn a_held_chunk_stays_a_hit_when_a_set_is_declared_over_it() {
    let mut index = index(10);
    assert!(save(&mut index, 1).is_empty());
    let hold = index.hold(&keys([1]), 1000).unwrap();
    let set = index.declare_set(&keys([1, 2])).unwrap().unwrap();
    assert_eq!(visible(&index), [1]);
    index.end_set(set);
    assert_eq!(visible(&index), [1]);
    index.release(hold);
    assert_eq!(visible(&index), []);
    assert!(index.is_hidden(&key(1)) && index.known(&key(1)).is_some());
}

#[test]
fn sets_that_come_and_go_leave_nothing_behind_and_too_many_are_refused() {
    let mut index = index(1 << 20);
    let digest = |n: u64| Digest::derive("test", &n.to_le_bytes());
    let pair = |n: u64| [digest(2 * n), digest(2 * n + 1)];
    for n in 0..1000 {
        let set = index.declare_set(&pair(n)).unwrap().unwrap();
        index.end_set(set);
    }
    let all: Vec<_> = (0..1 << 19).map(|n| index.declare_set(&pair(n)).unwrap().unwrap()).collect();
    assert_eq!(index.declare_set(&pair(1 << 19)).unwrap_err().missing, 1 << 20);
    assert!(index.declare_set(&pair(7)).is_ok(), "it is declared already");
    all.into_iter().for_each(|set| index.end_set(set));
    assert!(index.declare_set(&pair(1 << 19)).is_ok());
}

#[test]
fn present_members_do_not_count_as_missing() {
    let config = IndexConfig::new(10_000).with_high_mark(1.0).with_missing_max(4);
    let mut index = Index::new(config, PolicyKind::Lru.build()).unwrap();
    (0..10).for_each(|n| whole(&mut index, [2 * n, 2 * n + 1]));
    assert_eq!(visible(&index).len(), 20, "more than may be missing are there");
    (40..60).for_each(|n| {
        assert!(matches!(index.declare_set(&keys([100 + n, 60 + n])), Ok(Some(_))) == (n < 50))
    });
    assert_eq!(
        index.declare_set(&keys([30, 31])).unwrap_err().missing,
        20,
        "as many are missing as there are chunks"
    );
    assert!(index.declare_set(&keys([0, 1])).is_ok(), "it is declared already");
    assert!(index.declare_set(&keys([100 + 40, 31])).is_ok(), "it takes the place of another");
}

#[test]
fn missing_members_are_counted_after_any_change() {
    let config = IndexConfig::new(10_000).with_high_mark(1.0).with_missing_max(6);
    let mut index = Index::new(config, PolicyKind::Lru.build()).unwrap();
    let three = keys([1, 2, 3]);
    for _ in 0..50 {
        let set = index.declare_set(&three).unwrap().unwrap();
        [1, 2, 3].into_iter().for_each(|n| assert!(save(&mut index, n).is_empty()));
        index.end_set(set);
        assert!(
            matches!(index.begin_evict(&three[0]), kvtier_index::RemoveOutcome::Gone(_))
                && index.abort_evict(&three[0])
        );
        assert!(
            matches!(index.begin_evict(&three[1]), kvtier_index::RemoveOutcome::Gone(_))
                && index.finish_evict(&three[1])
        );
        assert!(matches!(index.begin_evict(&three[2]), kvtier_index::RemoveOutcome::Gone(_)));
        // Saved again while it was on its way out, and another set over two of the three.
        assert!(save(&mut index, 3).is_empty() && index.forget(&three[2]).is_some());
        let over = index.declare_set(&keys([1, 3])).unwrap().unwrap();
        index.end_set(over);
        assert!(index.forget(&three[0]).is_some());
    }
    let six = index.declare_set(&keys([11, 12, 13, 14, 15, 16]));
    assert!(six.is_ok(), "nothing is left of the others: {six:?}");
    assert_eq!(index.declare_set(&keys([17, 18])).unwrap_err().missing, 6);
}
