//! What must hold after the last fault: service returns, the cap holds, every node counts what is in
//! the bucket, and every object is served.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kvtier_core::{Observe, Usage};
use kvtier_s3_tier::Evictor;
use tokio::time::{Instant, sleep};

use super::chunks::{SMALL_TENANT, is_of_small_tenant};
use super::model::{LONGEST_BYTES, len};
use super::node::Node;
use super::workload::DEADLINE;
use super::{CAP_BYTES, Fleet, KEYS, NODES};
use crate::caller::is_hit;
use crate::holds::BACK_MAX;
use crate::own_objects::{journals_are_bounded, says_it_evicts, status_is_right};
use crate::service::{ATTEMPT_MAX, Attempts, OPERATION_MAX, ServedAgain};

/// Within this time after the last fault a node stores a new chunk, in a full bucket, too: a dead evictor is
/// replaced within two terms of four seconds. Then that one reads what it needs, and deletes.
pub const STORES_MAX: Duration = Duration::from_secs(12);
/// A node that counts this number of bytes may be full: two callers save four chunks each.
const FULL_BYTES: u64 = CAP_BYTES - 8 * LONGEST_BYTES;
/// The most bytes that the bucket may have at any time. `docs/S3.md`, "Conflicts" and "Budgets": each node
/// may pass the cap by a twentieth and a chunk, and one that starts may write an eighth of the cap.
const MOST_BYTES: u64 = CAP_BYTES + CAP_BYTES / 8 + NODES as u64 * (CAP_BYTES / 20 + LONGEST_BYTES);
/// After this time without writes the nodes agree with the bucket: two listings, a take-over, and
/// rounds of the journals.
const SETTLED: Duration = Duration::from_secs(40);
/// This number of chunks is stored at the end, in a full bucket, within this time.
const NEW_CHUNKS: usize = 40;
const EVICTED_WITHIN: Duration = Duration::from_secs(30);

/// Each node saves and loads within the promised time.
pub async fn service_is_back(fleet: &Arc<Fleet>) {
    let nodes = fleet.nodes().clone();
    let serves = |node| tokio::spawn(node_serves(Arc::clone(fleet), node));
    let waiting: Vec<_> = nodes.into_iter().map(serves).collect();
    for node in waiting {
        drop(node.await);
    }
}

/// A node serves within the promised time. It stores new chunks then, or waits for the evictor and stores
/// them later.
async fn node_serves(fleet: Arc<Fleet>, node: Node) {
    let Some(tier) = node.tier.clone() else { return };
    let caller = fleet.caller(node, OPERATION_MAX);
    let (world, name) = (&fleet.world, &caller.name);
    let delay = world.late_journal_left(name);
    // The node that evicts may be late, too.
    let evictor_delay = world.late_journals_left();
    // Or it has not seen what the others wrote.
    let may_be_full = || {
        tier.usage().used_bytes.is_some_and(|used| used >= FULL_BYTES)
            || !tier.has_budget_for(LONGEST_BYTES)
    };
    let evicts = fleet.setting.evicts();
    // Operations that hang may have all places of a narrow tier, which throttles others until their deadline.
    let back_max = if fleet.is_narrow { DEADLINE + BACK_MAX } else { BACK_MAX };
    let attempts =
        Attempts { caller: &caller, keys: KEYS, may_be_full: &may_be_full, stores: evicts };
    let again = attempts.until_served().await;
    world.event(format_args!("{name} serves again, delayed by {delay:?}: {again:?}"));
    let ServedAgain { loaded, saved, stored } = again;
    for (what, took, delay, max) in [
        ("loads", loaded, Duration::ZERO, back_max),
        ("saves", saved, delay, back_max),
        ("stores a new chunk", stored, evictor_delay, STORES_MAX),
    ] {
        if took > delay + max + ATTEMPT_MAX {
            let what = format!("{name} {what} {took:?} after the last fault, delayed by {delay:?}");
            world.finding("service", what);
        }
    }
}

/// Bucket and nodes agree after a time without writes.
pub async fn state_is_right(fleet: &Arc<Fleet>, stopped: impl Future<Output = ()>) {
    let world = &fleet.world;
    sleep(Duration::from_secs(5)).await;
    fleet.is_ending.store(true, Ordering::Relaxed);
    stopped.await;
    sleep(SETTLED).await;
    let (chunks, most) = {
        let bucket = &world.lock().bucket;
        (bucket.chunk_bytes, bucket.chunk_bytes_most)
    };
    world.event(format_args!("{chunks} bytes in the bucket, {most} at most"));
    if most > MOST_BYTES {
        let what = format!("{most} bytes in the bucket at a time; {MOST_BYTES} are allowed");
        world.finding("cap", what);
    }
    // Where no node evicts, what was written above the cap stays.
    let allowed = if fleet.setting.evicts() { CAP_BYTES } else { MOST_BYTES };
    if chunks > allowed {
        world.finding("cap", format!("{chunks} bytes in the bucket after {SETTLED:?} of quiet"));
    }
    let mut evictors = 0;
    for node in fleet.nodes().clone() {
        let Some(tier) = &node.tier else { continue };
        status_is_right(world, node.host.name(), tier, fleet.setting.evicts());
        evictors += usize::from(says_it_evicts(&**tier));
        let (usage, name) = (tier.usage(), node.host.name());
        let used = usage.used_bytes;
        if let Some(max) = fleet.chunks.small_tenant_bytes() {
            tenant_has_at_most(fleet, name, &usage, max);
        }
        if let Some(events) = &node.events {
            events.compare_all(world, &**tier);
        }
        if used != Some(chunks) {
            let what = format!("{name} counts {used:?} bytes, and the bucket has {chunks}");
            world.finding("usage", what);
        }
    }
    if evictors != usize::from(fleet.setting.evicts()) {
        world.finding("status", format!("{evictors} nodes say that they evict"));
    }
    journals_are_bounded(world, fleet.setting.evicts());
    everything_is_served(fleet).await;
    if fleet.setting.evicts() {
        eviction_goes_on(fleet).await;
        quota_is_kept(fleet).await;
        another_evictor_clears_up(fleet).await;
    }
}

/// A tenant is counted what its chunks have, and not those of another one.
fn tenant_has_at_most(fleet: &Fleet, name: &str, usage: &Usage, max: u64) {
    let Some(small) = usage.tenants.iter().find(|usage| usage.tenant == SMALL_TENANT) else {
        return;
    };
    if small.used_bytes > max {
        let used = small.used_bytes;
        let what = format!("{name} counts {used} bytes of tenant {SMALL_TENANT}, {max} at most");
        fleet.world.finding("quota", what);
    }
}

/// Where the evictor dies in a quiet time, the next one deletes the journals of all that its snapshot has. One
/// that is configured to evict alone has no other: it starts again.
async fn another_evictor_clears_up(fleet: &Arc<Fleet>) {
    sleep(Duration::from_secs(12)).await;
    let is_evictor = |node: &Node| node.tier.as_deref().is_some_and(says_it_evicts);
    if let Some((place, evictor)) =
        fleet.nodes().iter_mut().enumerate().find(|(_, node)| is_evictor(node))
    {
        fleet.world.event(format_args!("the evictor {} ends", evictor.host.name()));
        evictor.end();
        if fleet.setting.evictor(place) == Evictor::Single {
            *evictor = fleet.start(place, evictor.restarts + 1);
        }
    }
    sleep(STORES_MAX + Duration::from_secs(8)).await;
    journals_are_bounded(&fleet.world, true);
}

/// A node stores chunks that the bucket lacks: old ones are evicted for them.
async fn eviction_goes_on(fleet: &Arc<Fleet>) {
    let (world, began) = (&fleet.world, Instant::now());
    let node = fleet.node(world.below(5) as usize);
    let caller = fleet.caller(node, Duration::from_secs(5));
    let absent: Vec<u64> = (0..KEYS).filter(|n| !fleet.common.is_in_bucket(*n)).collect();
    let wanted = NEW_CHUNKS.min(absent.len());
    let before = world.lock().bucket.chunk_bytes;
    let mut stored = 0;
    while stored < wanted && began.elapsed() < EVICTED_WITHIN {
        for n in &absent {
            if stored < wanted && !fleet.common.is_in_bucket(*n) {
                caller.save(&[*n]).await;
                stored += usize::from(fleet.common.is_in_bucket(*n));
            }
        }
        sleep(Duration::from_millis(200)).await;
    }
    let took = began.elapsed();
    world.event(format_args!("{stored} of {wanted} new chunks stored after {took:?}"));
    if stored < wanted {
        let what = format!("{stored} of {wanted} new chunks stored after {took:?}");
        world.finding("eviction", what);
    }
    let after = world.lock().bucket.chunk_bytes;
    if after + CAP_BYTES / 4 < before {
        let what = format!("{after} bytes are in the bucket, {before} before new chunks");
        world.finding("eviction", what);
    }
}

/// A tenant with a quota has no more when the evictor has used all of its chunks, and saved those that are absent.
/// It may not know before whose the chunks are that only a listing showed.
async fn quota_is_kept(fleet: &Fleet) {
    let nodes = fleet.nodes().clone();
    let is_evictor = |node: &&Node| node.tier.as_deref().is_some_and(says_it_evicts);
    let Some((max, evictor)) = fleet.chunks.quota().zip(nodes.iter().find(is_evictor)) else {
        return;
    };
    let caller = fleet.caller(evictor.clone(), DEADLINE);
    for n in (0..KEYS).filter(|n| is_of_small_tenant(*n)) {
        if !is_hit(&caller.load(&[n]).await) {
            caller.save(&[n]).await;
        }
    }
    sleep(Duration::from_secs(2)).await;
    let is_there = |n: &u64| is_of_small_tenant(*n) && fleet.common.is_in_bucket(*n);
    let bytes: u64 = (0..KEYS).filter(is_there).map(|n| len(n) as u64).sum();
    if bytes > max {
        let what =
            format!("tenant {SMALL_TENANT} has {bytes} bytes in the bucket, its quota is {max}");
        fleet.world.finding("quota", what);
    }
}

/// Every chunk of the bucket is a hit on a node.
async fn everything_is_served(fleet: &Arc<Fleet>) {
    let world = &fleet.world;
    let node = fleet.node(world.below(5) as usize);
    let caller = fleet.caller(node, Duration::from_secs(5));
    for n in 0..KEYS {
        let was_there = fleet.common.is_in_bucket(n);
        let is_hit = is_hit(&caller.load(&[n]).await);
        // A load before may have moved a chunk to its tenant, and this one is evicted for the quota.
        let is_there = was_there && fleet.common.is_in_bucket(n);
        if is_there && !is_hit {
            world.finding("lost", format!("{n} is in the bucket and not served"));
        }
    }
}
