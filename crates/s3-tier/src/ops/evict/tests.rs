use std::sync::atomic::Ordering;

use kvtier_core::OTHER_TENANTS;
use kvtier_evict::PolicyKind;
use kvtier_index::{Chunk, Index, IndexConfig};
use kvtier_key::Digest;
use kvtier_s3::{BucketAddress, Client, Config, Credentials};
use kvtier_testkit::s3::Server;
use tokio::sync::Notify;

use super::*;
use crate::state::eviction_queue::WaitingSave;
use crate::sync_config::Evictor;
use crate::test_shared::{EventLog, shared};
use crate::{Layout, TierConfig};

#[tokio::test]
async fn without_a_cap_the_oldest_of_too_many_keys_are_forgotten() {
    let (shared, log) = (shared(|_| {}), Arc::new(EventLog::default()));
    shared.listeners.add(log.clone());
    let key = |n: u8| Digest([n; 32]);
    for n in 0..10 {
        let _ = shared.catalog().index.insert(Chunk::new(key(n), 100 + u64::from(n), 200));
    }
    shared.catalog().index.mark_suspect(&key(1));
    forget_beyond(&shared, 10);
    assert_eq!(shared.catalog().index.usage().entries, 10);
    forget_beyond(&shared, 7);
    let known = (0..10).filter(|n| shared.catalog().index.is_known(&key(*n)));
    assert_eq!(known.collect::<Vec<_>>(), [3, 4, 5, 6, 7, 8, 9]);
    let gone = [0, 2].map(|n| Event::Gone { key: key(n), len: 100 + u64::from(n) });
    assert_eq!(*log.0.lock().unwrap(), gone, "a suspect was reported when it was marked");
}

/// A tier with this cap, all of which may be used, that evicts in batches of a tenth.
fn tier(cap: u64, change: impl FnOnce(&mut TierConfig)) -> Shared {
    let tier = shared(|config| {
        config.capacity_bytes = Some(cap);
        config.sync.evictor = Evictor::Single;
        change(config);
    });
    let config = IndexConfig::new(cap).with_high_mark(1.0).with_batch_max(0.1);
    tier.catalog().index = Index::new(config, PolicyKind::Lru.build()).unwrap();
    tier
}

/// In this layout a digest determines no name.
fn with_names(config: &mut TierConfig) {
    config.layout = Layout::LmcacheMp;
}

/// As [`tier`], at a bucket that answers.
fn tier_at(server: &Server, cap: u64, change: impl FnOnce(&mut TierConfig)) -> Shared {
    let address = BucketAddress::new(server.url()).bucket("bucket").region("us-east-1");
    let credentials = Credentials::new("AKIDTEST", "secret/test+key");
    let mut tier = tier(cap, change);
    tier.client = Client::new(Config::new(address.resolve().unwrap(), credentials));
    tier
}

fn server() -> Server {
    Server::start(Default::default()).unwrap()
}

fn key(n: u32) -> Digest {
    Digest::derive("test", &n.to_le_bytes())
}

/// Enters chunks of a tenant, the first as the oldest.
fn fill(tier: &Shared, keys: std::ops::Range<u32>, bytes: u64, tenant: u128) {
    for n in keys {
        let chunk = Chunk::new(key(n), bytes, bytes).with_tenant(TenantId(tenant));
        let _ = tier.catalog().index.insert(chunk);
    }
}

fn choose(tier: &Shared, bytes: u64) -> Vec<IndexEntry> {
    tier.catalog().index.evict_bytes(0, bytes)
}

fn is_evicting(tier: &Shared, n: u32) -> bool {
    tier.catalog().index.is_evicting(&key(n))
}

fn keys(victims: &[IndexEntry]) -> Vec<Digest> {
    victims.iter().map(|victim| victim.chunk.digest).collect()
}

fn is_notified(notify: &Notify) -> bool {
    std::pin::pin!(notify.notified()).enable()
}

fn evicted(tier: &Shared) -> u64 {
    tier.counters.evicted.load(Ordering::Relaxed)
}

#[test]
fn what_saves_chose_and_what_is_above_the_cap_is_gathered_in_about_four_batches() {
    let tier = tier(10_000, |_| {});
    fill(&tier, 0..16_500, 1, 0);
    tier.eviction_queue.push(choose(&tier, 500));
    assert_eq!(gather(&tier).len(), 4500, "the 500, and batches until there are 4000");
    assert_eq!(gather(&tier).len(), 2000, "what is left above the cap");
    assert!(gather(&tier).is_empty());
    fill(&tier, 20_000..24_500, 1, 0);
    assert_eq!(gather(&tier).len(), 4000, "no batch more");
}

#[test]
fn others_are_chosen_in_the_place_of_victims_without_names() {
    let tier = tier(1000, with_names);
    fill(&tier, 0..4, 100, 0);
    tier.catalog().note_name(&key(1), "one");
    tier.catalog().note_name(&key(3), "three");
    let chosen = choose(&tier, 100);
    assert_eq!(keys(&replace_unnamed(&tier, chosen)), [key(1)]);
    assert_eq!([0, 1, 2, 3].map(|n| is_evicting(&tier, n)), [false, true, false, false]);
    assert!(is_notified(&tier.node.listing_requested));
    // The third has no name; in its place there is the last.
    let chosen = choose(&tier, 100);
    assert_eq!(keys(&replace_unnamed(&tier, chosen)), [key(3)]);
    tier.node.take_listing_request();
    tier.catalog().index.abort_evict(&key(1));
    let chosen = vec![tier.catalog().index.known(&key(1)).unwrap()];
    assert_eq!(keys(&replace_unnamed(&tier, chosen)), [key(1)]);
    assert!(!is_notified(&tier.node.listing_requested), "all had names");
}

#[test]
fn no_more_victims_without_names_are_replaced_than_four_batches() {
    let replaced = |unnamed: u32| {
        let tier = tier(10_000, with_names);
        fill(&tier, 0..unnamed + 1, 1, 0);
        tier.catalog().note_name(&key(unnamed), "last");
        let mut chosen = Vec::new();
        while chosen.len() < unnamed as usize {
            let missing = u64::from(unnamed) - chosen.len() as u64;
            chosen.extend(choose(&tier, missing));
        }
        keys(&replace_unnamed(&tier, chosen))
    };
    assert_eq!(replaced(3999), [key(3999)]);
    assert!(replaced(4000).is_empty());
}

#[test]
fn a_tenant_that_fills_its_quota_loses_what_its_saves_need_and_a_little_ahead() {
    let tier = tier(100_000, |_| {});
    tier.catalog().set_quota(OTHER_TENANTS, Some(1000));
    fill(&tier, 0..10, 100, 1);
    fill(&tier, 10..19, 100, 2);
    assert_eq!(keys(&above_limits(&tier)), [key(0)], "a fiftieth of the quota ahead");
    tier.catalog().index.abort_evict(&key(0));
    let want = |tenant, bytes| ReserveRequest::new(bytes).with_tenant(TenantId(tenant));
    let _waiting = [want(1, 250), want(2, 150)].map(|w| WaitingSave::new(&tier.eviction_queue, w));
    assert_eq!(keys(&above_limits(&tier)), [key(1), key(2), key(3), key(10)]);
}

#[tokio::test(start_paused = true)]
async fn a_victim_in_use_stays_and_needs_no_listing() {
    for is_named in [true, false] {
        let tier = tier(1000, with_names);
        fill(&tier, 0..1, 100, 0);
        if is_named {
            tier.catalog().note_name(&key(0), "zero");
        }
        let chosen = choose(&tier, 100);
        let guard = tier.key_locks.try_write(&key(0)).unwrap();
        let (gone, error) = delete_victims(&tier, chosen).await;
        assert!(gone == 0 && error.is_none());
        assert!(!is_evicting(&tier, 0) && tier.catalog().index.is_known(&key(0)));
        assert!(!is_notified(&tier.node.listing_requested), "named: {is_named}");
        drop(guard);
    }
}

#[tokio::test(start_paused = true)]
async fn a_victim_without_a_name_stays_until_a_listing_shows_it() {
    let tier = tier(1000, with_names);
    fill(&tier, 0..1, 100, 0);
    let chosen = choose(&tier, 100);
    let (gone, error) = delete_victims(&tier, chosen).await;
    assert!(gone == 0 && error.is_none() && !is_evicting(&tier, 0));
    assert!(is_notified(&tier.node.listing_requested));
}

#[tokio::test(start_paused = true)]
async fn a_chunk_that_was_saved_again_since_it_was_chosen_is_no_victim() {
    for layout in [Layout::Kvtier, Layout::LmcacheMp] {
        let tier = tier(1000, |config| config.layout = layout);
        fill(&tier, 0..1, 100, 0);
        tier.catalog().note_name(&key(0), "zero");
        let chosen = choose(&tier, 100);
        fill(&tier, 0..1, 100, 0);
        let (gone, error) = delete_victims(&tier, chosen).await;
        assert!(gone == 0 && error.is_none(), "{error:?}");
        assert!(tier.catalog().index.is_known(&key(0)));
        assert!(!is_notified(&tier.node.listing_requested));
    }
}

#[tokio::test]
async fn of_a_batch_those_count_that_the_store_deleted() {
    let server = server();
    let tier = tier_at(&server, 1000, with_names);
    fill(&tier, 0..3, 100, 0);
    for (n, name) in [(0, "zero"), (1, "locked"), (2, "two")] {
        tier.catalog().note_name(&key(n), name);
    }
    let chosen = choose(&tier, 300);
    let (gone, error) = delete_victims(&tier, chosen).await;
    assert!(error.is_none(), "{error:?}");
    assert_eq!(gone, 2);
    let known = [0, 1, 2].map(|n| tier.catalog().index.is_known(&key(n)));
    assert_eq!(known, [false, true, false]);
    assert_eq!(tier.counters.delete_requests.load(Ordering::Relaxed), 1, "one for all");
}

/// Wakes the task that evicts ahead, and waits until space may be free.
async fn evict_once(tier: &Arc<Shared>) {
    let mut freed = std::pin::pin!(tier.freed.notified());
    freed.as_mut().enable();
    let task = tokio::spawn(evict_ahead(Arc::clone(tier)));
    tier.eviction_queue.notify();
    let woken = tokio::time::timeout(Duration::from_secs(10), freed).await;
    task.abort();
    assert!(woken.is_ok(), "no waiting save was woken");
}

#[tokio::test]
async fn what_is_above_the_cap_is_deleted_ahead_and_other_nodes_learn_of_it() {
    let server = server();
    let tier = Arc::new(tier_at(&server, 1000, |_| {}));
    fill(&tier, 0..12, 100, 0);
    evict_once(&tier).await;
    assert_eq!((evicted(&tier), tier.catalog().index.usage().used), (2, 1000));
    assert!(is_notified(&tier.node.round_requested));
}

#[tokio::test]
async fn where_the_store_deletes_nothing_other_nodes_need_not_learn_of_it() {
    let server = server();
    let tier = Arc::new(tier_at(&server, 1000, with_names));
    fill(&tier, 0..1, 1100, 0);
    tier.catalog().note_name(&key(0), "locked");
    evict_once(&tier).await;
    assert_eq!((evicted(&tier), tier.catalog().index.usage().used), (0, 1100));
    assert!(!is_notified(&tier.node.round_requested));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_evicts_no_more_puts_back_what_its_saves_chose() {
    let tier = Arc::new(tier(1000, |config| config.sync.evictor = Evictor::Never));
    fill(&tier, 0..12, 100, 0);
    tier.eviction_queue.push(choose(&tier, 100));
    evict_once(&tier).await;
    assert!(!is_evicting(&tier, 0) && tier.eviction_queue.take().is_empty());
    assert_eq!(evicted(&tier), 0);
}

/// What LMCache's eviction deletes in its first second: ten chunks of `used` bytes of 1000, and a
/// watermark of a half.
async fn lmcache_evicts(server: &Server, used: u64, ratio: f64, evictor: Evictor) -> u64 {
    let compat = Compat { watermark: 0.5, ratio };
    let tier = tier_at(server, 1000, |config| {
        config.compat = Some(compat);
        config.sync.evictor = evictor;
    });
    let tier = Arc::new(tier);
    fill(&tier, 0..9, 50, 0);
    fill(&tier, 9..10, used - 450, 0);
    // It looks at once, and then whether the tier is closed.
    tokio::join!(evict_by_the_second(Arc::clone(&tier), compat), async {
        let _closed = tier.gate.close();
    });
    evicted(&tier)
}

#[tokio::test]
async fn lmcache_evicts_a_share_of_all_chunks_from_its_watermark_on() {
    let server = server();
    assert_eq!(lmcache_evicts(&server, 500, 0.25, Evictor::Single).await, 2);
    assert_eq!(lmcache_evicts(&server, 500, 0.05, Evictor::Single).await, 1, "at least one");
    assert_eq!(lmcache_evicts(&server, 499, 0.25, Evictor::Single).await, 0);
    assert_eq!(lmcache_evicts(&server, 500, 0.0, Evictor::Single).await, 0);
    assert_eq!(lmcache_evicts(&server, 500, 0.25, Evictor::Never).await, 0);
}
