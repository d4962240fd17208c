//! Limits of tenants, and who gives when room is short.
#![allow(clippy::unwrap_used)]

use kvtier_evict::PolicyKind;
use kvtier_index::{Chunk, Index, IndexConfig, Quotas, Refusal, Reserve, TenantId, Want};
use kvtier_key::Digest;

const A: TenantId = TenantId(1);
const B: TenantId = TenantId(2);

fn key(n: u8) -> Digest {
    Digest([n; 32])
}

fn index(capacity: u64) -> Index {
    Index::new(IndexConfig::new(capacity).with_high_mark(1.0), PolicyKind::IsolatedLru.build()).unwrap()
}

/// Saves ten bytes of a tenant; what went for them.
fn save(index: &mut Index, n: u8, tenant: TenantId) -> Result<Vec<u8>, Refusal> {
    let mut gone = Vec::new();
    loop {
        match index.reserve_for(0, &Want::new(10).with_tenant(tenant)) {
            Reserve::Granted(room) => {
                let _ = index.commit(room, Chunk::new(key(n), 8, 10).with_tenant(tenant));
                return Ok(gone);
            }
            Reserve::Evict(victims) => {
                for victim in victims {
                    assert!(index.evicted(&victim.chunk.digest));
                    gone.push(victim.chunk.digest.0[0]);
                }
            }
            Reserve::Full(why) => return Err(why),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn above_its_quota_a_tenants_own_chunks_go() {
    let mut index = index(100);
    index.set_quota(A, Some(30));
    assert!([1, 2, 3].map(|n| save(&mut index, n, A)).iter().all(|gone| *gone == Ok(vec![])));
    assert!([11, 12, 13].map(|n| save(&mut index, n, B)).iter().all(|gone| *gone == Ok(vec![])));
    index.touch_batch(&[key(1)]);
    assert_eq!(save(&mut index, 4, A), Ok(vec![2]), "though there is room for all");
    assert_eq!((index.tenant_usage(A).bytes, index.tenant_usage(B).bytes), (30, 30));
    index.set_quota(A, Some(15));
    assert_eq!(save(&mut index, 5, A), Ok(vec![3, 1, 4]), "what is above a new limit goes with the next write");
    index.set_quota(A, None);
    assert_eq!(save(&mut index, 6, A), Ok(vec![]));
}

#[test]
fn whose_chunks_nobody_knows_is_not_one_of_the_others() {
    let mut index = index(100);
    index.set_quota_of_others(Some(20));
    assert!((1..=10).all(|n| save(&mut index, n, TenantId(0)) == Ok(vec![])));
    index.set_quota(TenantId(0), Some(20));
    assert!(save(&mut index, 11, TenantId(0)).is_ok_and(|gone| gone.len() == 9), "who says so limits it");
}

#[test]
fn who_has_no_quota_of_its_own_has_that_of_the_others_and_zero_is_nothing() {
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
fn writes_in_flight_count_and_what_is_canceled_does_not() {
    let mut index = index(100);
    index.set_quota(A, Some(20));
    let want = Want::new(10).with_tenant(A);
    let (Reserve::Granted(one), Reserve::Granted(two)) = (index.reserve_for(0, &want), index.reserve_for(0, &want))
    else {
        panic!("there is room for two")
    };
    assert_eq!(index.reserve_for(0, &want), Reserve::Full(Refusal::Held));
    index.cancel(one);
    let Reserve::Granted(three) = index.reserve_for(0, &want) else { panic!("one was given back") };
    for (room, n) in [(two, 1), (three, 2)] {
        let _ = index.commit(room, Chunk::new(key(n), 8, 10).with_tenant(A));
    }
    let Reserve::Evict(victims) = index.reserve_for(0, &want) else { panic!("it is full") };
    assert!(index.restored(&victims[0].chunk.digest), "it could not be deleted");
    let Reserve::Evict(victims) = index.reserve_for(0, &want) else { panic!("it is as full as before") };
    assert!(index.evicted(&victims[0].chunk.digest));
    assert!(matches!(index.reserve_for(0, &want), Reserve::Granted(_)));
}

#[test]
fn without_quotas_whoever_has_the_most_gives() {
    let mut index = index(60);
    [1, 2, 3, 4].into_iter().for_each(|n| assert_eq!(save(&mut index, n, A), Ok(vec![])));
    [11, 12].into_iter().for_each(|n| assert_eq!(save(&mut index, n, B), Ok(vec![])));
    assert_eq!(save(&mut index, 13, B), Ok(vec![1]), "not the oldest of the one that saves");
    assert_eq!(save(&mut index, 14, B).unwrap().len(), 1);
    let shares = [A, B].map(|tenant| index.tenant_usage(tenant).bytes);
    assert_eq!(shares, [30, 30]);
}

#[test]
fn quotas_need_a_policy_that_knows_owners() {
    let quotas = Quotas::new().with("a", 1 << 20).with_others(1 << 30);
    assert!(quotas.check(PolicyKind::Default).unwrap_err().to_string().contains("isolated-lru"));
    assert!(quotas.check(PolicyKind::IsolatedLru).is_ok() && Quotas::new().check(PolicyKind::Lru).is_ok());
}
