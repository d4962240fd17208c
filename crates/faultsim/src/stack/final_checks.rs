//! What must hold after the last fault: the stack serves again, each tier keeps to its cap and counts
//! what it has, and every chunk of the bucket is served.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kvtier_core::{Observe, Tier};
use tokio::time::sleep;

use super::node::Node;
use super::{DEADLINE, HOST_BYTES, KEYS, Machine, Serving, Shared};
use crate::caller::{Caller, is_hit};
use crate::fleet::CAP_BYTES;
use crate::fleet::final_checks::STORES_MAX;
use crate::fleet::model::LONGEST_BYTES;
use crate::holds::BACK_MAX;
use crate::own_objects::{journals_are_bounded, says_it_evicts, status_is_right};
use crate::queues::bytes_to_be_written;
use crate::service::{ATTEMPT_MAX, Attempts, OPERATION_MAX, ServedAgain};

/// A tier of the bucket that counts this number of bytes may be full: callers save four chunks each, and what was
/// saved waits to be written.
const FULL_BYTES: u64 = CAP_BYTES - 20 * LONGEST_BYTES;
/// The most bytes that the bucket may have at any time: each process may pass the cap by a twentieth
/// and a chunk, and one that starts may write an eighth of the cap.
const MOST_BYTES: u64 = CAP_BYTES + CAP_BYTES / 8 + CAP_BYTES / 20 + LONGEST_BYTES;
/// After this time without writes the tiers agree with the bucket and the directory.
const SETTLED: Duration = Duration::from_secs(40);

/// The stack, its directory and its bucket each save and load within the promised time.
pub async fn service_is_back(shared: &Arc<Shared>, machine: &Machine) {
    let Some((node, _)) = &machine.running else { return };
    let (directory, bucket) = (Arc::clone(&node.directory), Arc::clone(&node.bucket));
    // That of a killed process evicts until its term ends.
    let bucket_of = Arc::clone(&bucket);
    let may_be_full = move || {
        bucket_of.usage().used_bytes.is_some_and(|used| used >= FULL_BYTES)
            || !bucket_of.has_budget_for(LONGEST_BYTES)
    };
    let never = || false;
    tokio::join!(
        tier_serves(shared, "stack", Arc::clone(&node.stack) as Arc<dyn Tier>, &never),
        tier_serves(shared, "directory", directory as Arc<dyn Tier>, &never),
        tier_serves(shared, "bucket", bucket as Arc<dyn Tier>, &may_be_full),
    );
}

async fn tier_serves(
    shared: &Arc<Shared>,
    what: &str,
    tier: Arc<dyn Tier>,
    may_be_full: &(dyn Fn() -> bool + Sync),
) {
    let Some(Serving { host, .. }) = shared.serving().clone() else { return };
    let world = &shared.world;
    let caller = Caller::new(&shared.common, host, Some(tier), OPERATION_MAX);
    let attempts = Attempts { caller: &caller, keys: KEYS, may_be_full, stores: true };
    let again = attempts.until_served().await;
    world.event(format_args!("the {what} serves again: {again:?}"));
    let ServedAgain { loaded, saved, stored } = again;
    for (does, took, max) in [
        ("loads", loaded, BACK_MAX),
        ("saves", saved, BACK_MAX),
        ("stores a new chunk", stored, STORES_MAX),
    ] {
        if took > max + ATTEMPT_MAX {
            world.finding("service", format!("the {what} {does} {took:?} after the last fault"));
        }
    }
}

/// The tiers, the directory and the bucket agree after a time without writes.
pub async fn state_is_right(
    shared: &Arc<Shared>,
    machine: &mut Machine,
    stopped: impl Future<Output = ()>,
) {
    let world = &shared.world;
    sleep(Duration::from_secs(5)).await;
    shared.is_ending.store(true, Ordering::Relaxed);
    stopped.await;
    sleep(SETTLED).await;
    let (bucket, most) = {
        let bucket = &world.lock().bucket;
        (bucket.chunk_bytes, bucket.chunk_bytes_most)
    };
    let directory = shared.medium.chunk_bytes();
    world.event(format_args!("{bucket} bytes in the bucket, {most} at most; {directory} in files"));
    if most > MOST_BYTES {
        let what = format!("{most} bytes in the bucket at a time; {MOST_BYTES} are allowed");
        world.finding("cap", what);
    }
    if bucket > CAP_BYTES {
        world.finding("cap", format!("{bucket} bytes in the bucket after {SETTLED:?} of quiet"));
    }
    let Some((node, _)) = &machine.running else { return };
    let memory = node.memory.usage().used_bytes;
    if memory.is_none_or(|used| used > HOST_BYTES) {
        world.finding("cap", format!("{memory:?} bytes in host memory"));
    }
    let counted = [
        ("directory", node.directory.usage().used_bytes, directory),
        ("bucket", node.bucket.usage().used_bytes, bucket),
    ];
    for (what, used, there) in counted {
        // A file that a crash cut short counts as its name says until a load finds it.
        let is_cut = what == "directory" && machine.has_crashed;
        let is_right = |used: u64| used == there || (is_cut && used > there);
        if !used.is_some_and(is_right) {
            let left = shared.medium.leftovers();
            let what = format!("{used:?} bytes counted in the {what}, {there} are there, {left:?}");
            world.finding("usage", what);
        }
    }
    if let Some(Serving { tiers, .. }) = shared.serving().clone() {
        tiers.iter().for_each(|(tier, events)| events.compare_all(world, &**tier));
    }
    status_of_all_is_right(shared, node);
    journals_are_bounded(world, true);
    everything_is_served(shared).await;
}

/// The status of each tier names no fault that is over, and nothing waits any more.
fn status_of_all_is_right(shared: &Shared, node: &Node) {
    let world = &shared.world;
    status_is_right(world, "the bucket", &node.bucket, true);
    if !says_it_evicts(&*node.bucket) {
        world.finding("status", "the only node does not say that it evicts".into());
    }
    let tiers = [("the stack", node.stack.status()), ("the directory", node.directory.status())];
    for (name, status) in tiers {
        let says = |reason: &String, word| {
            reason.starts_with(word) || reason.contains(&format!(": {word}"))
        };
        let is_bad = |reason: &String| says(reason, "read-only: ") || says(reason, "degraded: ");
        if !status.healthy || status.reasons.iter().any(is_bad) {
            world.finding("status", format!("{name} is not well: {:?}", status.reasons));
        }
    }
    if let Some(bytes) = bytes_to_be_written(&node.stack).filter(|bytes| *bytes > 0) {
        world.finding("queue", format!("{bytes} bytes wait after {SETTLED:?} of quiet"));
    }
}

/// Every chunk of the bucket is a hit.
async fn everything_is_served(shared: &Arc<Shared>) {
    for n in 0..KEYS {
        let is_there = shared.common.is_in_bucket(n);
        let Some(caller) = shared.caller(DEADLINE) else { return };
        let is_hit = is_hit(&caller.load(&[n]).await);
        if is_there && !is_hit {
            shared.world.finding("lost", format!("{n} is in the bucket and not served"));
        }
    }
}
