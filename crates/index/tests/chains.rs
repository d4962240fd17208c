//! What an index makes of the places of chunks in their chains.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use kvtier_evict::{EvictionHint, PolicyKind};
use kvtier_index::{
    ChainPlace, Chunk, DigestTag, Index, IndexConfig, Refusal, Reserve, ReserveRequest, TenantId,
};
use kvtier_key::{ChunkHash, Digest, Key, KeyId, KvRank, Namespace, ObjectKey};

/// Chunk `n` of a chain in one of the ranks.
fn key(rank: i64, n: u64) -> Key {
    let ns = Arc::new(Namespace::new("tests", Digest::derive("layout", b"tests")));
    let hash = ChunkHash::new(Digest::derive("chunk", &n.to_le_bytes()).as_bytes());
    Key::new(ns, KeyId::Object(ObjectKey::new("model", KvRank(rank), 0, hash, "").unwrap()))
}

fn after(rank: i64, n: u64, depth: u32) -> ChainPlace {
    ChainPlace::new(Some(DigestTag::from_digest(key(rank, n).digest())), depth)
}

fn inferred(index: &Index, n: u64) -> (Option<DigestTag>, u32) {
    let place = index.place_of(&key(0, n));
    assert!(!place.explicit);
    (place.parent, place.depth)
}

fn index(chunks: u64, policy: PolicyKind) -> Index {
    Index::new(IndexConfig::new(chunks * 10).with_high_mark(1.0), policy.build()).unwrap()
}

/// Saves a chunk of ten bytes after another; what went for it, or why it was not taken.
fn save(index: &mut Index, n: u64, place: ChainPlace) -> Result<Vec<Digest>, Refusal> {
    let mut gone = Vec::new();
    loop {
        let request = ReserveRequest::new(10).with_place(place).with_digest(key(0, n).digest());
        match index.reserve_for(0, &request) {
            Reserve::Granted(reservation) => {
                let _ = index
                    .commit(reservation, Chunk::new(*key(0, n).digest(), 8, 10).with_place(place));
                return Ok(gone);
            }
            Reserve::Evict(victims) => {
                for victim in victims {
                    assert!(index.finish_evict(&victim.chunk.digest));
                    gone.push(victim.chunk.digest);
                }
            }
            Reserve::Full(why) => return Err(why),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_lookup_gives_the_positions_of_later_saves() {
    let mut index = index(8, PolicyKind::Default);
    assert_eq!(save(&mut index, 0, ChainPlace::default()), Ok(vec![]));
    index.learn_order(&[key(0, 0), key(0, 1), key(0, 2)]);
    assert_eq!(inferred(&index, 1), (after(0, 0, 1).parent, 1));
    assert_eq!(inferred(&index, 2), (after(0, 1, 2).parent, 2));
    assert_eq!(index.place_of(&key(0, 3)), ChainPlace::default(), "no lookup named it");
    assert_eq!(index.get(key(0, 0).digest()).unwrap().chunk.parent, None);
    index.learn_order(&[key(0, 9), key(0, 0)]);
    assert_eq!(
        index.get(key(0, 0).digest()).unwrap().chunk.parent,
        Some(DigestTag::from_digest(key(0, 9).digest()))
    );
    // A later lookup that begins in the middle of a chain goes on counting.
    index.learn_order(&[key(0, 2), key(0, 3)]);
    assert_eq!(inferred(&index, 3), (after(0, 2, 3).parent, 3));
}

#[test]
fn one_lookup_may_interleave_chains_of_several_ranks() {
    let mut index = index(8, PolicyKind::Default);
    let keys: Vec<Key> = (0..3).flat_map(|n| [key(1, n), key(2, n)]).collect();
    index.learn_order(&keys);
    for rank in [1, 2] {
        assert_eq!(index.place_of(&key(rank, 0)), ChainPlace::default());
        assert_eq!(index.place_of(&key(rank, 1)).parent, after(rank, 0, 1).parent);
        assert_eq!(index.place_of(&key(rank, 2)).parent, after(rank, 1, 2).parent);
    }
}

#[test]
fn positions_from_lookups_take_bounded_memory() {
    let mut index = index(8, PolicyKind::Default);
    let keys: Vec<Key> = (0..40_000).map(|n| key(0, n)).collect();
    index.learn_order(&keys);
    assert_eq!(index.place_of(&keys[1]), ChainPlace::default());
    assert_eq!(index.place_of(&keys[39_999]).parent, after(0, 39_998, 0).parent);
}

#[test]
fn the_rest_of_a_chain_does_not_push_out_its_beginning() {
    for (policy, taken) in [(PolicyKind::Default, 4), (PolicyKind::Lru, 9)] {
        let mut index = index(4, policy);
        let mut place = ChainPlace::default();
        let saved = (0..9).take_while(|n| {
            let saved = save(&mut index, *n, place).is_ok();
            place = after(0, *n, *n as u32 + 1);
            saved
        });
        assert_eq!(saved.count(), taken, "{policy}");
    }
}

#[test]
fn the_rest_of_a_chain_does_not_push_out_its_beginning_at_its_quota() {
    // Of the many its tail is not among the coldest.
    for quota in [4, 200] {
        let mut index = index(1000, PolicyKind::Default);
        index.set_quota(TenantId(0), Some(quota * 10));
        assert_eq!(save(&mut index, 5000, ChainPlace::default()), Ok(vec![]));
        let mut place = ChainPlace::default();
        let saved: Vec<_> = (0..2 * quota)
            .map(|n| {
                let saved = save(&mut index, n, place);
                place = after(0, n, n as u32 + 1);
                saved
            })
            .collect();
        let beginning =
            (0..quota).take_while(|n| index.get(key(0, *n).digest()).is_some()).count() as u64;
        assert_eq!(beginning, quota, "{saved:?}");
        assert_eq!(
            saved[quota as usize - 1],
            Ok(vec![*key(0, 5000).digest()]),
            "a chunk without successors is evicted"
        );
        assert!(saved[quota as usize..].iter().all(|saved| *saved == Err(Refusal::NotWorth)));
    }
}

#[test]
fn the_rest_of_a_chain_waits_for_its_victims_above_a_quota() {
    let mut index = index(1000, PolicyKind::Default);
    index.set_quota(TenantId(0), Some(30));
    assert_eq!(save(&mut index, 5000, ChainPlace::default()), Ok(vec![]));
    assert_eq!(save(&mut index, 0, ChainPlace::default()), Ok(vec![]));
    assert_eq!(save(&mut index, 1, after(0, 0, 1)), Ok(vec![]));
    let want = ReserveRequest::new(10).with_place(after(0, 1, 2));
    let Reserve::Evict(victims) = index.reserve_for(0, &want) else {
        panic!("one has no successors")
    };
    assert_eq!(index.reserve_for(0, &want), Reserve::Busy, "nothing more has to go");
    assert!(index.finish_evict(&victims[0].chunk.digest));
    assert!(matches!(index.reserve_for(0, &want), Reserve::Granted(_)));
}

#[test]
fn an_orphan_displaces_nothing_unless_its_predecessor_is_pending() {
    let mut index = index(2, PolicyKind::Default);
    assert!([7, 8].map(|n| save(&mut index, n, ChainPlace::default())).iter().all(Result::is_ok));
    assert_eq!(save(&mut index, 2, after(0, 1, 2)), Err(Refusal::NotWorth), "1 is nowhere");
    index.touch_batch(&[*key(0, 7).digest()]);
    let coming = DigestTag::from_digest(key(0, 1).digest());
    assert!(index.add_pending(coming, after(0, 7, 1)) && index.add_pending(coming, after(0, 7, 1)));
    index.remove_pending(coming);
    assert_eq!(
        save(&mut index, 2, after(0, 1, 2)).unwrap(),
        [*key(0, 8).digest()],
        "not 7, on which it stands"
    );
    index.remove_pending(coming);
    assert_eq!(save(&mut index, 3, after(0, 1, 2)), Err(Refusal::NotWorth));
    index.learn_order(&[key(0, 1), key(0, 4)]);
    let place = index.place_of(&key(0, 4));
    assert!(
        save(&mut index, 4, place).is_ok(),
        "an inferred predecessor does not count against it"
    );
}

#[test]
fn a_chain_in_any_order_does_not_displace_its_own_beginning() {
    for quota in [None, Some(60)] {
        let mut index = index(if quota.is_some() { 9 } else { 6 }, PolicyKind::Default);
        index.set_quota(TenantId(0), quota);
        chain_in_another_order(index);
    }
}

fn chain_in_another_order(mut index: Index) {
    assert!(save(&mut index, 0, ChainPlace::new(None, 0)).is_ok());
    assert!((1..3).all(|n| save(&mut index, n, after(0, n - 1, n as u32)).is_ok()));
    assert!((3..6).all(|n| {
        index.add_pending(DigestTag::from_digest(key(0, n).digest()), after(0, n - 1, n as u32))
    }));
    let want = |n: u64| ReserveRequest::new(10).with_place(after(0, n - 1, n as u32));
    let mut claims = [3, 4, 5].map(|n| match index.reserve_for(0, &want(n)) {
        Reserve::Granted(reservation) => Some(reservation),
        other => panic!("{other:?}"),
    });
    let mut come = |index: &mut Index, n: u64| {
        let chunk = Chunk::new(*key(0, n).digest(), 8, 10).with_place(after(0, n - 1, n as u32));
        let _ = index.commit(claims[n as usize - 3].take().unwrap(), chunk);
    };
    come(&mut index, 4);
    assert_eq!(
        index.reserve_for(0, &want(5)),
        Reserve::Full(Refusal::NotWorth),
        "2 is before 3, which is on its way"
    );
    come(&mut index, 3);
    come(&mut index, 5);
    assert_eq!(
        index.reserve_for(0, &want(6)),
        Reserve::Full(Refusal::NotWorth),
        "3 is before 4, which came sooner"
    );
}

#[test]
fn a_chain_may_be_as_deep_as_can_be_said() {
    let mut index = index(2, PolicyKind::Default);
    index.learn_order(&[key(0, 0), key(0, 1)]);
    assert!(save(&mut index, 0, after(0, 9, u32::MAX)).is_ok());
    index.learn_order(&[key(0, 1), key(0, 2)]);
    assert_eq!(inferred(&index, 2).1, 2);
}

#[test]
fn a_chain_does_not_displace_its_own_beginning_across_a_gap() {
    let mut index = index(4, PolicyKind::Default);
    assert!(save(&mut index, 0, ChainPlace::new(None, 0)).is_ok());
    assert!((1..5).all(|n| {
        index.add_pending(DigestTag::from_digest(key(0, n).digest()), after(0, n - 1, n as u32))
    }));
    let want = ReserveRequest::new(10).with_place(after(0, 0, 1));
    let Reserve::Granted(_reservation) = index.reserve_for(0, &want) else {
        panic!("there is space")
    };
    assert!((2..4).all(|n| save(&mut index, n, after(0, n - 1, n as u32)).is_ok()));
    assert_eq!(
        save(&mut index, 4, after(0, 3, 4)),
        Err(Refusal::NotWorth),
        "0 is before 1, which is on its way"
    );
    // Once nothing is, nothing leads there any more. It was not used last.
    index.touch_batch(&[2, 3].map(|n| *key(0, n).digest()));
    (1..5).for_each(|n| index.remove_pending(DigestTag::from_digest(key(0, n).digest())));
    assert_eq!(save(&mut index, 9, ChainPlace::new(None, 0)), Ok(vec![*key(0, 0).digest()]));
}

#[test]
fn expired_holds_end_before_a_save_is_shed_as_not_worth() {
    let mut index = index(2, PolicyKind::Default);
    assert!(save(&mut index, 0, ChainPlace::new(None, 0)).is_ok());
    assert!(save(&mut index, 9, ChainPlace::new(None, 0)).is_ok());
    let _ = index.hold(&[*key(0, 9).digest()], 1000).unwrap();
    index.hint_batch(0, &[*key(0, 0).digest()], &EvictionHint::new().with_retention_ms(9000));
    let want = ReserveRequest::new(10).with_place(after(0, 0, 1));
    assert_eq!(index.reserve_for(999, &want), Reserve::Full(Refusal::NotWorth), "9 is held");
    assert_ne!(index.reserve_for(1000, &want), Reserve::Full(Refusal::NotWorth));
}

/// How often a chunk is refused before it is stored; at most 1,000 times.
fn refusals(index: &mut Index, n: u64, place: ChainPlace) -> usize {
    (0..1000).take_while(|_| save(index, n, place) == Err(Refusal::NotWorth)).count()
}

/// Its predecessor is the coldest, and no request uses the other three.
#[test]
fn a_chunk_that_is_saved_again_and_again_wins_over_chunks_without_requests() {
    for quota in [None, Some(40)] {
        let mut index = index(if quota.is_some() { 1000 } else { 4 }, PolicyKind::Default);
        index.set_quota(TenantId(0), quota);
        assert!((0..4).all(|n| save(&mut index, n, ChainPlace::default()).is_ok()));
        let refused = refusals(&mut index, 9, after(0, 0, 1));
        assert!((1..=2).contains(&refused), "{refused} times, quota {quota:?}");
        assert!(index.get(key(0, 0).digest()).is_some(), "it stands on this one");
        assert!(index.get(key(0, 1).digest()).is_none(), "the coldest of the others");
    }
}

/// Lookups once showed an order in which nothing is requested any more.
#[test]
fn an_order_that_no_lookup_shows_again_protects_nothing_for_long() {
    let keys: Vec<Key> = (0..5).map(|n| key(0, n)).collect();
    for looks_up_all in [true, false] {
        let mut index = index(4, PolicyKind::Default);
        index.learn_order(&keys);
        for (n, key) in (0..4).zip(&keys) {
            let place = index.place_of(key);
            assert!(save(&mut index, n, place).is_ok());
        }
        let refused = (0..100).take_while(|_| {
            if looks_up_all {
                index.learn_order(&keys);
            }
            let place = index.place_of(&keys[4]);
            save(&mut index, 4, place) == Err(Refusal::NotWorth)
        });
        // Where each request uses the whole chain, its beginning stays.
        assert_eq!(refused.count(), if looks_up_all { 100 } else { 1 });
    }
}
