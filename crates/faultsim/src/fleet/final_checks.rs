//! What must hold after the last fault: service returns, the cap holds, every node counts what is in
//! the bucket, and every object is served.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kvtier_core::Observe;
use tokio::time::{Instant, sleep};

use super::model::LONGEST_BYTES;
use super::node::PREFIX;
use super::{CAP_BYTES, Fleet, KEYS, NODES};

/// Within this time after the last fault a node serves again. A fault lasts for a node until the last
/// journal object comes that it delays.
const BACK_MAX: Duration = Duration::from_secs(2);
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
    let began = Instant::now();
    let nodes = fleet.nodes().clone();
    let mut waiting = Vec::new();
    for node in nodes {
        let fleet = Arc::clone(fleet);
        waiting.push(tokio::spawn(async move {
            // Short: one key may wait for a request of another caller that hangs.
            let caller = fleet.caller(node, Duration::from_millis(400));
            let delay = fleet.world.late_journal_left(&caller.name);
            loop {
                let n = fleet.world.below(KEYS);
                if caller.save(&[n]).await && caller.load(&[n]).await.0 {
                    break;
                }
                if began.elapsed() > Duration::from_secs(60) {
                    break;
                }
                sleep(Duration::from_millis(50)).await;
            }
            let (took, name) = (began.elapsed(), &caller.name);
            fleet
                .world
                .event(format_args!("{name} serves again after {took:?}, delayed by {delay:?}"));
            if took > delay + BACK_MAX {
                let took = took - delay;
                let what = format!("{name} served again {took:?} after the last fault");
                fleet.world.finding("service", what);
            }
        }));
    }
    for node in waiting {
        drop(node.await);
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
    for node in fleet.nodes().clone() {
        let Some(tier) = &node.tier else { continue };
        let (used, name) = (tier.usage().used_bytes, node.host.name());
        if used != Some(chunks) {
            let what = format!("{name} counts {used:?} bytes, and the bucket has {chunks}");
            world.finding("usage", what);
        }
    }
    everything_is_served(fleet).await;
    if fleet.setting.evicts() {
        eviction_goes_on(fleet).await;
    }
}

/// A node stores chunks that the bucket lacks: old ones are evicted for them.
async fn eviction_goes_on(fleet: &Arc<Fleet>) {
    let (world, began) = (&fleet.world, Instant::now());
    let node = fleet.node(world.below(5) as usize);
    let caller = fleet.caller(node, Duration::from_secs(5));
    let absent: Vec<u64> = (0..KEYS).filter(|n| !is_in_bucket(fleet, *n)).collect();
    let wanted = NEW_CHUNKS.min(absent.len());
    let mut stored = 0;
    while stored < wanted && began.elapsed() < EVICTED_WITHIN {
        for n in &absent {
            if stored < wanted && !is_in_bucket(fleet, *n) {
                caller.save(&[*n]).await;
                stored += usize::from(is_in_bucket(fleet, *n));
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
}

fn is_in_bucket(fleet: &Fleet, n: u64) -> bool {
    let hex = fleet.model().key(n).digest().to_hex();
    let name = format!("{PREFIX}/{}/{hex}", &hex[..2]);
    fleet.world.lock().bucket.objects.contains_key(&name)
}

/// Every chunk of the bucket is a hit on a node.
async fn everything_is_served(fleet: &Arc<Fleet>) {
    let world = &fleet.world;
    let node = fleet.node(world.below(5) as usize);
    let caller = fleet.caller(node, Duration::from_secs(5));
    for n in 0..KEYS {
        let is_there = is_in_bucket(fleet, n);
        let (_, hits) = caller.load(&[n]).await;
        if is_there && hits == 0 {
            world.finding("lost", format!("{n} is in the bucket and not served"));
        }
    }
}
