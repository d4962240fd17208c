//! Saves, holds, victims and tenants, one promise a test.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use kvtier_evict::PolicyKind;
use kvtier_index::{
    CHUNK_BYTES_LIMIT, Chunk, Index, IndexConfig, IndexHoldId, InsertOutcome, Refusal,
    RemoveOutcome, Reserve, SlotCursor, TenantId,
};
use kvtier_key::Digest;

fn key(n: u8) -> Digest {
    Digest([n; 32])
}

fn index(capacity: u64) -> Index {
    configured(IndexConfig::new(capacity).with_high_mark(1.0))
}

fn configured(config: IndexConfig) -> Index {
    Index::new(config, PolicyKind::Lru.build()).unwrap()
}

/// Saves a chunk of ten bytes as a tier does, and answers which keys went for it.
fn save(index: &mut Index, n: u8) -> Vec<u8> {
    let mut gone = Vec::new();
    loop {
        match index.reserve(0, 10) {
            Reserve::Granted(reservation) => {
                let _ = index.commit(reservation, Chunk::new(key(n), 8, 10));
                return gone;
            }
            Reserve::Evict(victims) => {
                for victim in victims {
                    assert!(index.finish_evict(&victim.chunk.digest));
                    gone.push(victim.chunk.digest.0[0]);
                }
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn at_mark_one_the_whole_capacity_is_used_and_saves_evict_just_what_they_need() {
    let mut index = index(30);
    assert_eq!([1, 2, 3].map(|n| save(&mut index, n)), [vec![], vec![], vec![]]);
    index.touch_batch(&[key(1)]);
    assert_eq!(save(&mut index, 4), [2]);
    assert_eq!((index.usage().used, index.usage().entries), (30, 3));
    assert_eq!(index.get(&key(2)), None);
    assert_eq!(index.get(&key(1)).unwrap().chunk.len, 8);
}

#[test]
fn the_slack_above_the_mark_is_granted_at_once_and_regained_in_batches() {
    let mut index = configured(IndexConfig::new(1000).with_high_mark(0.9).with_batch_max(0.02));
    assert!((0..100).all(|n| save(&mut index, n).is_empty()), "nothing waits below the capacity");
    let batch = index.victims(0, 0);
    assert_eq!(
        batch.iter().map(|victim| victim.chunk.digest.0[0]).collect::<Vec<_>>(),
        [0, 1],
        "2 % are 20 bytes"
    );
    let mut gone = 0;
    for mut victims in std::iter::once(batch).chain(std::iter::repeat_with(Vec::new)) {
        if victims.is_empty() {
            victims = index.victims(0, 0);
        }
        if victims.is_empty() {
            break;
        }
        gone += victims.iter().filter(|victim| index.finish_evict(&victim.chunk.digest)).count();
    }
    assert_eq!((gone, index.usage().used), (10, 900));
}

#[test]
fn a_requests_tail_is_evicted_before_its_head() {
    let mut index = index(60);
    [1, 2, 3, 4, 5, 6].into_iter().for_each(|n| assert!(save(&mut index, n).is_empty()));
    index.touch_batch(&[key(1), key(2), key(9), key(3), key(4)]);
    let order: Vec<u8> = (10..16).flat_map(|n| save(&mut index, n)).collect();
    assert_eq!(order, [5, 6, 4, 3, 2, 1]);
}

#[test]
fn a_released_chain_keeps_its_tail_coldest() {
    let mut index = index(40);
    [1, 2, 3, 4].into_iter().for_each(|n| assert!(save(&mut index, n).is_empty()));
    let hold = index.hold(&[key(1), key(2), key(3)], 100).unwrap();
    assert_eq!(save(&mut index, 5), [4]);
    index.release(hold);
    assert_eq!([6, 7, 8, 9].map(|n| save(&mut index, n)).concat(), [5, 3, 2, 1]);
}

#[test]
fn held_chunks_stay_until_released_or_expired() {
    let mut index = index(20);
    [1, 2].into_iter().for_each(|n| assert!(save(&mut index, n).is_empty()));
    let short = index.hold(&[key(1)], 50).unwrap();
    let long = index.hold(&[key(1), key(2)], 90).unwrap();
    assert_eq!(index.remove(&key(1)), RemoveOutcome::Held);
    assert_eq!(index.begin_evict(&key(2)), RemoveOutcome::Held);
    assert_eq!(index.reserve(49, 10), Reserve::Full(Refusal::Held));
    assert_eq!(
        (index.expire_holds(50), index.is_held(&key(1))),
        (1, true),
        "the other one still holds it"
    );
    index.release(short);
    index.release(IndexHoldId::from_u64(77));
    assert!(index.is_held(&key(1)), "releasing what expired or never was changes nothing");
    let Reserve::Evict(victims) = index.reserve(90, 10) else { panic!("expired at 90") };
    assert_eq!(victims[0].chunk.digest, key(2));
    index.release(long);
    assert_eq!(index.usage().holds, 0);
}

#[test]
fn keys_are_released_one_by_one_and_the_last_ends_the_hold() {
    let mut index = index(40);
    [1, 2, 3, 4].into_iter().for_each(|n| assert!(save(&mut index, n).is_empty()));
    let hold = index.hold(&[key(1), key(2), key(3), key(2)], 100).unwrap();
    index.release_keys(hold, &[key(1), key(4), key(9)]);
    assert!(!index.is_held(&key(1)) && index.is_held(&key(2)) && index.is_held(&key(3)));
    assert!(matches!(index.remove(&key(1)), RemoveOutcome::Gone(_)));
    index.release_keys(hold, &[key(2)]);
    assert!(index.is_held(&key(2)), "it was named twice");
    index.forget(&key(3)).unwrap();
    index.release_keys(hold, &[key(2), key(3)]);
    assert_eq!((index.is_held(&key(2)), index.usage().holds), (false, 0));
    index.release_keys(hold, &[key(2)]);
    index.release(hold);
}

#[test]
fn the_hits_of_a_lookup_are_held_for_a_time_unless_they_are_gone() {
    let mut index = index(40);
    [1, 2].into_iter().for_each(|n| assert!(save(&mut index, n).is_empty()));
    let second = Duration::from_secs(1);
    let held = index.hold_hits(500, second, &[key(1), key(7), key(2), key(8)]).unwrap();
    assert_eq!(held.gone, [key(7), key(8)]);
    assert_eq!((index.expire_holds(1499), index.is_held(&key(1))), (0, true));
    let again = index.hold_hits(1500, second, &[key(1)]).unwrap();
    assert!(again.gone.is_empty() && again.id != held.id);
    assert_eq!((index.usage().holds, index.is_held(&key(2))), (1, false), "the first expired");
    let none = index.hold_hits(1500, second, &[key(9)]).unwrap();
    assert_eq!((none.id, none.gone), (None, vec![key(9)]));
    let _ = index.hold_hits(1500, Duration::MAX, &[key(2)]).unwrap();
    assert_eq!((index.expire_holds(u64::MAX - 1), index.is_held(&key(2))), (1, true), "for ever");
}

#[test]
fn holds_have_a_named_maximum() {
    let mut index = configured(IndexConfig::new(1000).with_holds_max(2, 3));
    [1, 2].into_iter().for_each(|n| assert!(save(&mut index, n).is_empty()));
    let first = index.hold(&[key(1), key(2)], 10).unwrap();
    let error = index.hold(&[key(1), key(2)], 10).unwrap_err();
    assert_eq!((error.holds, error.held), (1, 2));
    let _ = index.hold(&[key(1)], 10).unwrap();
    assert!(index.hold(&[key(1)], 10).is_err(), "two holds are the most");
    assert!(index.hold(&[key(7)], 10).is_err(), "even of nothing");
    index.release(first);
    assert!(index.hold(&[key(7), key(2)], 10).is_ok());
}

#[test]
fn one_chunk_bears_65535_holds_and_no_more() {
    let mut index = index(10);
    assert!(save(&mut index, 1).is_empty());
    let crowd = vec![key(1); usize::from(u16::MAX)];
    let all = index.hold(&crowd, 10).unwrap();
    assert!(index.hold(&[key(1)], 10).is_err());
    index.release(all);
    assert!(!index.is_held(&key(1)));
    assert!(index.hold(&vec![key(1); 65_536], 10).is_err());
    assert!(!index.is_held(&key(1)), "a refused hold leaves nothing behind");
}

#[test]
fn a_forgotten_chunk_frees_its_slot_when_the_last_hold_ends() {
    let mut index = index(100);
    [1, 2].into_iter().for_each(|n| assert!(save(&mut index, n).is_empty()));
    let hold = index.hold(&[key(1)], 10).unwrap();
    let gone = index.forget(&key(1)).unwrap();
    assert!(gone.held && index.get(&key(1)).is_none() && index.forget(&key(1)).is_none());
    assert_eq!((index.usage().used, index.usage().entries), (10, 1));
    let InsertOutcome::New(slot) = index.insert(Chunk::new(key(1), 1, 1)) else {
        panic!("it is new")
    };
    assert!(
        slot != gone.slot && !index.is_held(&key(1)),
        "the old hold does not hold the new chunk"
    );
    index.release(hold);
    assert_eq!(index.insert(Chunk::new(key(3), 1, 1)), InsertOutcome::New(gone.slot));
}

#[test]
fn a_victim_is_a_miss_that_counts_until_it_is_gone() {
    let mut index = index(20);
    [1, 2].into_iter().for_each(|n| assert!(save(&mut index, n).is_empty()));
    let Reserve::Evict(victims) = index.reserve(0, 10) else { panic!("it is full") };
    assert_eq!((victims.len(), victims[0].chunk.digest), (1, key(1)));
    assert_eq!((index.get(&key(1)), index.remove(&key(1))), (None, RemoveOutcome::Absent));
    assert_eq!((index.usage().used, index.usage().evicting), (20, 10));
    assert_eq!(index.reserve(0, 10), Reserve::Busy, "its space is being freed");
    assert!(
        index.abort_evict(&key(1)) && !index.abort_evict(&key(1)) && !index.finish_evict(&key(1))
    );
    assert!(index.get(&key(1)).is_some());
    let Reserve::Evict(victims) = index.reserve(0, 10) else { panic!("it is full") };
    assert_eq!(
        victims[0].chunk.digest,
        key(2),
        "what could not be deleted is not tried again at once"
    );
    assert!(index.finish_evict(&key(2)) && !index.finish_evict(&key(2)));
    assert!(matches!(index.reserve(0, 10), Reserve::Granted(r) if r.bytes() == 10));
}

#[test]
fn a_chunk_saved_again_during_its_eviction_is_present() {
    let mut index = index(20);
    assert!(save(&mut index, 1).is_empty());
    assert!(
        matches!(index.begin_evict(&key(1)), RemoveOutcome::Gone(entry) if entry.chunk.digest == key(1))
    );
    assert!(
        matches!(index.insert(Chunk::new(key(1), 3, 4)), InsertOutcome::Replaced { old } if old.len == 8)
    );
    assert!(!index.finish_evict(&key(1)));
    assert_eq!(index.get(&key(1)).unwrap().chunk.len, 3);
    assert_eq!((index.usage().used, index.usage().evicting), (4, 0));
}

#[test]
fn writes_in_flight_count_and_failed_ones_release_their_space() {
    let mut index = index(20);
    let (Reserve::Granted(a), Reserve::Granted(b)) = (index.reserve(0, 10), index.reserve(0, 10))
    else {
        panic!("there is space for two")
    };
    assert_eq!(index.reserve(0, 1), Reserve::Full(Refusal::Held), "nothing is there to evict");
    index.cancel(a);
    assert_eq!((index.usage().reserved, index.usage().used), (10, 0));
    assert_eq!(index.commit(b, Chunk::new(key(1), 5, 6)), InsertOutcome::New(0));
    assert_eq!((index.usage().reserved, index.usage().used), (0, 6));
}

#[test]
fn what_can_never_fit_is_refused() {
    let mut index = configured(IndexConfig::new(1000));
    assert_eq!(
        index.reserve(0, 981),
        Reserve::Full(Refusal::TooLarge { bytes: 981, bytes_max: 980 })
    );
    let huge = Chunk::new(key(1), 1, CHUNK_BYTES_LIMIT);
    assert!(matches!(index.insert(huge), InsertOutcome::Refused(Refusal::TooLarge { .. })));
    assert_eq!(index.usage().entries, 0);
    let mut endless = self::index(u64::MAX);
    for bytes in [u64::MAX, CHUNK_BYTES_LIMIT] {
        assert!(matches!(endless.reserve(0, bytes), Reserve::Full(Refusal::TooLarge { .. })));
    }
    assert!(matches!(endless.reserve(0, CHUNK_BYTES_LIMIT - 1), Reserve::Granted(_)));
}

#[test]
fn a_suspect_that_falls_out_of_the_list_is_named() {
    let config = IndexConfig::new(100).with_suspects_max(2);
    let mut index = configured(config);
    (1..=3).for_each(|n| assert!(save(&mut index, n).is_empty()));
    let marked = [1, 2, 2, 3].map(|n| index.mark_suspect(&key(n)));
    assert_eq!(marked, [None, None, None, Some(key(1))]);
    assert!(index.get(&key(1)).is_some() && index.get(&key(3)).is_none());
}

#[test]
fn a_suspect_is_a_miss_until_it_is_saved_again() {
    let mut index = index(20);
    assert!(save(&mut index, 1).is_empty());
    index.mark_suspect(&key(1));
    assert!(index.is_suspect(&key(1)) && index.get(&key(1)).is_none());
    assert_eq!(index.usage().used, 10, "it is still there");
    let hold = index.hold(&[key(1)], 10).unwrap();
    assert!(!index.is_held(&key(1)));
    index.release(hold);
    let _ = index.insert(Chunk::new(key(1), 8, 10));
    assert!(index.get(&key(1)).is_none(), "finding it again in a listing proves nothing");
    assert!(save(&mut index, 1).is_empty());
    assert!(index.get(&key(1)).is_some());
}

#[test]
fn usage_is_kept_per_tenant() {
    let mut index = index(100);
    let a = TenantId(1);
    let b = TenantId(2);
    for (n, tenant) in [(1, a), (2, a), (3, b)] {
        let _ = index.insert(Chunk::new(key(n), 8, 10).with_tenant(tenant));
    }
    assert_eq!(
        (index.tenant_usage(a).bytes, index.tenant_usage(a).entries, index.tenant_usage(b).bytes),
        (20, 2, 10)
    );
    let _ = index.insert(Chunk::new(key(2), 8, 5).with_tenant(b));
    assert!(matches!(index.remove(&key(1)), RemoveOutcome::Gone(entry) if entry.chunk.tenant == a));
    let all: Vec<_> =
        index.tenants().map(|(tenant, usage)| (tenant, usage.bytes, usage.entries)).collect();
    assert_eq!(all, [(b, 15, 2)]);
}

#[test]
fn pages_list_every_chunk_once() {
    let mut index = index(u64::MAX);
    for n in 0..200 {
        let _ = index.insert(Chunk::new(key(n), 1, 1));
    }
    assert!((0..200).step_by(3).all(|n| matches!(index.remove(&key(n)), RemoveOutcome::Gone(_))));
    let mut seen = Vec::new();
    let mut cursor = Some(SlotCursor::default());
    while let Some(from) = cursor {
        let page = index.keys_page(from, 7);
        assert!(page.chunks.len() <= 7);
        seen.extend(page.chunks.iter().map(|chunk| chunk.digest.0[0]));
        cursor = page.next;
    }
    assert_eq!(seen, (0..200).filter(|n| n % 3 != 0).collect::<Vec<u8>>());
}

#[test]
fn digests_that_share_a_tag_are_different_chunks() {
    let mut index = index(100);
    let mut colliding = key(1);
    colliding.0[31] = 0;
    for (digest, len) in [(key(1), 5), (colliding, 6)] {
        assert!(matches!(index.insert(Chunk::new(digest, len, 10)), InsertOutcome::New(_)));
    }
    assert_eq!([key(1), colliding].map(|digest| index.get(&digest).unwrap().chunk.len), [5, 6]);
    assert!(matches!(index.remove(&key(1)), RemoveOutcome::Gone(entry) if entry.chunk.len == 5));
    assert_eq!(index.get(&colliding).unwrap().chunk.len, 6);
}

#[test]
fn an_entry_has_what_its_chunk_was_entered_with() {
    let mut index = index(100);
    let alone = Chunk::new(key(1), 8, 10);
    let tail = Chunk::new(key(2), 7, 9).with_parent(&key(1), 1).with_tenant(TenantId(3));
    for chunk in [alone, tail] {
        assert!(matches!(index.insert(chunk), InsertOutcome::New(_)));
    }
    let known = |index: &Index, n| index.get(&key(n)).map(|entry| entry.chunk);
    assert_eq!((known(&index, 1), known(&index, 2)), (Some(alone), Some(tail)));
    // A slot that had a chain has none when its next chunk has none.
    let _ = index.remove(&key(2));
    let next = Chunk::new(key(3), 8, 10);
    let _ = index.insert(next);
    assert_eq!(known(&index, 3), Some(next));
}
