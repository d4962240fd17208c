//! Quotas of tenants, and whose chunks are evicted when space is short.
#![allow(clippy::unwrap_used)]

use kvtier_evict::PolicyKind;
use kvtier_index::{
    ChainPlace, Chunk, DigestTag, Index, IndexConfig, Quotas, Refusal, Reserve, ReserveRequest,
    TenantId,
};
use kvtier_key::Digest;

const A: TenantId = TenantId(1);
const B: TenantId = TenantId(2);

fn key(n: u8) -> Digest {
    Digest([n; 32])
}

fn index(capacity: u64) -> Index {
    index_by(PolicyKind::IsolatedLru, capacity)
}

fn index_by(policy: PolicyKind, capacity: u64) -> Index {
    Index::new(IndexConfig::new(capacity).with_high_mark(1.0), policy.build()).unwrap()
}

/// Saves ten bytes of a tenant; what went for them.
fn save(index: &mut Index, n: u8, tenant: TenantId) -> Result<Vec<u8>, Refusal> {
    let mut gone = Vec::new();
    loop {
        match index.reserve_for(0, &ReserveRequest::new(10).with_tenant(tenant)) {
            Reserve::Granted(reservation) => {
                let _ = index.commit(reservation, Chunk::new(key(n), 8, 10).with_tenant(tenant));
                return Ok(gone);
            }
            Reserve::Evict(victims) => {
                for victim in victims {
                    assert!(index.finish_evict(&victim.chunk.digest));
                    gone.push(victim.chunk.digest.0[0]);
                }
            }
            Reserve::Full(why) => return Err(why),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn above_its_quota_a_tenants_own_chunks_are_evicted() {
    let mut index = index(100);
    index.set_quota(A, Some(30));
    assert!([1, 2, 3].map(|n| save(&mut index, n, A)).iter().all(|gone| *gone == Ok(vec![])));
    assert!([11, 12, 13].map(|n| save(&mut index, n, B)).iter().all(|gone| *gone == Ok(vec![])));
    index.touch_batch(&[key(1)]);
    assert_eq!(save(&mut index, 4, A), Ok(vec![2]), "though there is space for all");
    assert_eq!((index.tenant_usage(A).bytes, index.tenant_usage(B).bytes), (30, 30));
    index.set_quota(A, Some(15));
    assert_eq!(
        save(&mut index, 5, A),
        Ok(vec![3, 1, 4]),
        "what is above a new limit goes with the next write"
    );
    index.set_quota(A, None);
    assert_eq!(save(&mut index, 6, A), Ok(vec![]));
}

#[test]
fn the_unknown_tenant_is_not_one_of_the_others() {
    let mut index = index(100);
    index.set_quota_of_others(Some(20));
    assert!((1..=10).all(|n| save(&mut index, n, TenantId(0)) == Ok(vec![])));
    index.set_quota(TenantId(0), Some(20));
    assert!(
        save(&mut index, 11, TenantId(0)).is_ok_and(|gone| gone.len() == 9),
        "an explicit quota limits it"
    );
}

#[test]
fn tenants_without_a_quota_have_that_of_the_others_and_zero_is_none() {
    let mut index = index(100);
    index.set_quota_of_others(Some(20));
    index.set_quota(B, Some(0));
    assert_eq!(save(&mut index, 1, B), Err(Refusal::Quota { bytes_max: 0 }));
    assert!([1, 2].map(|n| save(&mut index, n, A)).iter().all(|gone| *gone == Ok(vec![])));
    assert_eq!(save(&mut index, 3, A), Ok(vec![1]));
    let hold = index.hold(&[key(2), key(3)], 1000).unwrap();
    assert_eq!(save(&mut index, 4, A), Err(Refusal::Held));
    index.release(hold);
    assert!(save(&mut index, 4, A).is_ok());
}

#[test]
fn writes_in_flight_count_and_cancelled_ones_do_not() {
    let mut index = index(100);
    index.set_quota(A, Some(20));
    let want = ReserveRequest::new(10).with_tenant(A);
    let (Reserve::Granted(one), Reserve::Granted(two)) =
        (index.reserve_for(0, &want), index.reserve_for(0, &want))
    else {
        panic!("there is space for two")
    };
    assert_eq!(index.reserve_for(0, &want), Reserve::Full(Refusal::Held));
    index.cancel(one);
    let Reserve::Granted(three) = index.reserve_for(0, &want) else { panic!("one was given back") };
    for (reservation, n) in [(two, 1), (three, 2)] {
        let _ = index.commit(reservation, Chunk::new(key(n), 8, 10).with_tenant(A));
    }
    let Reserve::Evict(victims) = index.reserve_for(0, &want) else { panic!("it is full") };
    assert!(index.abort_evict(&victims[0].chunk.digest), "it could not be deleted");
    let Reserve::Evict(victims) = index.reserve_for(0, &want) else {
        panic!("it is as full as before")
    };
    assert!(index.finish_evict(&victims[0].chunk.digest));
    assert!(matches!(index.reserve_for(0, &want), Reserve::Granted(_)));
}

#[test]
fn victims_count_until_they_are_deleted() {
    for policy in policies() {
        let mut index = index_by(policy, 1000);
        index.set_quota(A, Some(30));
        (1..=3).for_each(|n| assert_eq!(save(&mut index, n, A), Ok(vec![]), "{policy}"));
        let want = ReserveRequest::new(10).with_tenant(A);
        // Nothing can be deleted, however often it is tried.
        for _ in 0..5 {
            let Reserve::Evict(victims) = index.reserve_for(0, &want) else {
                panic!("{policy}: it is full")
            };
            assert_eq!(
                (victims.len(), index.reserve_for(0, &want)),
                (1, Reserve::Busy),
                "{policy}: its space is awaited"
            );
            assert!(index.is_above_quota(&want), "{policy}");
            // A request for more than is being freed gets more victims.
            let more = ReserveRequest::new(20).with_tenant(A);
            let others = index.victims_of_quota(0, &more);
            assert_eq!((others.len(), index.victims_of_quota(0, &more).len()), (1, 0), "{policy}");
            assert!(
                victims.iter().chain(&others).all(|victim| index.abort_evict(&victim.chunk.digest)),
                "{policy}"
            );
            assert_eq!(index.tenant_usage(A).bytes, 30, "{policy}");
        }
        let Reserve::Evict(victims) = index.reserve_for(0, &want) else {
            panic!("{policy}: it is full")
        };
        assert!(index.finish_evict(&victims[0].chunk.digest));
        let Reserve::Granted(reservation) = index.reserve_for(0, &want) else {
            panic!("{policy}: there is space")
        };
        index.cancel(reservation);
    }
}

#[test]
fn without_quotas_the_tenant_with_the_most_is_evicted_from() {
    let mut index = index(60);
    [1, 2, 3, 4].into_iter().for_each(|n| assert_eq!(save(&mut index, n, A), Ok(vec![])));
    [11, 12].into_iter().for_each(|n| assert_eq!(save(&mut index, n, B), Ok(vec![])));
    assert_eq!(save(&mut index, 13, B), Ok(vec![1]), "not the oldest of the one that saves");
    assert_eq!(save(&mut index, 14, B).unwrap().len(), 1);
    let shares = [A, B].map(|tenant| index.tenant_usage(tenant).bytes);
    assert_eq!(shares, [30, 30]);
}

/// All policies but the one that gives nothing up.
fn policies() -> impl Iterator<Item = PolicyKind> {
    PolicyKind::ALL.into_iter().filter(|policy| *policy != PolicyKind::Noop)
}

#[test]
fn above_its_quota_a_tenants_own_chunks_are_evicted_by_every_policy() {
    for policy in policies() {
        let mut index = index_by(policy, 1000);
        index.set_quota(A, Some(30));
        (11..=40).for_each(|n| assert_eq!(save(&mut index, n, B), Ok(vec![]), "{policy}"));
        assert!(
            [1, 2, 3].map(|n| save(&mut index, n, A)).iter().all(|gone| *gone == Ok(vec![])),
            "{policy}"
        );
        index.touch_batch(&[key(1)]);
        assert_eq!(save(&mut index, 4, A), Ok(vec![2]), "{policy}: though there is space for all");
        for n in 5..10 {
            assert_eq!(save(&mut index, n, A).map(|gone| gone.len()), Ok(1), "{policy}");
            assert_eq!(
                (index.tenant_usage(A).bytes, index.tenant_usage(B).bytes),
                (30, 300),
                "{policy}"
            );
        }
        let hold = index.hold(&[key(7), key(8), key(9)], 1000).unwrap();
        assert_eq!(save(&mut index, 10, A), Err(Refusal::Held), "{policy}");
        index.release(hold);
        assert!(save(&mut index, 10, A).is_ok(), "{policy}");
    }
}

#[test]
fn quotas_change_while_chunks_are_present_held_and_evicting() {
    for policy in policies() {
        let mut index = index_by(policy, 1000);
        (1..=6).for_each(|n| assert_eq!(save(&mut index, n, A), Ok(vec![]), "{policy}"));
        (11..=16).for_each(|n| assert_eq!(save(&mut index, n, B), Ok(vec![]), "{policy}"));
        let hold = index.hold(&[key(1)], 1000).unwrap();
        let leaving = index.begin_evict(&key(2));
        assert!(matches!(leaving, kvtier_index::RemoveOutcome::Gone(_)));
        // The first limit, set late: what is above it goes with the next write, but for what is
        // held or gone already.
        index.set_quota(A, Some(40));
        let want = ReserveRequest::new(10).with_tenant(A);
        let Reserve::Evict(gone) = index.reserve_for(0, &want) else {
            panic!("{policy}: it is above its limit")
        };
        let gone: Vec<Digest> = gone.iter().map(|victim| victim.chunk.digest).collect();
        assert_eq!(
            (gone.len(), gone.contains(&key(1)), gone.contains(&key(2))),
            (2, false, false),
            "{policy}"
        );
        assert!(gone.iter().all(|digest| index.finish_evict(digest)));
        assert_eq!(
            index.reserve_for(0, &want),
            Reserve::Busy,
            "{policy}: one is still on its way out"
        );
        assert!(index.finish_evict(&key(2)));
        assert_eq!(save(&mut index, 7, A), Ok(vec![]), "{policy}");
        assert_eq!(
            (index.tenant_usage(A).bytes, index.tenant_usage(B).bytes),
            (40, 60),
            "{policy}"
        );
        index.set_quota(A, Some(20));
        assert_eq!(
            save(&mut index, 8, A).map(|gone| gone.len()),
            Ok(3),
            "{policy}: less is allowed"
        );
        index.set_quota(A, None);
        assert_eq!(save(&mut index, 9, A), Ok(vec![]), "{policy}: all is allowed");
        index.set_quota_of_others(Some(30));
        assert_eq!(
            save(&mut index, 17, B).map(|gone| gone.len()),
            Ok(4),
            "{policy}: of others too"
        );
        index.release(hold);
        assert!(index.get(&key(1)).is_some(), "{policy}");
    }
}

#[test]
fn without_eviction_saves_above_a_quota_are_refused() {
    let mut index = index_by(PolicyKind::Noop, 1000);
    index.set_quota(A, Some(20));
    assert!([1, 2].map(|n| save(&mut index, n, A)).iter().all(|gone| *gone == Ok(vec![])));
    assert_eq!(save(&mut index, 3, A), Err(Refusal::Held));
    assert_eq!(save(&mut index, 4, B), Ok(vec![]));
}

#[test]
fn below_the_quotas_the_policy_decides() {
    let mut index = index_by(PolicyKind::Lru, 60);
    index.set_quota_of_others(Some(60));
    assert!([1, 11, 2, 12, 3, 13].iter().all(|n| save(
        &mut index,
        *n,
        if *n > 10 { B } else { A }
    ) == Ok(vec![])));
    index.touch_batch(&[key(1)]);
    assert_eq!(save(&mut index, 4, A), Ok(vec![11]), "the least recently used of all");
    assert_eq!(save(&mut index, 14, B), Ok(vec![2]));
}

/// Saves all of a set but its first chunk, which goes at once.
fn leave_behind(index: &mut Index, set: &[(u8, TenantId)]) {
    let keys: Vec<Digest> = set.iter().map(|(n, _)| key(*n)).collect();
    let id = index.declare_set(&keys).unwrap().unwrap();
    set.iter().for_each(|(n, tenant)| assert_eq!(save(index, *n, *tenant), Ok(vec![])));
    index.end_set(id);
    assert!(index.forget(&keys[0]).is_some());
}

#[test]
fn leftovers_of_a_tenants_sets_are_evicted_before_its_other_chunks() {
    for policy in policies() {
        let mut index = index_by(policy, 1000);
        index.set_quota(A, Some(50));
        [4, 5].into_iter().for_each(|n| assert_eq!(save(&mut index, n, A), Ok(vec![]), "{policy}"));
        leave_behind(&mut index, &[(21, B), (22, B), (23, B)]);
        leave_behind(&mut index, &[(1, A), (2, A), (3, A)]);
        assert_eq!(save(&mut index, 6, A), Ok(vec![]), "{policy}");
        let gone = [7, 8].map(|n| save(&mut index, n, A).unwrap()).concat();
        assert_eq!(gone, [2, 3], "{policy}: though 4 and 5 are older");
        assert_eq!(save(&mut index, 9, A).map(|gone| gone.len()), Ok(1), "{policy}: none is left");
        assert_eq!(index.tenant_usage(B).bytes, 20, "{policy}: what is left of others' stays");
    }
}

#[test]
fn a_set_of_two_tenants_is_evicted_from_each_for_its_own() {
    let mut index = index_by(PolicyKind::Lru, 1000);
    index.set_quota(A, Some(30));
    assert_eq!(save(&mut index, 9, A), Ok(vec![]));
    leave_behind(&mut index, &[(1, B), (2, B), (3, A), (4, B), (5, A)]);
    let next = |index: &mut Index| {
        let gone = index.evict_bytes(0, 1)[0].chunk.digest;
        assert!(index.finish_evict(&gone));
        gone
    };
    assert_eq!([next(&mut index), next(&mut index)], [key(2), key(3)]);
    assert_eq!(
        [6, 7].map(|n| save(&mut index, n, A)),
        [Ok(vec![]), Ok(vec![5])],
        "though 9 is older"
    );
    assert_eq!([next(&mut index), next(&mut index)], [key(4), key(9)]);
}

#[test]
fn no_save_is_shed_as_not_worth_while_sets_have_leftovers() {
    for quota in [None, Some(30)] {
        let mut index = index_by(PolicyKind::Default, 40);
        index.set_quota(A, quota);
        assert_eq!(save(&mut index, 9, A), Ok(vec![]));
        leave_behind(&mut index, &[(1, A), (2, A)]);
        let _ =
            [save(&mut index, 10, if quota.is_some() { A } else { B }), save(&mut index, 11, B)];
        // Of what is worth anything, the chunk that it comes after is worth the least.
        let after = ChainPlace::new(Some(DigestTag::from_digest(&key(9))), 1);
        let Reserve::Evict(victims) =
            index.reserve_for(0, &ReserveRequest::new(10).with_tenant(A).with_place(after))
        else {
            panic!("{quota:?}: 2 is there for nothing")
        };
        assert_eq!(victims[0].chunk.digest, key(2), "{quota:?}");
    }
}

#[test]
fn chunks_above_a_quota_are_evicted_first() {
    for policy in policies() {
        let mut index = index_by(policy, 100);
        (11..=15).for_each(|n| assert_eq!(save(&mut index, n, B), Ok(vec![]), "{policy}"));
        (1..=5).for_each(|n| assert_eq!(save(&mut index, n, A), Ok(vec![]), "{policy}"));
        (0..9).for_each(|_| index.touch_batch(&[1, 2, 3, 4, 5].map(key)));
        index.set_quota(A, Some(30));
        // One of them is on its way out already, and counts as gone.
        assert!(matches!(index.begin_evict(&key(3)), kvtier_index::RemoveOutcome::Gone(_)));
        let gone: Vec<TenantId> =
            index.evict_bytes(0, 10).iter().map(|victim| victim.chunk.tenant).collect();
        assert_eq!(gone, [A], "{policy}");
        if policy == PolicyKind::Lru {
            assert_eq!(
                index.evict_bytes(0, 10)[0].chunk.tenant,
                B,
                "it has no more than its quota, and was used last"
            );
        }
        let hold = index.hold(&[1, 2, 4, 5].map(key), 1000).unwrap();
        index.set_quota(A, Some(20));
        assert_eq!(index.evict_bytes(0, 10)[0].chunk.tenant, B, "{policy}: what is above is held");
        index.release(hold);
        assert_eq!(index.evict_bytes(0, 10)[0].chunk.tenant, A, "{policy}");
    }
}

#[test]
fn with_fair_quotas_no_tenant_loses_its_share_while_others_exceed_theirs() {
    for policy in policies() {
        for fair in [true, false] {
            let mut index = index_by(policy, 100);
            index.set_fair_sharing(fair);
            // Together twice the capacity: half of each is its share.
            index.set_quota(A, Some(120));
            index.set_quota(B, Some(80));
            index.set_quota_of_others(Some(1000));
            (1..=4).for_each(|n| assert_eq!(save(&mut index, n, B), Ok(vec![]), "{policy}"));
            let flood = |index: &mut Index, n: u8, tenant| {
                assert!(save(index, n, tenant).is_ok());
                index.touch_batch(&[key(n)]);
                [A, B, TenantId(3)].map(|tenant| index.tenant_usage(tenant).bytes)
            };
            let kept: Vec<[u64; 3]> = (20..80).map(|n| flood(&mut index, n, A)).collect();
            assert!(!fair || kept.iter().all(|kept| kept[1] == 40), "{policy}: {kept:?}");
            // All space is theirs; a tenant without a share gets in with one chunk, and reuses that.
            let kept: Vec<[u64; 3]> =
                (80..140).map(|n| flood(&mut index, n, TenantId(3))).collect();
            assert!(!fair || kept.iter().all(|kept| kept[2] == 10), "{policy}: {kept:?}");
            assert!(
                fair || policy != PolicyKind::Lru || kept[59] == [0, 0, 100],
                "without, the policy decides"
            );
            (1..=4).for_each(|n| assert!(save(&mut index, n, B).is_ok(), "{policy}"));
            assert!(!fair || flood(&mut index, 6, A) == [60, 40, 0], "{policy}: they have it back");
            // A tenant whose quota ends has no share.
            index.set_quota(B, None);
            assert!(!fair || flood(&mut index, 140, A)[0] >= 60, "{policy}");
        }
    }
}

#[test]
fn full_tenants_are_right_after_any_change() {
    let mut index = index_by(PolicyKind::Lru, 10_000);
    let full = |index: &Index| {
        let mut all: Vec<(u128, u64)> =
            index.full_tenants().iter().map(|want| (want.tenant.0, want.bytes)).collect();
        all.sort_unstable();
        all
    };
    (1..=10).for_each(|n| assert_eq!(save(&mut index, n, A), Ok(vec![])));
    (11..=15).for_each(|n| assert_eq!(save(&mut index, n, B), Ok(vec![])));
    assert_eq!(full(&index), []);
    index.set_quota(A, Some(102));
    assert_eq!(full(&index), [], "a fiftieth is free");
    index.set_quota(A, Some(101));
    assert_eq!(full(&index), [(1, 2)]);
    index.set_quota_of_others(Some(50));
    assert_eq!(full(&index), [(1, 2), (2, 1)]);
    assert!(index.forget(&key(1)).is_some() && index.resize(&key(11), 8, 5));
    assert_eq!(full(&index), []);
    let _ = index.insert(Chunk::new(key(11), 8, 10).with_tenant(B));
    assert_eq!(full(&index), [(2, 1)]);
    // It turns out to be another's.
    let _ = index.insert(Chunk::new(key(11), 8, 10).with_tenant(A));
    assert_eq!(full(&index), [(1, 2)]);
    index.set_quota(A, None);
    index.set_quota_of_others(None);
    assert_eq!(full(&index), []);
}

#[test]
fn the_leftover_of_a_set_of_two_tenants_is_stable() {
    let mut index = index_by(PolicyKind::Default, 40);
    let place = |n: u8| {
        ChainPlace::new((n > 1).then(|| DigestTag::from_digest(&key(n - 1))), u32::from(n - 1))
    };
    let id = index.declare_set(&[1, 2, 9].map(key)).unwrap().unwrap();
    for (n, tenant) in [(1, A), (9, B), (20, B), (21, B)] {
        let Reserve::Granted(reservation) =
            index.reserve_for(0, &ReserveRequest::new(10).with_tenant(tenant))
        else {
            panic!()
        };
        let _ = index.commit(reservation, Chunk::new(key(n), 8, 10).with_tenant(tenant));
    }
    index.end_set(id);
    // 1 is the first of what is left, though 9 came last.
    let want = ReserveRequest::new(10).with_tenant(A).with_place(place(2));
    assert_eq!(index.reserve_for(0, &want), Reserve::Full(Refusal::NotWorth), "1 is before 2");
    assert_eq!(index.evict_bytes(0, 1)[0].chunk.digest, key(1));
}

#[test]
fn a_configuration_keeps_every_quota_that_was_set() {
    let quotas = Quotas::new().with("a", 30).with("b", 20).with_others(10).with_fair(true);
    let by_tenant: Vec<(&str, u64)> =
        quotas.by_tenant.iter().map(|(name, bytes)| (name.as_str(), *bytes)).collect();
    assert_eq!(by_tenant, [("a", 30), ("b", 20)]);
    assert_eq!((quotas.others, quotas.fair, quotas.is_empty()), (Some(10), true, false));
    assert!(!Quotas::new().with_others(10).is_empty());
    assert!(Quotas::new().with_fair(true).is_empty(), "there is nothing to guarantee");
}
