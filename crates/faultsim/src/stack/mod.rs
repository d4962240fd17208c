//! A stack as the facade builds it, on one machine: host memory over a directory on a simulated
//! medium over a simulated bucket. Processes are killed between two calls, the machine loses power,
//! medium and network fail.
//!
//! All runs on the thread of a runtime with a paused clock. One process runs at a time: the next
//! starts when nothing of the one before is left.

mod final_checks;
mod nemesis;
mod node;
mod process;
mod schedule;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use kvtier::Stack;
use kvtier_core::Tier;
use kvtier_disk::Disk;
use kvtier_s3_tier::S3Tier;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use self::node::{Node, Running, Setup};
use self::process::StackProcess;
use self::schedule::What;
use crate::caller::{Caller, Common};
use crate::directory::device::Device;
use crate::directory::medium::{Faults, Journal, Medium};
use crate::end_in_time::end_in_time;
use crate::fleet::model::Model;
use crate::host::Host;
use crate::key_events::{COMPARE_EVERY, KeyEvents};
use crate::network;
use crate::panics;
use crate::queues::{
    LOOK_EVERY, LOOKS_A_STATUS, look_at_bucket, look_at_directory, look_at_memory, look_at_waiting,
};
use crate::schedule::{Plan, setup_rng};
use crate::shorten;
use crate::wall_clock::draw_drift;
use crate::world::World;
use crate::{InvalidFaults, Report, Scope, SomeFaults};

/// How many keys the workload uses.
const KEYS: u64 = 120;
/// The cap of host memory: about a quarter of what all keys have.
const HOST_BYTES: u64 = 160 << 10;
/// The cap of the directory: about a third.
const DIR_BYTES: u64 = 400 << 10;
/// Memory of the callers.
const ARENA_BYTES: usize = 3 << 19;
/// How many callers there are.
const CALLERS: usize = 3;
/// The time limit of an operation.
const DEADLINE: Duration = Duration::from_secs(5);
/// How often a process may fail to open its tiers for a medium that fails.
const TRIES_MAX: u32 = 6;

/// What the parts of the run share.
#[derive(Debug)]
struct Shared {
    world: Arc<World>,
    medium: Arc<Medium>,
    common: Common,
    setup: Setup,
    /// What serves, while a process runs.
    serving: Mutex<Option<Serving>>,
    started: AtomicU64,
    /// No fault happens any more.
    is_calm: AtomicBool,
    /// Callers begin nothing more.
    is_ending: AtomicBool,
}

/// The process that runs.
#[derive(Clone, Debug)]
struct Serving {
    stack: Arc<Stack>,
    directory: Arc<Disk<Device>>,
    bucket: Arc<S3Tier>,
    /// All tiers with their events.
    tiers: Arc<[(Arc<dyn Tier>, Arc<KeyEvents>)]>,
    host: Arc<Host>,
}

impl Shared {
    fn serving(&self) -> MutexGuard<'_, Option<Serving>> {
        self.serving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A caller of the stack; `None` while no process runs.
    fn caller(&self, timeout: Duration) -> Option<Caller<'_>> {
        let Serving { stack, host, .. } = self.serving().clone()?;
        Some(Caller::new(&self.common, host, Some(stack as Arc<dyn Tier>), timeout))
    }

    fn is_calm(&self) -> bool {
        self.is_calm.load(Ordering::Relaxed)
    }
}

/// The machine with the process that runs on it.
struct Machine {
    shared: Arc<Shared>,
    /// The most bytes that the directory may have when the next process starts.
    bytes_max: u64,
    /// The machine lost power at least once.
    has_crashed: bool,
    running: Option<(Node, Running)>,
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
    let report = runtime.block_on(async { world.report(Scope::Stack, plan.seed) });
    // The tasks end before the thread's random numbers are used for anything else.
    drop(runtime);
    report
}

async fn simulate(world: &Arc<World>, plan: &Plan<'_, What>) {
    let rng = &mut setup_rng(plan.seed);
    let journal = if rng.bool() { Journal::Ordered } else { Journal::None };
    let setup = Setup::new(rng);
    let drift_ppm = draw_drift(rng);
    world.set_wall_drift(drift_ppm);
    world.event(format_args!("journal {journal:?}, {setup:?}, drift {drift_ppm} millionths"));
    let shared = Arc::new(Shared {
        world: Arc::clone(world),
        medium: Arc::new(Medium::new(journal).expect("a directory for the simulation")),
        common: Common::new(world, ARENA_BYTES, Model::new()),
        setup,
        serving: Mutex::default(),
        started: AtomicU64::new(0),
        is_calm: AtomicBool::new(false),
        is_ending: AtomicBool::new(false),
    });
    let mut machine = Machine {
        shared: Arc::clone(&shared),
        bytes_max: DIR_BYTES,
        has_crashed: false,
        running: None,
    };
    world.set_wall(world.below(4000).cast_signed() - 2000);
    machine.start().await;
    let callers: Vec<_> = (0..CALLERS).map(|_| tokio::spawn(call(Arc::clone(&shared)))).collect();
    let watches = [
        tokio::spawn(watch_queues(Arc::clone(&shared))),
        tokio::spawn(watch_events(Arc::clone(&shared))),
    ];
    nemesis::run(&mut machine, plan.faults).await;
    final_checks::service_is_back(&shared, &machine).await;
    final_checks::state_is_right(&shared, &mut machine, stop(callers)).await;
    watches.iter().for_each(JoinHandle::abort);
    machine.end(true).await;
}

/// Looks at the queues of the process that runs, for ever.
async fn watch_queues(shared: Arc<Shared>) {
    for looks in 0_u64.. {
        sleep(LOOK_EVERY).await;
        if let Some(Serving { stack, directory, bucket, host, .. }) = &*shared.serving() {
            look_at_memory(&shared.world, host.name(), stack, HOST_BYTES);
            if looks.is_multiple_of(LOOKS_A_STATUS) {
                look_at_waiting(&shared.world, host.name(), stack);
            }
            look_at_directory(&shared.world, host.name(), directory);
            look_at_bucket(&shared.world, host.name(), bucket);
        }
    }
}

/// Compares what the tiers of the process that runs report with what they list, for ever.
async fn watch_events(shared: Arc<Shared>) {
    loop {
        sleep(COMPARE_EVERY).await;
        let Some(Serving { tiers, host, .. }) = shared.serving().clone() else { continue };
        if !host.is_stopped() {
            for (tier, events) in &*tiers {
                events.compare(&shared.world, &**tier, host.went_on());
            }
        }
    }
}

/// Ends the callers between two operations.
async fn stop(callers: Vec<JoinHandle<()>>) {
    for caller in callers {
        drop(caller.await);
    }
}

async fn call(shared: Arc<Shared>) {
    let world = &shared.world;
    while !shared.is_ending.load(Ordering::Relaxed) {
        sleep(world.between_ms(20, 300)).await;
        let Some(caller) = shared.caller(DEADLINE) else { continue };
        let n = world.below(KEYS);
        let count = 1 + world.below(4);
        let numbers: Vec<u64> = (0..count).map(|more| (n + more) % KEYS).collect();
        match world.below(100) {
            0..45 => drop(caller.save(&numbers).await),
            45..82 => drop(caller.load(&numbers).await),
            82..92 => caller.lookup(&numbers).await,
            _ => caller.remove(n).await,
        }
    }
}

impl Machine {
    /// Starts a process, and tries again where faults do not let it open its tiers.
    async fn start(&mut self) {
        let shared = Arc::clone(&self.shared);
        let world = &shared.world;
        for attempt in 0.. {
            // Nothing else changes the medium meanwhile.
            if attempt == TRIES_MAX {
                world.event(format_args!("the medium is well"));
                shared.medium.set_faults(Faults::default());
                world.lock().failed_until.medium = world.elapsed();
            }
            let number = shared.started.fetch_add(1, Ordering::Relaxed) + 1;
            let was_calm = shared.is_calm();
            let host = node::host(world, number);
            let process = StackProcess::new(number, &host, &shared.medium, self.bytes_max);
            let process = Arc::new(process);
            world.event(format_args!("{} starts", host.name()));
            let (running, opened) = node::start(&shared.setup, Arc::clone(&process));
            let error = match opened {
                Ok(node) => {
                    self.bytes_max = process.bytes_max.load(Ordering::Relaxed);
                    let (stack, bucket) = (Arc::clone(&node.stack), Arc::clone(&node.bucket));
                    let tiers = node.follow();
                    let directory = Arc::clone(&node.directory);
                    *shared.serving() = Some(Serving { stack, directory, bucket, tiers, host });
                    return self.running = Some((node, running));
                }
                Err(error) => error,
            };
            world.event(format_args!("{} cannot open: {:?}", host.name(), error.kind()));
            if was_calm {
                world.finding("open", format!("{} cannot open its tiers: {error:#}", host.name()));
            }
            node::end_unopened(&process, running).await;
            sleep(world.between_ms(10, 500)).await;
            if was_calm {
                return;
            }
        }
    }

    fn process(&self) -> Option<&Arc<StackProcess>> {
        self.running.as_ref().map(|(node, _)| &node.process)
    }

    /// Ends the process, which was killed or is closed.
    async fn end(&mut self, is_well: bool) {
        *self.shared.serving() = None;
        if let Some((node, running)) = self.running.take() {
            node::end(node, running, is_well).await;
        }
    }

    /// The machine loses power. No process runs.
    fn crash(&mut self, rng: &mut Rng) {
        let world = &self.shared.world;
        let before = self.chunk_files();
        match self.shared.medium.crash(world, rng) {
            Ok(kept) => world.event(format_args!("crash: kept {kept}")),
            Err(e) => panic!("the simulated crash failed: {e}"),
        }
        self.shared.common.model().forget_removed();
        let after = self.chunk_files();
        let torn = after.into_iter().filter(|(file, bytes)| before.get(file) != Some(bytes));
        world.lock().torn.extend(torn.map(|(file, _)| file));
        self.has_crashed = true;
        self.bytes_max = self.shared.medium.chunk_bytes().max(DIR_BYTES);
    }

    /// What the files of chunks have.
    fn chunk_files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let model = self.shared.common.model();
        let root = self.shared.medium.root();
        let read = |file: PathBuf| fs::read(root.join(&file)).ok().map(|bytes| (file, bytes));
        (0..KEYS).filter_map(|n| read(model.file(n))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stack::schedule::Fault;

    /// What shows in the events of a run is found among all faults, by real runs.
    #[test]
    fn a_run_shrinks_to_the_fault_that_shows_in_its_events() {
        let is_crash = |fault: &Fault| matches!(fault.what, What::Crash { .. });
        let is_cut = |fault: &Fault| matches!(fault.what, What::Partitioned);
        let (seed, whole) =
            shorten::tests::short_schedule(schedule::of_seed, &[&is_crash, &is_cut]);
        for (event, fault) in
            [("crash: kept", "the machine loses power"), ("partitioned true", "does not reach")]
        {
            let shortest = shorten::tests::by_event(seed, &whole, event, run_plan);
            assert!(shortest.len() == 1 && shortest[0].contains(fault), "{shortest:?}");
        }
    }
}
