//! A fleet of real S3 tiers on one simulated bucket: the setup, the phases of a run, its end.

mod chunks;
pub mod final_checks;
pub mod model;
mod nemesis;
pub mod node;
mod schedule;
mod setting;
mod status;
mod workload;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kvtier_core::Tier;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use self::chunks::Chunks;
use self::node::{Node, NodeSetup, by_slowest_clock};
use self::schedule::What;
use self::setting::Setting;
use crate::caller::{Caller, Common};
use crate::end_in_time::end_in_time;
use crate::key_events::COMPARE_EVERY;
use crate::network;
use crate::panics;
use crate::queues::{LOOK_EVERY, look_at_bucket};
use crate::schedule::Plan;
use crate::shorten;
use crate::world::World;
use crate::{InvalidFaults, Report, Scope, SomeFaults};

/// How many nodes there are.
const NODES: usize = 5;
/// How many keys the workload uses.
pub const KEYS: u64 = 240;
/// The cap of the bucket: about half of what all keys have.
pub const CAP_BYTES: u64 = 480 * 1024;
/// Tiers note in steps of 16 ms when they saw a chunk.
const FRESHNESS_STEP: Duration = Duration::from_millis(20);
/// What others save a lookup finds after the half second for which a miss is not asked again.
const FOUND_AFTER: Duration = Duration::from_millis(520);
/// Memory of the callers.
const ARENA_BYTES: usize = 3 << 19;

/// What the parts of the run share.
#[derive(Debug)]
pub struct Fleet {
    pub world: Arc<World>,
    pub common: Common,
    pub setting: Setting,
    pub chunks: Chunks,
    /// Tiers take few operations at a time.
    is_narrow: bool,
    /// Clients have few requests in flight.
    has_few_requests: bool,
    /// For how long tiers find a chunk without asking again.
    fresh_hit_max: Duration,
    nodes: Mutex<Vec<Node>>,
    /// Callers begin nothing more.
    pub is_ending: AtomicBool,
}

impl Fleet {
    pub fn nodes(&self) -> MutexGuard<'_, Vec<Node>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A caller of a node.
    pub fn caller(&self, node: Node, timeout: Duration) -> Caller<'_> {
        let tier = node.tier.map(|tier| tier as Arc<dyn Tier>);
        Caller::new(&self.common, node.host, tier, timeout)
    }

    /// Starts the node at this place, after this number of starts.
    pub fn start(&self, place: usize, restarts: u32) -> Node {
        let Fleet { setting, chunks, is_narrow, has_few_requests, fresh_hit_max, .. } = *self;
        let evictor = setting.evictor(place);
        let setup = NodeSetup { evictor, is_narrow, chunks, has_few_requests, fresh_hit_max };
        Node::start(&self.world, place, restarts, setup)
    }

    /// The node at this place, as it runs now.
    pub fn node(&self, place: usize) -> Node {
        self.nodes()[place].clone()
    }
}

/// Runs the simulation of this seed.
pub fn run(seed: u64, traced: bool) -> Report {
    run_plan(Plan::of_seed(seed, &schedule::of_seed(seed), traced))
}

/// The same, and the shortest schedule with a finding of the kind of the first.
pub fn run_and_shorten(seed: u64) -> Report {
    shorten::run_and_shorten(seed, &schedule::of_seed(seed), run_plan)
}

/// The same with some of its faults alone.
pub fn run_some(seed: u64, some: &SomeFaults) -> Result<Report, InvalidFaults> {
    shorten::run_some(seed, &schedule::of_seed(seed), some, run_plan)
}

fn run_plan(plan: Plan<'_, What>) -> Report {
    // All random decisions of the production code, which runs on this thread alone.
    fastrand::seed(plan.draws);
    let runtime = network::virtual_runtime();
    panics::watch();
    let world = runtime.block_on(async {
        let world = Arc::new(World::new(plan.draws, plan.traced));
        end_in_time(&world, simulate(&world, &plan)).await;
        panics::look(&world);
        world
    });
    let report = runtime.block_on(async { world.report(Scope::Fleet, plan.seed) });
    // The tasks end before the thread's random numbers are used for anything else.
    drop(runtime);
    report
}

async fn simulate(world: &Arc<World>, plan: &Plan<'_, What>) {
    let seed = plan.seed;
    let setting = Setting::of_seed(seed);
    world.event(format_args!("{setting}"));
    let chunks = Chunks::of_seed(seed);
    if chunks != Chunks::OneTenant {
        world.event(format_args!("{chunks}"));
    }
    setting.apply(&mut world.lock().bucket, seed);
    let fresh_hit_max = setting::fresh_hit_max(seed);
    let model = chunks.model().with_stale_hit_max(by_slowest_clock(fresh_hit_max) + FRESHNESS_STEP);
    let mut common = Common::new(world, ARENA_BYTES, model);
    common.found_after = (chunks != Chunks::LmcacheNames).then_some(FOUND_AFTER);
    let fleet = Arc::new(Fleet {
        world: Arc::clone(world),
        common,
        setting,
        chunks,
        is_narrow: setting::is_narrow(seed),
        has_few_requests: setting::has_few_requests(seed),
        fresh_hit_max,
        nodes: Mutex::default(),
        is_ending: AtomicBool::new(false),
    });
    for place in 0..NODES {
        sleep(world.between_ms(0, 100)).await;
        let node = fleet.start(place, 0);
        fleet.nodes().push(node);
    }
    let clients = workload::start(&fleet, NODES);
    let watches = [
        tokio::spawn(watch_queues(Arc::clone(&fleet))),
        tokio::spawn(watch_events(Arc::clone(&fleet))),
        tokio::spawn(status::watch(Arc::clone(&fleet))),
    ];
    nemesis::run(&fleet, plan.faults, schedule::end(seed)).await;
    // From here on nothing fails.
    final_checks::service_is_back(&fleet).await;
    final_checks::state_is_right(&fleet, stop(clients)).await;
    watches.iter().for_each(JoinHandle::abort);
}

/// Looks at the queues of all nodes that run, for ever.
async fn watch_queues(fleet: Arc<Fleet>) {
    loop {
        sleep(LOOK_EVERY).await;
        for node in fleet.nodes().iter() {
            if let Some(tier) = &node.tier {
                look_at_bucket(&fleet.world, node.host.name(), tier);
            }
        }
    }
}

/// Compares what all nodes that run report with what they list, for ever.
async fn watch_events(fleet: Arc<Fleet>) {
    loop {
        sleep(COMPARE_EVERY).await;
        for node in fleet.nodes().iter() {
            let Node { host, tier, events, .. } = node;
            if let (Some(tier), Some(events), false) = (tier, events, host.is_stopped()) {
                events.compare(&fleet.world, &**tier, host.went_on());
            }
        }
    }
}

/// Ends the clients between two operations.
async fn stop(clients: Vec<JoinHandle<()>>) {
    for client in clients {
        drop(client.await);
    }
}

#[cfg(test)]
mod tests {
    use super::schedule::Fault;
    use super::*;

    /// What kills a node is found among all faults, by real runs.
    #[test]
    fn a_run_shrinks_to_the_fault_that_shows_in_its_events() {
        let is_kill = |fault: &Fault| matches!(fault.what, What::Killed(_));
        let (seed, whole) = shorten::tests::short_schedule(schedule::of_seed, &[&is_kill]);
        let kill = shorten::tests::by_event(seed, &whole, " kill node", run_plan);
        assert!(kill.len() == 1 && kill[0].contains("is killed"), "{kill:?}");
    }

    /// Nothing of a process that is stopped reaches the store, and its timers are late: an operation
    /// ends when it goes on.
    #[test]
    fn a_process_that_is_stopped_sends_nothing_and_then_goes_on() {
        let (at, lasts) = (Duration::from_secs(3), Duration::from_secs(9));
        let stopped = Fault { at, lasts, what: What::Stopped(1) };
        let report = run_plan(Plan::of_seed(1, &[stopped], true));
        let place = |what: &str| report.trace.iter().position(|event| event.contains(what));
        let (begin, end) = (place(" stop node1-0").unwrap(), place(" node1-0 goes on").unwrap());
        let of_it =
            |events: &[String]| events.iter().filter(|event| event.contains(" node1-0 ")).count();
        // What was on the way arrives.
        let (soon, meanwhile) = (begin + 40, &report.trace[begin..end]);
        assert_eq!(of_it(&report.trace[soon..end]), 0, "{meanwhile:#?}");
        assert!(meanwhile.len() > 500 && of_it(&report.trace[end + 1..]) > 100);
        assert!(report.findings.is_empty(), "{report}");
    }
}
