//! The node: the process of the machine with its stack of tiers, from its start to its end.

use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use fastrand::Rng;
use kvtier::{Admit, HostConfig, HostTier, Stack, StackConfig, TierRule, Write};
use kvtier_core::{Clock, Error, Tier};
use kvtier_disk::{Disk, DiskConfig, Durability};
use kvtier_os::simulated::{Entered, enter};
use kvtier_s3_tier::S3Tier;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::process::{OnRuntime, StackProcess};
use super::{DIR_BYTES, HOST_BYTES};
use crate::directory::device::Device;
use crate::directory::medium::Medium;
use crate::directory::process::ProcessTime;
use crate::fleet::node::config as bucket_config;
use crate::host::Host;
use crate::key_events::KeyEvents;
use crate::world::World;

/// How long a write in the background may take.
const WRITE_BACK_MAX: Duration = Duration::from_secs(5);
/// How long closing may take when nothing fails: what waits for the bucket is written first.
const CLOSE_MAX: Duration = Duration::from_secs(10);
/// How long the operations of a process may go on after its end.
const END_MAX: Duration = Duration::from_secs(120);

/// What the seed chooses for all processes of the run.
#[derive(Clone, Debug)]
pub struct Setup {
    directory: TierRule,
    bucket: TierRule,
    durability: Durability,
}

impl Setup {
    pub fn new(rng: &mut Rng) -> Self {
        let directory = rule(rng);
        let mut bucket = rule(rng);
        // A directory passes on nothing that it evicts.
        if bucket.write == Write::Spill {
            bucket.write = Write::Back;
        }
        let durabilities = [Durability::None, Durability::Fdatasync, Durability::Syncfs];
        Setup { directory, bucket, durability: durabilities[rng.usize(..3)] }
    }
}

fn rule(rng: &mut Rng) -> TierRule {
    let writes = [Write::Through, Write::Back, Write::Spill];
    let admits = [Admit::Policy, Admit::AfterHits(2), Admit::Never];
    TierRule::new().with_write(writes[rng.usize(..3)]).with_admit(admits[rng.usize(..3)])
}

/// A node that runs.
#[derive(Debug)]
pub struct Node {
    pub process: Arc<StackProcess>,
    pub stack: Arc<Stack>,
    pub memory: Arc<HostTier>,
    pub directory: Arc<Disk<Device>>,
    pub bucket: Arc<S3Tier>,
}

impl Node {
    /// Follows the events of each tier from now on.
    pub fn follow(&self) -> Arc<[(Arc<dyn Tier>, Arc<KeyEvents>)]> {
        let name = |what: &str| format!("the {what} of {}", self.process.host.name());
        let tiers = [
            ("memory", Arc::clone(&self.memory) as Arc<dyn Tier>),
            ("directory", Arc::clone(&self.directory) as Arc<dyn Tier>),
            ("bucket", Arc::clone(&self.bucket) as Arc<dyn Tier>),
        ];
        let follow = |(what, tier): (&str, Arc<dyn Tier>)| {
            let events = KeyEvents::of(name(what), &*tier);
            (tier, events)
        };
        tiers.into_iter().map(follow).collect()
    }
}

/// The thread belongs to the process until this is dropped.
#[derive(Debug)]
pub struct Running {
    entered: Entered,
    jobs: JoinHandle<()>,
}

/// Starts the process. `Err` with what remains of it where a tier cannot be opened.
pub fn start(setup: &Setup, process: Arc<StackProcess>) -> (Running, Result<Node, Error>) {
    let entered = enter(Rc::new(OnRuntime(Arc::clone(&process))));
    let jobs = tokio::spawn(Arc::clone(&process).run_jobs());
    (Running { entered, jobs }, open(setup, process))
}

fn open(setup: &Setup, process: Arc<StackProcess>) -> Result<Node, Error> {
    let world = &process.host.world;
    let clock = Clock::given(ProcessTime(Arc::clone(world)));
    let memory = Arc::new(HostTier::open(HostConfig::new(HOST_BYTES).with_clock(clock.clone()))?);
    let device = Device { world: Arc::clone(world), medium: Arc::clone(&process.medium) };
    let directory = directory_config(setup, &process.medium, clock.clone());
    let directory = Arc::new(Disk::open(directory, device)?);
    process.bytes_max.store(process.medium.allowed_bytes(DIR_BYTES), Ordering::Relaxed);
    process.is_open.store(true, Ordering::Relaxed);
    let bucket = Arc::new(S3Tier::open(bucket_config(&process.host))?);
    let config = StackConfig::new("stack")
        .with(Arc::clone(&memory) as Arc<dyn Tier>)
        .with_rule(Arc::clone(&directory) as Arc<dyn Tier>, setup.directory)
        .with_rule(Arc::clone(&bucket) as Arc<dyn Tier>, setup.bucket)
        .with_dirty_bytes_max(64 << 10)
        .with_write_back_timeout(WRITE_BACK_MAX)
        .with_clock(clock);
    let stack = Arc::new(Stack::open(config)?);
    Ok(Node { process, stack, memory, directory, bucket })
}

fn directory_config(setup: &Setup, medium: &Medium, clock: Clock) -> DiskConfig {
    let mut config = DiskConfig::new(medium.root(), DIR_BYTES);
    config.clock = clock;
    config.bounce_bytes = 128 << 10;
    config.ops_max = 16;
    config.free_min_bytes = Some(1 << 20);
    config.flush_every = Duration::from_secs(2);
    config.durability = setup.durability;
    config
}

/// Ends the process, closing its stack, and waits until nothing of it is left. Callers have no
/// reference when their operations have ended.
pub async fn end(node: Node, running: Running, is_well: bool) {
    let Node { process, stack, memory, directory, bucket } = node;
    let world = Arc::clone(&process.host.world);
    let began = world.elapsed();
    let closing = stack.close();
    let closed = timeout(END_MAX, closing).await;
    let took = world.elapsed() - began;
    let name = process.host.name();
    match closed {
        Ok(Ok(())) if took <= CLOSE_MAX || !is_well => {}
        Ok(Err(_)) if !is_well => {}
        closed => {
            let what = format!("{name} closed after {took:?}: {closed:?}");
            world.finding("close", what);
        }
    }
    let left = Arc::downgrade(&directory);
    drop((stack, memory, directory, bucket));
    wait_until_gone(&world, name, &left).await;
    drop(running.entered);
    running.jobs.abort();
    world.event(format_args!("{name} has ended"));
}

/// Ends a process whose start failed.
pub async fn end_unopened(process: &StackProcess, running: Running) {
    process.kill("at its start");
    // Tasks of tiers that were opened end.
    sleep(Duration::from_millis(10)).await;
    drop(running.entered);
    running.jobs.abort();
}

async fn wait_until_gone(world: &World, name: &str, left: &Weak<Disk<Device>>) {
    let began = world.elapsed();
    while left.strong_count() > 0 {
        if world.elapsed() - began > END_MAX {
            return world.finding("close", format!("operations of {name} do not end"));
        }
        sleep(Duration::from_millis(10)).await;
    }
}

/// A new machine name for each process.
pub fn host(world: &Arc<World>, number: u64) -> Arc<Host> {
    Host::of_world(world, format!("p{number}"))
}
