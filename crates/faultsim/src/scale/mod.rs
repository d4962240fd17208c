//! A fleet without faults, to measure what sharing a bucket costs by the number of nodes and chunks: requests,
//! memory, staleness, overshoot of the cap, shed saves, and the time to replace a dead evictor.
//!
//! The nodes are real tiers with the default settings of [`kvtier_s3_tier::SyncConfig`]. Chunks have 64
//! bytes, since only their number matters to what is measured here.

mod memory;
mod node;
mod views;
mod workload;

use std::sync::Arc;
use std::time::Duration;

use kvtier_core::Observe;
use kvtier_key::Digest;
use tokio::time::{Instant, sleep, sleep_until};

pub use self::memory::node_memory;
use self::node::ScaleNode;
use self::views::Views;
use self::workload::{Saves, Workload};
pub use crate::bucket::counts::{RequestArea, RequestCounts, RequestPrice};
use crate::network;
use crate::world::World;

/// Bytes of a chunk.
const CHUNK_BYTES: u64 = 64;
/// The share of the cap that is full at the start of a full bucket: the high mark.
const FULL: f64 = 0.98;
/// How long a new evictor is waited for.
const TAKEOVER_MAX: Duration = Duration::from_secs(180);
/// Between two looks at the bucket while a new evictor is waited for.
const LOOK: Duration = Duration::from_millis(250);

/// What is simulated.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ScaleSetup {
    /// How many nodes share the bucket.
    pub nodes: usize,
    /// How many chunks the cap is.
    pub chunks: u64,
    /// Whether the bucket is full at the start. Else it is empty.
    pub is_full: bool,
    /// The time in which all nodes start, each at a random moment of it.
    pub start_within: Duration,
    /// The time from the end of `start_within` to the measurement.
    pub warm_up: Duration,
    /// How long is measured.
    pub measured: Duration,
    /// The share of the cap that all nodes together save in a second.
    pub churn: f64,
    /// Uses of stored chunks for each save.
    pub uses_per_save: u64,
    /// Whether the evictor is killed in the end.
    pub kills_evictor: bool,
    /// The bytes that this process has allocated, where they can be counted.
    pub live_bytes: Option<fn() -> u64>,
}

impl ScaleSetup {
    /// A full bucket: nodes that start within ten minutes, five minutes until it is measured for twenty minutes, and
    /// saves of the whole cap in 83 minutes.
    ///
    /// Ten minutes are the time between two listings. So the rounds and listings of the nodes are spread evenly, as
    /// those of a fleet whose nodes come and go.
    pub fn new(nodes: usize, chunks: u64) -> Self {
        ScaleSetup {
            nodes,
            chunks,
            is_full: true,
            start_within: Duration::from_secs(600),
            warm_up: Duration::from_secs(300),
            measured: Duration::from_secs(1200),
            churn: 0.0002,
            uses_per_save: 4,
            kills_evictor: true,
            live_bytes: None,
        }
    }
}

/// What a run showed.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ScaleResult {
    /// Requests from the start of the first node to the measurement.
    pub starting: RequestCounts,
    /// Requests while it was measured.
    pub steady: RequestCounts,
    /// Saves while it was measured: stored, and shed.
    pub stored: u64,
    /// See `stored`.
    pub shed: u64,
    /// Bytes of chunks at most, as a share of the cap.
    pub most_of_cap: f64,
    /// The median and the 99th percentile of the time until a follower has a chunk that another node saved, in
    /// seconds; and the share of such chunks that it learned of.
    pub save_lag_s: Lag,
    /// The same for chunks that the evictor deleted.
    pub delete_lag_s: Lag,
    /// Bytes that a node allocated, the simulated connections included.
    pub node_bytes: Option<u64>,
    /// Seconds from the end of the evictor to the first deletes of another node.
    pub takeover_s: Option<f64>,
}

/// How late a follower learns something.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Lag {
    /// Half of what it learned was later.
    pub median_s: f64,
    /// One hundredth of it was later.
    pub p99_s: f64,
    /// The share of all that it learned while it was measured.
    pub learned: f64,
}

/// Runs a simulation on the calling thread, which must not be one of a tokio runtime.
pub fn measure(setup: &ScaleSetup) -> ScaleResult {
    runtime(7).block_on(simulate(setup))
}

/// A runtime in virtual time. All random decisions on this thread follow from the seed.
fn runtime(seed: u64) -> tokio::runtime::Runtime {
    fastrand::seed(seed);
    network::virtual_runtime()
}

/// The digest of the chunk of that number.
fn digest(n: u64) -> Digest {
    *workload::key(n).digest()
}

/// Fills the bucket up to the high mark, as if the workload had saved all of it until now. Without ages of their own
/// chunks would be evicted in the order of their names.
fn fill(world: &World, setup: &ScaleSetup) {
    let there = (setup.chunks as f64 * FULL) as u64;
    let saves_per_ms = setup.churn * setup.chunks as f64 / 1000.0;
    let mut state = world.lock();
    for n in 0..there {
        let hex = digest(n).to_hex();
        let name = format!("{}/{}/{hex}", node::PREFIX, &hex[..2]);
        let bytes = vec![0; CHUNK_BYTES as usize];
        let age_ms = ((there - n) as f64 / saves_per_ms) as u64;
        state.bucket.put_foreign(&name, bytes, world.store_ms().saturating_sub(age_ms));
    }
    state.bucket.requests = RequestCounts::default();
}

async fn simulate(setup: &ScaleSetup) -> ScaleResult {
    let world = Arc::new(World::new(7, false));
    if setup.is_full {
        fill(&world, setup);
    }
    let live = || setup.live_bytes.map(|live| live());
    let before = live();
    let views = Views::new(&world);
    let saves = Arc::new(Saves::default());
    let mut nodes = Vec::new();
    let mut workload = Workload::new(&world, setup, &saves);
    let began = Instant::now();
    for (place, start) in starts(&world, setup).into_iter().enumerate() {
        sleep_until(began + start).await;
        let node = ScaleNode::start(&world, setup, place, &views);
        workload.start(&node);
        nodes.push(node);
    }
    sleep_until(began + setup.start_within + setup.warm_up).await;
    let mut result = ScaleResult::default();
    {
        let mut state = world.lock();
        result.starting = state.bucket.requests;
        state.bucket.chunk_bytes_most = state.bucket.chunk_bytes;
    }
    saves.reset();
    views.watch();
    sleep(setup.measured).await;
    {
        let state = world.lock();
        result.steady = state.bucket.requests.since(&result.starting);
        let cap = setup.chunks * CHUNK_BYTES;
        result.most_of_cap = state.bucket.chunk_bytes_most as f64 / cap as f64;
    }
    (result.stored, result.shed) = saves.counts();
    (result.save_lag_s, result.delete_lag_s) = views.lags();
    let live_after = live();
    result.node_bytes = before
        .zip(live_after)
        .map(|(before, after)| after.saturating_sub(before) / setup.nodes as u64);
    if setup.kills_evictor {
        result.takeover_s = take_over(&world, &mut nodes).await.map(|took| took.as_secs_f64());
    }
    result
}

/// When the nodes start, from the first to the last.
fn starts(world: &World, setup: &ScaleSetup) -> Vec<Duration> {
    let within_ms = setup.start_within.as_millis() as u64;
    let mut starts: Vec<_> =
        (0..setup.nodes).map(|_| Duration::from_millis(world.below(within_ms))).collect();
    starts.sort_unstable();
    starts
}

/// Kills the evictor, and waits for the deletes of another node.
async fn take_over(world: &World, nodes: &mut [ScaleNode]) -> Option<Duration> {
    let evicts = |node: &&mut ScaleNode| {
        node.tier.status().reasons.iter().any(|reason| reason.starts_with("this node evicts"))
    };
    nodes.iter_mut().find(evicts)?.kill();
    let deletes = || world.lock().bucket.requests.of(RequestPrice::Delete, RequestArea::Chunks);
    // Requests that were under way are no sign of another node.
    sleep(LOOK).await;
    let (began, before) = (world.elapsed(), deletes());
    while world.elapsed() - began < TAKEOVER_MAX {
        if deletes() > before {
            return Some(world.elapsed() - began + LOOK);
        }
        sleep(LOOK).await;
    }
    None
}
