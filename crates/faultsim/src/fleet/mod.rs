//! A fleet of real S3 tiers on one simulated bucket: the setup, the phases of a run, its end.

mod final_checks;
pub mod model;
pub mod nemesis;
pub mod node;
mod workload;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kvtier_core::Tier;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use self::model::Model;
use self::node::Node;
use crate::caller::{Caller, Common};
use crate::world::World;
use crate::{Report, Scope};

/// How many nodes there are.
const NODES: usize = 5;
/// How many keys the workload uses.
pub const KEYS: u64 = 240;
/// The cap of the bucket: about half of what all keys have.
pub const CAP_BYTES: u64 = 480 * 1024;
/// Memory of the callers.
const ARENA_BYTES: usize = 4 << 20;
/// How long faults happen.
const FAULTS: Duration = Duration::from_secs(40);

/// What the parts of the run share.
#[derive(Debug)]
pub struct Fleet {
    pub world: Arc<World>,
    pub common: Common,
    nodes: Mutex<Vec<Node>>,
    /// Callers begin nothing more.
    pub is_ending: AtomicBool,
}

impl Fleet {
    pub fn nodes(&self) -> MutexGuard<'_, Vec<Node>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn model(&self) -> MutexGuard<'_, Model> {
        self.common.model()
    }

    /// A caller of a node.
    pub fn caller(&self, node: Node, timeout: Duration) -> Caller<'_> {
        let tier = node.tier.map(|tier| tier as Arc<dyn Tier>);
        Caller { common: &self.common, name: node.host.name().to_owned(), tier, timeout }
    }

    /// The node at this place, as it runs now.
    pub fn node(&self, place: usize) -> Node {
        self.nodes()[place].clone()
    }
}

/// Runs the simulation of this seed.
pub fn run(seed: u64, traced: bool) -> Report {
    // All random decisions of the production code, which runs on this thread alone.
    fastrand::seed(seed);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O needs nothing of the system");
    let world = runtime.block_on(async {
        let world = Arc::new(World::new(seed, traced));
        simulate(&world).await;
        world
    });
    let virtual_time = runtime.block_on(async { world.elapsed() });
    // The tasks end before the thread's random numbers are used for anything else.
    drop(runtime);
    let (events, findings) = {
        let state = world.lock();
        (state.events, state.findings.clone())
    };
    let digest = world.digest();
    let trace = world.take_trace();
    Report { seed, scope: Scope::Fleet, events, virtual_time, digest, findings, trace }
}

async fn simulate(world: &Arc<World>) {
    let fleet = Arc::new(Fleet {
        world: Arc::clone(world),
        common: Common::new(world, ARENA_BYTES),
        nodes: Mutex::default(),
        is_ending: AtomicBool::new(false),
    });
    for place in 0..NODES {
        sleep(world.between_ms(0, 100)).await;
        let node = Node::start(world, place, 0);
        fleet.nodes().push(node);
    }
    let clients = workload::start(&fleet, NODES);
    nemesis::run(&fleet, FAULTS).await;
    // From here on nothing fails.
    final_checks::service_is_back(&fleet).await;
    final_checks::state_is_right(&fleet, stop(clients)).await;
}

/// Ends the clients between two operations.
async fn stop(clients: Vec<JoinHandle<()>>) {
    for client in clients {
        drop(client.await);
    }
}
