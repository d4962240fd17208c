use std::time::Duration;

use kvtier_evict::PolicyKind;
use kvtier_index::{ChainPlace, Chunk, Index, IndexConfig};
use kvtier_key::Digest;

use super::*;
use crate::state::node_budget::Exchange;
use crate::sync_config::Evictor;
use crate::test_shared::shared;
use crate::{Compat, TierConfig};

const WAIT: Duration = Duration::from_secs(5);

/// A tier alone at its bucket, with a cap of 1000 bytes and one chunk of `used` bytes.
fn tier(policy: PolicyKind, used: u64, change: impl FnOnce(&mut TierConfig)) -> Shared {
    let tier = shared(change);
    let config = IndexConfig::new(1000).with_high_mark(1.0);
    let mut index = Index::new(config, policy.build()).unwrap();
    if used > 0 {
        let _ = index.insert(Chunk::new(Digest([1; 32]), used, used));
    }
    tier.catalog().index = index;
    tier.node.budget.exchanged(Exchange { nodes: 1, free: 1000, ..Exchange::default() });
    tier
}

/// The node evicts, by its settings.
fn single(config: &mut TierConfig) {
    config.sync.evictor = Evictor::Single;
}

/// As [`single`], with the eviction of LMCache.
fn compat(config: &mut TierConfig) {
    single(config);
    config.compat = Some(Compat { watermark: 0.8, ratio: 0.2 });
}

async fn ask(tier: &Shared, bytes: u64) -> Result<SpaceReservation<'_>, ShedReason> {
    reserve(tier, &ReserveRequest::new(bytes), Instant::now() + WAIT).await
}

fn has_waited(tier: &Shared) -> bool {
    let wait = WAIT.as_millis() as u64;
    (wait..wait + 100).contains(&tier.now_ms())
}

#[tokio::test(start_paused = true)]
async fn a_reservation_that_is_dropped_gives_its_space_back() {
    let tier = tier(PolicyKind::Lru, 0, single);
    let reserved = || tier.catalog().index.usage().reserved;
    let spent = ask(&tier, 100).await.unwrap().spend().unwrap();
    let dropped = ask(&tier, 600).await.unwrap();
    assert_eq!(reserved(), 700);
    drop(dropped);
    assert_eq!((reserved(), spent.bytes()), (100, 100));
    tier.catalog().index.cancel(spent);
}

#[tokio::test(start_paused = true)]
async fn a_save_waits_for_the_space_of_one_that_is_being_written() {
    let tier = tier(PolicyKind::Lru, 0, single);
    let first = ask(&tier, 900).await.unwrap();
    let end_first = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        drop(first);
    };
    let (second, ()) = tokio::join!(ask(&tier, 200), end_first);
    assert!(second.is_ok(), "{second:?}");
    assert!((1000..1100).contains(&tier.now_ms()), "{}", tier.now_ms());
}

#[tokio::test(start_paused = true)]
async fn a_save_does_not_wait_where_all_is_held_and_nothing_is_being_written() {
    let tier = tier(PolicyKind::Noop, 1000, single);
    assert_eq!(ask(&tier, 100).await.unwrap_err(), ShedReason::Full);
    assert_eq!(tier.now_ms(), 0);
}

#[tokio::test(start_paused = true)]
async fn only_a_node_that_evicts_ahead_chooses_victims_for_its_saves() {
    let not_evicting = |_: &mut TierConfig| {};
    let tiers = [
        tier(PolicyKind::Lru, 1000, single),
        tier(PolicyKind::Lru, 1000, not_evicting),
        tier(PolicyKind::Lru, 1000, compat),
    ];
    let mut chosen = Vec::new();
    for tier in &tiers {
        assert_eq!(ask(tier, 100).await.unwrap_err(), ShedReason::Full);
        chosen.push(tier.eviction_queue.take().len());
    }
    assert_eq!(chosen, [1, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_save_beyond_the_part_of_its_node_waits() {
    let tier = tier(PolicyKind::Lru, 0, single);
    // Before an exchange that is an eighth of the cap.
    tier.node.budget.forget_exchange();
    let _first = ask(&tier, 100).await.unwrap();
    assert_eq!(ask(&tier, 1001).await.unwrap_err(), ShedReason::TooLarge);
    assert_eq!(tier.now_ms(), 0, "a chunk that never fits does not wait");
    assert_eq!(ask(&tier, 100).await.unwrap_err(), ShedReason::Full);
    assert!(has_waited(&tier), "{}", tier.now_ms());
    let woken = tokio::time::timeout(WAIT, tier.eviction_queue.notified()).await;
    assert!(woken.is_ok(), "the task that evicts was not woken");
    assert!(ask(&tier, 25).await.is_ok(), "a save that was refused counts no more");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_evicts_as_lmcache_has_no_part() {
    let tier = tier(PolicyKind::Lru, 0, compat);
    tier.node.budget.forget_exchange();
    let _first = ask(&tier, 100).await.unwrap();
    assert!(ask(&tier, 100).await.is_ok());
    assert_eq!(tier.now_ms(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_chunk_whose_predecessor_is_missing_is_not_worth_a_victim() {
    let tier = tier(PolicyKind::Default, 1000, single);
    let place = ChainPlace::after(Some(&Digest([9; 32])), 1);
    let want = ReserveRequest::new(100).with_place(place);
    let refused = reserve(&tier, &want, Instant::now() + WAIT).await.unwrap_err();
    assert_eq!((refused, tier.now_ms()), (ShedReason::NotWorth, 0));
}
