//! The state of a tier whose bucket is never asked, or is in memory, for tests.

use std::sync::Mutex;
use std::time::Duration;

use kvtier_core::{Caps, Event, Gate, GateLimits, Listener};
use kvtier_evict::PolicyKind;
use kvtier_index::{Index, IndexConfig};
use kvtier_mem::{Arena, ArenaConfig};
use kvtier_s3::{BucketAddress, Client, Config, Credentials};
use kvtier_testkit::s3::Server;

use crate::TierConfig;
use crate::state::shared::{Shared, SharedParts};

/// A tier without a cap, unless `change` sets one.
pub fn shared(change: impl FnOnce(&mut TierConfig)) -> Shared {
    let endpoint = BucketAddress::new("http://127.0.0.1:1").bucket("b").resolve().unwrap();
    shared_over(|| Config::new(endpoint.clone(), Credentials::new("a", "b")), change)
}

/// The same at a bucket that answers.
pub fn shared_at(server: &Server, change: impl FnOnce(&mut TierConfig)) -> Shared {
    let address = BucketAddress::new(server.url()).bucket("bucket").region("us-east-1");
    let endpoint = address.resolve().unwrap();
    let client = || {
        let mut config =
            Config::new(endpoint.clone(), Credentials::new("AKIDTEST", "secret/test+key"));
        // A request that hangs waits for the test, however slow the machine is.
        (config.stall_max, config.deadline) = (Duration::from_secs(600), Duration::from_secs(600));
        config
    };
    shared_over(client, change)
}

fn shared_over(client: impl Fn() -> Config, change: impl FnOnce(&mut TierConfig)) -> Shared {
    let mut config = TierConfig::new(client());
    change(&mut config);
    let parts = SharedParts {
        caps: Caps::new("test", 1, 1),
        index: Index::new(IndexConfig::new(u64::MAX), PolicyKind::Lru.build()).unwrap(),
        gate: Gate::new(GateLimits::new(1, 1)),
        bounce: Arena::new(ArenaConfig::heap(1)).unwrap(),
    };
    Shared::new(&config, Client::new(client()), parts)
}

/// The events that it was given, in order.
#[derive(Debug, Default)]
pub struct EventLog(pub Mutex<Vec<Event>>);

impl Listener for EventLog {
    fn on_events(&self, events: &[Event]) {
        self.0.lock().unwrap().extend_from_slice(events);
    }
}
