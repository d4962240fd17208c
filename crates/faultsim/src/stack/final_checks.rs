//! What must hold after the last fault: the stack serves again, each tier keeps to its cap and counts
//! what it has, and every chunk of the directory and the bucket is served.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kvtier_core::Observe;
use tokio::time::sleep;

use super::{DEADLINE, HOST_BYTES, KEYS, Machine, Shared};
use crate::fleet::CAP_BYTES;
use crate::fleet::model::LONGEST_BYTES;
use crate::fleet::node::PREFIX;

/// Within this time after the last fault the stack serves again.
const BACK_MAX: Duration = Duration::from_secs(2);
/// The most bytes that the bucket may have at any time: each process may pass the cap by a twentieth
/// and a chunk, and one that starts may write an eighth of the cap.
const MOST_BYTES: u64 = CAP_BYTES + CAP_BYTES / 8 + CAP_BYTES / 20 + LONGEST_BYTES;
/// After this time without writes the tiers agree with the bucket and the directory.
const SETTLED: Duration = Duration::from_secs(40);

/// The stack saves and loads within the promised time.
pub async fn service_is_back(shared: &Arc<Shared>) {
    let world = &shared.world;
    let began = world.elapsed();
    loop {
        let n = world.below(KEYS);
        // Short: one key may wait for a request of another caller that hangs.
        let Some(caller) = shared.caller(Duration::from_millis(400)) else { break };
        if caller.save(&[n]).await && caller.load(&[n]).await.0 {
            break;
        }
        if world.elapsed() - began > Duration::from_secs(60) {
            break;
        }
        sleep(Duration::from_millis(50)).await;
    }
    let took = world.elapsed() - began;
    world.event(format_args!("serves again after {took:?}"));
    if took > BACK_MAX {
        world.finding("service", format!("served again {took:?} after the last fault"));
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
    everything_is_served(shared).await;
}

/// Every chunk of the bucket is a hit.
async fn everything_is_served(shared: &Arc<Shared>) {
    for n in 0..KEYS {
        let hex = shared.common.model().key(n).digest().to_hex();
        let name = format!("{PREFIX}/{}/{hex}", &hex[..2]);
        let is_there = shared.world.lock().bucket.objects.contains_key(&name);
        let Some(caller) = shared.caller(DEADLINE) else { return };
        let (_, hits) = caller.load(&[n]).await;
        if is_there && hits == 0 {
            shared.world.finding("lost", format!("{n} is in the bucket and not served"));
        }
    }
}
