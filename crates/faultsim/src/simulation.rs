//! Simulations of your own: your code over real S3 tiers, on machines that share a simulated bucket.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use kvtier_core::Ctx;
use kvtier_s3::Config;

use crate::Finding;
pub use crate::conditions::Conditions;
use crate::host::Host;
use crate::network;
use crate::world::World;

/// A simulation in virtual time. Clones are the same one.
///
/// ```
/// use std::time::Duration;
///
/// use kvtier_core::Observe;
/// use kvtier_faultsim::Simulation;
/// use kvtier_s3_tier::{S3Tier, TierConfig};
///
/// let outcome = Simulation::run(7, |simulation| async move {
///     let machine = simulation.machine("node0");
///     let config = TierConfig::new(machine.client()).with_capacity(1 << 20);
///     let tier = S3Tier::open(config).unwrap();
///     // A day passes at once.
///     tokio::time::sleep(Duration::from_secs(86_400)).await;
///     if tier.usage().used_bytes != Some(0) {
///         simulation.finding("usage", "an empty bucket has bytes".into());
///     }
/// });
/// assert!(outcome.findings.is_empty(), "{:?}", outcome.findings);
/// ```
#[derive(Clone, Debug)]
pub struct Simulation {
    world: Arc<World>,
}

/// What a simulation of your own gave.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Outcome {
    /// How many events there were: requests, faults, and [your own](Simulation::event).
    pub events: u64,
    /// How long it took in virtual time.
    pub virtual_time: Duration,
    /// A digest of all events with their times, in hex. The same seed and body give the same one.
    pub digest: String,
    /// The promises that were broken, as the body [reported](Simulation::finding) them.
    pub findings: Vec<Finding>,
    /// Every event.
    pub trace: Vec<String>,
}

impl Simulation {
    /// Runs `body` on the calling thread, which must not be one of a tokio runtime. Time passes where all
    /// tasks wait: by `tokio::time`, by a tier, or for the bucket. Tasks that `body` starts with
    /// `tokio::spawn` end with it.
    ///
    /// The run repeats if the body takes time and random numbers from the simulation, starts no thread and
    /// reads nothing that changes.
    pub fn run<F, Body>(seed: u64, body: F) -> Outcome
    where
        F: FnOnce(Simulation) -> Body,
        Body: Future<Output = ()>,
    {
        // All random decisions of the production code, which runs on this thread alone.
        fastrand::seed(seed);
        let runtime = network::virtual_runtime();
        let world = runtime.block_on(async {
            let world = Arc::new(World::new(seed, true));
            body(Simulation { world: Arc::clone(&world) }).await;
            world
        });
        let outcome = runtime.block_on(async { Outcome::of(&world) });
        // The tasks end before the thread's random numbers are used for anything else.
        drop(runtime);
        outcome
    }

    /// A machine with one process. A process that starts again is a new machine with a new name.
    pub fn machine(&self, name: &str) -> Machine {
        self.event(&format!("start {name}"));
        Machine { host: Host::new(&self.world, name.to_owned(), 0) }
    }

    /// Lets requests of all machines fail as often as this says, from now on.
    pub fn set_conditions(&self, conditions: Conditions) {
        self.world.event(format_args!("conditions: {conditions}"));
        self.world.lock().conditions = conditions;
    }

    /// The virtual time since the start.
    pub fn elapsed(&self) -> Duration {
        self.world.elapsed()
    }

    /// The context of an operation that may take this long in virtual time.
    pub fn ctx(&self, timeout: Duration) -> Ctx {
        let mut ctx = Ctx::within(timeout);
        ctx.deadline = self.world.now() + timeout;
        ctx
    }

    /// A random number below `end`, by the seed.
    pub fn random(&self, end: u64) -> u64 {
        self.world.below(end)
    }

    /// Records an event: it becomes part of the digest.
    pub fn event(&self, what: &str) {
        self.world.event(format_args!("{what}"));
    }

    /// Records a broken promise, of a kind in one word. Of one kind five are kept.
    pub fn finding(&self, kind: &'static str, what: String) {
        self.world.finding(kind, what);
    }

    /// The bytes of all chunks in the bucket.
    pub fn chunk_bytes(&self) -> u64 {
        self.world.lock().bucket.chunk_bytes
    }
}

impl Outcome {
    fn of(world: &World) -> Self {
        let (virtual_time, digest) = (world.elapsed(), world.digest());
        let mut state = world.lock();
        let (events, findings) = (state.events, state.findings.clone());
        Outcome { events, virtual_time, digest, findings, trace: state.take_trace() }
    }
}

/// A simulated machine with one process. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Machine {
    host: Arc<Host>,
}

impl Machine {
    /// The configuration of a client on this machine for the simulated bucket, for
    /// `TierConfig::new` of `kvtier-s3-tier`.
    pub fn client(&self) -> Config {
        network::client_config(&self.host)
    }

    /// Ends the process at once: no byte leaves or reaches it any more. Close or drop its tiers too.
    pub fn kill(&self) {
        self.event("is killed");
        self.host.kill();
    }

    /// Stops the process: nothing of its tiers runs, and their timers are late. Your own tasks go on, so
    /// let them wait for [`runs`](Self::runs).
    pub fn stop(&self) {
        self.event("stops");
        self.host.stop();
    }

    /// The process goes on, if it was stopped.
    pub fn go_on(&self) {
        self.event("goes on");
        self.host.go_on();
    }

    /// Waits while the process is stopped.
    pub async fn runs(&self) {
        self.host.runs().await;
    }

    /// From now on the network does not reach the bucket, or does again.
    pub fn set_partitioned(&self, is_partitioned: bool) {
        self.event(if is_partitioned { "is partitioned" } else { "is no longer partitioned" });
        self.host.set_partitioned(is_partitioned);
    }

    /// Its wall clock jumps: it is this many milliseconds ahead of the bucket's, or behind.
    pub fn set_clock(&self, ahead_ms: i64) {
        self.event(&format!("has its clock {ahead_ms} ms ahead"));
        self.host.set_clock(ahead_ms);
    }

    /// From now on its wall clock is faster by these millionths, or slower.
    pub fn set_drift(&self, ppm: i64) {
        self.event(&format!("has a clock that drifts by {ppm} millionths"));
        self.host.set_drift(ppm);
    }

    /// The time of day by its clock.
    pub fn wall(&self) -> SystemTime {
        self.host.wall()
    }

    fn event(&self, what: &str) {
        self.host.world.event(format_args!("{} {what}", self.host.name()));
    }
}
