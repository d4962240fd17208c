//! What the callers of the fleet do, and how often.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::{Fleet, KEYS};

/// The time limit of an operation.
pub const DEADLINE: Duration = Duration::from_secs(5);
/// Callers of one node.
const CALLERS: usize = 2;
/// Batches of four keys that a caller saves at the start.
const BATCHES: u64 = 10;

/// Starts the callers of all nodes.
pub fn start(fleet: &Arc<Fleet>, nodes: usize) -> Vec<JoinHandle<()>> {
    let call = |place: usize| tokio::spawn(call(Arc::clone(fleet), place));
    (0..nodes).flat_map(|place| std::iter::repeat_n(place, CALLERS)).map(call).collect()
}

async fn call(fleet: Arc<Fleet>, place: usize) {
    fill(&fleet, place).await;
    while !fleet.is_ending.load(Ordering::Relaxed) {
        sleep(fleet.world.between_ms(50, 600)).await;
        let caller = fleet.caller(fleet.node(place), DEADLINE);
        let n = fleet.world.below(KEYS);
        let count = 1 + fleet.world.below(4);
        let numbers: Vec<u64> = (0..count).map(|more| (n + more) % KEYS).collect();
        match fleet.world.below(100) {
            0..45 => drop(caller.save(&numbers).await),
            45..80 => drop(caller.load(&numbers).await),
            80..92 => caller.lookup(&numbers).await,
            _ => caller.remove(n).await,
        }
    }
}

/// Saves many keys at once, as the callers of all nodes do when they start on an empty bucket.
async fn fill(fleet: &Fleet, place: usize) {
    let caller = fleet.caller(fleet.node(place), DEADLINE);
    let first = fleet.world.below(KEYS);
    for batch in 0..BATCHES {
        let numbers: Vec<u64> = (0..4).map(|n| (first + 4 * batch + n) % KEYS).collect();
        caller.save(&numbers).await;
    }
}
