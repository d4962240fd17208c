//! A node of the fleet: a host and the real tier on it.

use std::sync::Arc;
use std::time::Duration;

use kvtier_core::Tier;
use kvtier_s3_tier::{Evictor, S3Tier, SyncConfig, TierConfig};

use super::CAP_BYTES;
use super::chunks::Chunks;
use super::model::PREFIX;
use crate::host::Host;
use crate::key_events::KeyEvents;
use crate::network;
use crate::wall_clock::{DRIFT_MAX_PPM, draw_drift};
use crate::world::World;

/// The interval of journals.
pub const JOURNAL_EVERY: Duration = Duration::from_secs(2);
/// The operations and bytes that a narrow tier takes at a time: fewer than the callers have.
const NARROW: (u32, u64) = (6, 24 << 10);
/// The requests in flight of a client that has few.
const FEW_REQUESTS: usize = 8;

/// How long it takes until the slowest monotonic clock has counted this time, and a little more.
pub fn by_slowest_clock(time: Duration) -> Duration {
    time + time * DRIFT_MAX_PPM as u32 / 900_000
}

/// How long it takes until the fastest monotonic clock has counted this time, or a little less.
pub fn by_fastest_clock(time: Duration) -> Duration {
    time - time * DRIFT_MAX_PPM as u32 / 1_000_000
}

/// A node as it runs now.
#[derive(Clone, Debug)]
pub struct Node {
    pub host: Arc<Host>,
    /// `None` while it is down.
    pub tier: Option<Arc<S3Tier>>,
    /// The events of its tier.
    pub events: Option<Arc<KeyEvents>>,
    /// How often its process was started before.
    pub restarts: u32,
}

/// How a node is configured.
#[derive(Clone, Copy, Debug)]
pub struct NodeSetup {
    pub evictor: Evictor,
    /// Its tier takes few operations at a time.
    pub is_narrow: bool,
    pub chunks: Chunks,
    /// Its client has few requests in flight.
    pub has_few_requests: bool,
    /// For how long it finds a chunk without asking again.
    pub fresh_hit_max: Duration,
}

impl Node {
    pub fn start(world: &Arc<World>, place: usize, restarts: u32, setup: NodeSetup) -> Self {
        let ahead_ms = world.below(4000).cast_signed() - 2000;
        let host = Host::new(world, format!("node{place}-{restarts}"), ahead_ms);
        let drift_ppm = draw_drift(&mut world.lock().rng);
        host.set_monotonic_drift(drift_ppm);
        let name = host.name();
        world
            .event(format_args!("start {name}, clock {ahead_ms} ms, drift {drift_ppm} millionths"));
        let mut config = config(&host);
        config.sync.evictor = setup.evictor;
        config.fresh_hit_max = setup.fresh_hit_max;
        setup.chunks.configure(&mut config);
        if setup.is_narrow {
            (config.ops_max, config.inflight_bytes_max) = NARROW;
        }
        if setup.has_few_requests {
            config.client.requests_max = FEW_REQUESTS;
        }
        host.requests.set_max(config.client.requests_max);
        let tier = match S3Tier::open(config) {
            Ok(tier) => Some(Arc::new(tier)),
            Err(e) => {
                world.finding("open", format!("{} cannot open its bucket: {e}", host.name()));
                None
            }
        };
        let follow = |tier: &Arc<S3Tier>| KeyEvents::of(host.name().to_owned(), &**tier);
        let events = tier.as_ref().map(follow);
        Node { host, tier, events, restarts }
    }

    /// Ends the process at once.
    pub fn kill(&mut self) {
        self.host.world.event(format_args!("kill {}", self.host.name()));
        self.end();
    }

    /// The same, beside the faults.
    pub fn end(&mut self) {
        self.host.kill();
        if let Some(tier) = self.tier.take() {
            // Callers still have references; for them the tier is closed.
            drop(tier.close());
        }
    }
}

/// The configuration of a tier of this machine.
pub fn config(host: &Arc<Host>) -> TierConfig {
    let mut client = network::client_config(host);
    client.deadline = network::REQUEST_MAX;
    let mut config = TierConfig::new(client).with_capacity(CAP_BYTES).with_prefix(PREFIX);
    config.bounce_bytes = 1 << 20;
    let mut sync = SyncConfig::default();
    sync.lease_term = Duration::from_secs(4);
    sync.journal_every = JOURNAL_EVERY;
    sync.sweep_every = Duration::from_secs(15);
    sync.snapshot_every = Duration::from_secs(10);
    config.sync = sync;
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_clock_has_counted_a_time_between_those_of_the_fastest_and_the_slowest() {
        let time = Duration::from_secs(10);
        let counted = |true_time: Duration, ppm: f64| true_time.mul_f64(1.0 + ppm / 1e6);
        let max = DRIFT_MAX_PPM as f64;
        assert!(counted(by_fastest_clock(time), max) <= time);
        assert!(counted(by_slowest_clock(time), -max) >= time);
    }
}
