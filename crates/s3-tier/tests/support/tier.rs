//! A tier over a server in memory, and a plain client that does to its bucket what others do.
#![allow(dead_code)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvtier_core::{Done, Key, Load, Loaded, Mode, Namespace, Observe, Presence, Saved, Status};
use kvtier_s3::{Client, Put};
use kvtier_s3_tier::{S3Tier, TierConfig};
use kvtier_testkit::conformance::Fixture;
use kvtier_testkit::s3::{SeenRequest, Server, Setup};
use tokio::runtime::Runtime;

use super::{config_of, endpoint, server};

pub const PREFIX: &str = "kv";

/// A server, a tier over it, and another client.
pub struct World {
    pub suite: Fixture,
    pub server: Arc<Server>,
    pub outside: Client,
    pub runtime: Runtime,
    pub tier: Arc<S3Tier>,
}

impl World {
    pub fn new() -> Self {
        Self::with(|config| config)
    }

    /// With settings; what was seen is asked for again at once.
    pub fn with(change: impl FnOnce(TierConfig) -> TierConfig) -> Self {
        Self::on(|_| {}, change)
    }

    pub fn on(
        setup: impl FnOnce(&mut Setup),
        change: impl FnOnce(TierConfig) -> TierConfig,
    ) -> Self {
        Self::over(Arc::new(server(setup)), change)
    }

    /// A tier over a server that is there.
    pub fn over(server: Arc<Server>, change: impl FnOnce(TierConfig) -> TierConfig) -> Self {
        let mut client = config_of(endpoint(&server, "bucket"));
        // In the background nothing else gives up a request that hangs.
        (client.stall_max, client.deadline) = (Duration::from_secs(60), Duration::from_secs(300));
        let mut config = TierConfig::new(client).with_capacity(64 << 20).with_prefix(PREFIX);
        config.fresh_miss_max = Duration::ZERO;
        // Its holder keeps the lease though this machine stands still for half a minute.
        config.sync.lease_term = Duration::from_secs(120);
        let tier = Arc::new(S3Tier::open(change(config)).unwrap());
        let mut suite = Fixture::new(kvtier_testkit::ModelTier::open(Default::default()).unwrap());
        suite.tier = Arc::clone(&tier) as Arc<_>;
        let outside = Client::new(config_of(endpoint(&server, "bucket")));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let world = World { suite, server, outside, runtime, tier };
        let begun = Instant::now();
        while world.status().reasons.iter().any(|reason| reason.contains("listed")) {
            assert!(
                begun.elapsed() < Duration::from_secs(600),
                "no first listing: {:?}",
                world.status()
            );
            std::thread::sleep(Duration::from_millis(2));
        }
        world
    }

    pub fn status(&self) -> Status {
        self.tier.status()
    }

    pub fn tier(&self) -> &S3Tier {
        &self.tier
    }

    pub fn used(&self) -> u64 {
        self.tier.usage().used_bytes.unwrap()
    }

    pub fn count(&self, name: &str) -> u64 {
        let status = self.status();
        assert!(status.counters.iter().any(|(known, _)| *known == name), "no counter {name}");
        status.counter(name)
    }

    /// Bytes of all chunks in the bucket.
    pub fn in_bucket(&self) -> u64 {
        self.objects().iter().map(|(_, bytes)| bytes).sum()
    }

    /// All objects under the prefix.
    pub fn objects(&self) -> Vec<(String, u64)> {
        let what = kvtier_s3::List::under(format!("{PREFIX}/"));
        let page = self.runtime.block_on(self.outside.list(&what, None)).unwrap();
        page.entries
            .into_iter()
            .filter(|e| !e.key.contains("/.kvtier/"))
            .map(|e| (e.key, e.bytes))
            .collect()
    }

    /// The name of the chunk's object in our own layout.
    pub fn name(&self, key: &Key) -> String {
        let hex = key.digest().to_hex();
        format!("{PREFIX}/{}/{hex}", &hex[..2])
    }

    /// Another program changes the object; its metadata stays.
    pub fn spoil(&self, name: &str, spoil: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = self.server.object(name).unwrap().to_vec();
        spoil(&mut bytes);
        let facts = self.runtime.block_on(self.outside.head(name)).unwrap().unwrap();
        self.write(name, &bytes, facts.meta("kvtier"));
    }

    /// Another program writes an object.
    pub fn write(&self, name: &str, bytes: &[u8], facts: Option<&str>) {
        let mut lease = self.suite.lease(bytes.len());
        lease.write_at(0, bytes).unwrap();
        let put = facts.iter().fold(Put::default(), |put, facts| put.meta("kvtier", *facts));
        self.runtime.block_on(self.outside.put(name, &lease.freeze(), &put)).unwrap();
    }

    /// Another program deletes an object.
    pub fn delete(&self, name: &str) {
        self.runtime.block_on(self.outside.delete(name)).unwrap();
    }

    /// What was asked of the server while `work` ran, but for what the tier does in the background.
    pub fn asked<T>(&self, work: impl FnOnce() -> T) -> (T, Vec<SeenRequest>) {
        let before = self.server.seen().len();
        let done = work();
        let mut asked = self.server.seen().split_off(before);
        let own =
            ["/.kvtier", "%2F.kvtier", "?versioning", "?object-lock", "?lifecycle", "uploads"];
        asked.retain(|seen| !own.iter().any(|own| seen.target.contains(own)));
        (done, asked)
    }

    pub fn lookup(&self, key: &Key) -> Presence {
        self.suite.lookup(&Arc::from([key.clone()]), Mode::Each)[0]
    }

    pub fn load(&self, key: &Key, len: usize) -> Loaded {
        self.suite.load(key, len)
    }

    pub fn save(&self, key: &Key, len: usize) -> Saved {
        self.suite.save(key, len)
    }

    /// Saves it. A node that waits for a round of journals, which is late where the machine stands still,
    /// may have no budget for it at first.
    pub fn save_in_time(&self, key: &Key, len: usize) {
        within(Duration::from_secs(180), "a chunk is stored", || {
            self.save(key, len) == Saved::Stored
        });
    }

    /// A load that is let fail.
    pub fn try_load(&self, key: &Key, len: usize) -> Done<Load, Loaded> {
        self.suite.load_with(self.suite.load_op(key, len))
    }

    /// Key number `n` of a namespace whose chunks have `len` bytes, no less.
    pub fn full_key(&self, n: u64, len: u64) -> Key {
        let ns = Namespace::new("suite", Default::default())
            .with_chunk_bytes(0, len)
            .with_partial(false);
        Fixture::key_in(ns, n)
    }
}

/// How long it took.
pub fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let begun = Instant::now();
    (work(), begun.elapsed())
}

/// Everything happens soon.
pub fn quick(mut config: TierConfig) -> TierConfig {
    config.sync.journal_every = Duration::from_millis(200);
    config.sync.sweep_every = Duration::from_millis(100);
    config.sync.listings_per_second_max = 1000;
    config.sync.snapshot_every = Duration::from_millis(300);
    config
}

pub fn plain_server() -> Arc<Server> {
    Arc::new(server(|_| {}))
}

pub fn close(world: World) {
    world.suite.tier.close().wait().unwrap();
}

pub fn says(world: &World, what: &str) -> bool {
    world.status().reasons.iter().any(|reason| reason.contains(what))
}

/// Waits longer than [`kvtier_testkit::conformance::Fixture::eventually`]: a lease has to run out.
pub fn within(time: Duration, what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < time, "not within {time:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// What each tenant has, by name, but for those without one.
pub fn tenants(world: &World) -> Vec<(String, u64)> {
    let mut tenants: Vec<_> =
        world.tier.usage().tenants.into_iter().map(|one| (one.tenant, one.used_bytes)).collect();
    tenants.retain(|(tenant, bytes)| !tenant.is_empty() && *bytes > 0);
    tenants.sort();
    tenants
}
