//! Events say which keys a node lists: also of chunks that it did not save, and of those that were bad
//! for a time.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kvtier_core::{Cursor, Digest, Event, Listener, Loaded, MissReason, Observe, Saved};
use kvtier_s3_tier::{Evictor, S3Tier, TierConfig};
use kvtier_testkit::s3::Server;
use support::tier::{PREFIX, World, close, plain_server, quick, within};
use support::{config_of, endpoint};

const LEN: usize = 10_000;
const CURRENT: &str = "kv/.kvtier/snapshot/current";

/// The keys by the events, and how many events there were.
#[derive(Debug, Default)]
struct Keys(Mutex<(BTreeSet<Digest>, usize)>);

impl Keys {
    fn of(tier: &dyn Observe) -> Arc<Self> {
        let keys = Arc::new(Keys::default());
        tier.listen(Arc::clone(&keys) as Arc<dyn Listener>);
        let mut state = keys.0.lock().unwrap();
        state.0 = listed(tier);
        drop(state);
        keys
    }

    fn get(&self) -> BTreeSet<Digest> {
        self.0.lock().unwrap().0.clone()
    }

    fn events(&self) -> usize {
        self.0.lock().unwrap().1
    }
}

impl Listener for Keys {
    fn on_events(&self, events: &[Event]) {
        let mut keys = self.0.lock().unwrap();
        for event in events {
            match event {
                Event::Stored { key, .. } => _ = keys.0.insert(*key),
                Event::Gone { key, .. } => assert!(keys.0.remove(key), "{event:?} twice"),
                _ => continue,
            }
            keys.1 += 1;
        }
    }
}

fn listed(tier: &dyn Observe) -> BTreeSet<Digest> {
    tier.keys(Cursor::default(), 1000).keys.iter().map(|info| info.key).collect()
}

/// A node that alone evicts, as soon as it is there, and lists the bucket once.
fn config(server: &Arc<Server>) -> TierConfig {
    let config = TierConfig::new(config_of(endpoint(server, "bucket"))).with_prefix(PREFIX);
    let mut config = quick(config).with_capacity(64 << 20);
    (config.sync.evictor, config.sync.sweep_every) = (Evictor::Single, Duration::from_secs(6000));
    config
}

/// Otherwise the listing after it would find them known, and nothing would ever report them.
#[test]
fn chunks_of_a_snapshot_are_reported() {
    let server = plain_server();
    let first = World::over(Arc::clone(&server), |_| config(&server));
    (0..20).for_each(|n| assert_eq!(first.save(&first.suite.key(n), LEN), Saved::Stored));
    first.suite.eventually("a snapshot", || server.object(CURRENT).is_some());
    close(first);
    // It reads the snapshot before it lists.
    let second = S3Tier::open(config(&server)).unwrap();
    let keys = Keys::of(&second);
    within(Duration::from_secs(180), "all are listed", || listed(&second).len() == 20);
    within(Duration::from_secs(180), "all are reported", || keys.get() == listed(&second));
}

#[test]
fn a_chunk_that_was_corrupt_is_reported_when_it_is_good_again() {
    let world = World::with(quick);
    let key = world.suite.key(1);
    let name = world.name(&key);
    assert_eq!(world.save(&key, LEN), Saved::Stored);
    let good = world.server.object(&name).unwrap().to_vec();
    let facts = world.runtime.block_on(world.outside.head(&name)).unwrap().unwrap();
    let keys = Keys::of(&*world.tier);
    world.spoil(&name, |bytes| bytes[LEN / 2] ^= 1);
    assert_eq!(world.load(&key, LEN), Loaded::Miss(MissReason::Corrupt));
    world.suite.eventually("it is gone", || keys.get().is_empty());
    assert!(listed(&*world.tier).is_empty());
    // Another program repairs it.
    world.write(&name, &good, facts.meta("kvtier"));
    world.suite.eventually("it is a hit", || matches!(world.load(&key, LEN), Loaded::Hit { .. }));
    world.suite.eventually("it is back", || keys.get().len() == 1);
    assert_eq!((keys.get(), keys.events()), (listed(&*world.tier), 2));
}
