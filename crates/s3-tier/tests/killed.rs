//! Nodes that are killed: real processes, real signals. The bucket's server lives in the test's own
//! process.
#![allow(clippy::unwrap_used)]

mod support;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvtier_core::{Key, Loaded, Observe, Saved};
use kvtier_s3::{BucketAddress, Config, Credentials};
use kvtier_s3_tier::TierConfig;
use kvtier_testkit::s3::Server;
use support::server;
use support::tier::{PREFIX, World};

const LEN: usize = 10_000;
const CHUNKS: u64 = 60;
/// Longer than this machine stands still. A term after a kill the tests let pass by the store's
/// clock.
const TERM: Duration = Duration::from_secs(80);
/// What must not hang: the model of the lease has the exact time, and that it is two terms.
const LATE: Duration = Duration::from_secs(300);
const FLUSH: Duration = Duration::from_millis(300);
const URL: &str = "KVTIER_TEST_NODE_URL";

fn settings(mut config: TierConfig) -> TierConfig {
    config.sync.lease_term = TERM;
    config.sync.journal_every = FLUSH;
    config.sync.sweep_every = Duration::from_millis(500);
    // Nothing is shed because this machine is slow.
    config.space_wait_max = Duration::from_secs(600);
    config.with_capacity(100 * LEN as u64)
}

/// The node that is killed: a process that writes chunks, uses some of them again, says so, and
/// goes on until it dies.
#[test]
fn node() {
    let Ok(url) = std::env::var(URL) else { return };
    let endpoint = BucketAddress::new(url).bucket("bucket").region("us-east-1").resolve().unwrap();
    let client = Config::new(endpoint, Credentials::new("AKIDTEST", "secret/test+key"));
    let tier = kvtier_s3_tier::S3Tier::open(settings(TierConfig::new(client).with_prefix(PREFIX)))
        .unwrap();
    let mut suite = kvtier_testkit::conformance::Fixture::new(
        kvtier_testkit::ModelTier::open(Default::default()).unwrap(),
    );
    let tier = Arc::new(tier);
    suite.tier = Arc::clone(&tier) as Arc<_>;
    suite.eventually("this node evicts", || {
        tier.status().reasons.iter().any(|r| r.contains("this node evicts"))
    });
    for n in 0..CHUNKS {
        assert_eq!(suite.save(&suite.key(n), LEN), Saved::Stored);
    }
    // The first ten are the most recent now.
    for n in 0..10 {
        assert_eq!(suite.load(&suite.key(n), LEN), Loaded::Hit { len: LEN as u64 });
    }
    // What is written after the first of these was written contains all before it.
    for n in [900, 901] {
        let journaled = || {
            tier.status()
                .counters
                .iter()
                .find(|(name, _)| *name == "journaled")
                .map_or(0, |(_, n)| *n)
        };
        let before = journaled();
        assert_eq!(suite.save(&suite.key(n), LEN), Saved::Stored);
        suite.eventually("the journal is written", || journaled() > before);
    }
    let mut out = std::io::stdout();
    writeln!(out, "ready").and_then(|()| out.flush()).unwrap();
    for n in 1000.. {
        suite.save(&suite.key(n % 1020), LEN);
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A node in a process of its own, once it is at it.
struct Node(Child);

impl Node {
    fn start(server: &Server) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "node", "--nocapture"])
            .env(URL, server.url())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let ready = out.lines().map_while(Result::ok).any(|line| line.contains("ready"));
        assert!(ready, "the node ended before it was ready");
        Node(child)
    }

    /// Kills it as the kernel does: it gets no chance to write anything.
    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// The leases of all nodes are a term older than they are.
fn let_a_term_pass(server: &Server) {
    let leases = server.keys(&format!("{PREFIX}/.kvtier/lease/"));
    assert!(!leases.is_empty());
    // Ages are truncated to seconds.
    let seconds = TERM.as_secs() as i64 + 2;
    leases.iter().for_each(|name| assert!(server.backdate(name, seconds)));
}

fn evicts(world: &World) -> bool {
    world.status().reasons.iter().any(|reason| reason.contains("this node evicts"))
}

fn wait(time: Duration, what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < time, "not within {time:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn after_kill_9_usage_and_order_are_what_they_were() {
    let server = Arc::new(server(|_| {}));
    let node = Node::start(&server);
    std::thread::sleep(Duration::from_millis(200));
    node.kill();
    // What it had sent may be carried out after its end.
    wait(LATE, "its last request is carried out", || server.connections() == 0);
    let world = World::over(Arc::clone(&server), settings);
    assert_eq!(world.used(), world.in_bucket(), "usage is what is there");
    assert!(world.tier.usage().chunks >= CHUNKS);
    let keys: Vec<Key> = (0..CHUNKS).map(|n| world.suite.key(n)).collect();
    // The dead node's lease runs out first; meanwhile the cap holds.
    assert!(!evicts(&world), "the lease is young");
    let_a_term_pass(&server);
    wait(LATE, "the lease has run out", || evicts(&world));
    for n in 2000..2060 {
        world.save(&world.suite.key(n), LEN);
    }
    // More may be on its way out.
    world.suite.eventually("below the high mark", || {
        world.used() <= 98 * LEN as u64 && world.used() == world.in_bucket()
    });
    let there =
        |keys: &[Key]| keys.iter().filter(|key| server.object(&world.name(key)).is_some()).count();
    assert_eq!(there(&keys[..10]), 10, "what was used last before the kill stays");
    assert!(there(&keys[10..30]) <= 2, "the oldest go first: {} of 20 stay", there(&keys[10..30]));
}

#[test]
fn of_two_nodes_the_other_evicts_once_the_lease_of_a_killed_evictor_has_run_out() {
    let server = Arc::new(server(|_| {}));
    let node = Node::start(&server);
    let world = World::over(Arc::clone(&server), settings);
    world.suite.eventually("this one follows", || {
        world.status().reasons.iter().any(|reason| reason.contains("another node evicts"))
    });
    assert!(!evicts(&world));
    node.kill();
    assert!(!evicts(&world), "the lease is young");
    let_a_term_pass(&server);
    wait(LATE, "the lease has run out", || {
        // In this order: it may begin between the two.
        let evicted = world.count("evicted");
        let evicts = evicts(&world);
        assert!(evicts || evicted == 0, "it evicts without the lease");
        evicts
    });
    for n in 3000..3100 {
        world.save(&world.suite.key(n), LEN);
    }
    world.suite.eventually("the cap holds", || {
        world.used() <= 98 * LEN as u64 && world.used() == world.in_bucket()
    });
    assert!(world.count("evicted") > 0);
}
