//! A node of the measured fleet.

use std::sync::Arc;

use kvtier_core::{Observe, Tier};
use kvtier_s3_tier::{S3Tier, TierConfig};

use super::views::{NodeEvents, Views};
use super::{CHUNK_BYTES, ScaleSetup};
use crate::host::Host;
use crate::network;
use crate::world::World;

/// The beginning of all names in the bucket.
pub const PREFIX: &str = "kv";
/// Followers whose view is compared, at most.
const SAMPLES: usize = 16;

/// A host and the real tier on it.
#[derive(Clone, Debug)]
pub struct ScaleNode {
    pub host: Arc<Host>,
    pub tier: Arc<S3Tier>,
}

impl ScaleNode {
    pub fn start(world: &Arc<World>, setup: &ScaleSetup, place: usize, views: &Arc<Views>) -> Self {
        let ahead_ms = world.below(200).cast_signed() - 100;
        let host = Host::new(world, format!("node{place}"), ahead_ms);
        let tier = S3Tier::open(config(&host, setup)).expect("the configuration is valid");
        let is_sample = place.is_multiple_of((setup.nodes / SAMPLES).max(1));
        if is_sample {
            views.add_sample();
        }
        tier.listen(Arc::new(NodeEvents { views: Arc::clone(views), is_sample }));
        ScaleNode { host, tier: Arc::new(tier) }
    }

    /// Ends the process at once.
    pub fn kill(&mut self) {
        self.host.kill();
        drop(self.tier.close());
    }
}

fn config(host: &Arc<Host>, setup: &ScaleSetup) -> TierConfig {
    let cap = setup.chunks * CHUNK_BYTES;
    let mut config =
        TierConfig::new(network::client_config(host)).with_capacity(cap).with_prefix(PREFIX);
    config.bounce_bytes = 4096;
    config
}
