//! What the seed chooses for all of a run: the store, and who evicts.

use std::fmt;
use std::time::Duration;

use fastrand::Rng;
use kvtier_s3_tier::Evictor;

use crate::bucket::Bucket;
use crate::schedule::setup_rng;

/// The longest lag of listings: a quarter of the lease's term, after which the evictor renews it.
const LAG_MAX_MS: u64 = 1000;

/// The store, and what the nodes' configuration says of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Setting {
    /// It honours conditions, and listings show all changes at once. Nodes agree on the evictor.
    Strong,
    /// Listings show changes late.
    ListingsLag,
    /// It overwrites in spite of `If-None-Match`. No node evicts.
    NoConditions,
    /// It does, and the first node is configured as the evictor.
    OneEvictor,
}

impl Setting {
    /// That of a seed. Half of them have a strong store.
    pub fn of_seed(seed: u64) -> Self {
        let mut rng = setup_rng(seed);
        rng.u64(..);
        match rng.u64(..6) {
            0..3 => Setting::Strong,
            3 => Setting::ListingsLag,
            4 => Setting::NoConditions,
            _ => Setting::OneEvictor,
        }
    }

    /// The bucket is so.
    pub fn apply(self, bucket: &mut Bucket, seed: u64) {
        match self {
            Setting::Strong => {}
            Setting::ListingsLag => bucket.let_listings_lag(Rng::with_seed(!seed), LAG_MAX_MS),
            Setting::NoConditions | Setting::OneEvictor => bucket.ignores_conditions = true,
        }
    }

    /// Whether the node at this place evicts.
    pub fn evictor(self, place: usize) -> Evictor {
        match self {
            Setting::OneEvictor if place == 0 => Evictor::Single,
            Setting::OneEvictor => Evictor::Never,
            _ => Evictor::Lease,
        }
    }

    /// Whether nodes agree on the evictor by a lease.
    pub fn has_lease(self) -> bool {
        matches!(self, Setting::Strong | Setting::ListingsLag)
    }

    /// Whether some node evicts. Else saves are shed at the cap.
    pub fn evicts(self) -> bool {
        self != Setting::NoConditions
    }
}

/// Whether the tiers of this seed take few operations at a time: a fourth of them do.
pub fn is_narrow(seed: u64) -> bool {
    let mut rng = setup_rng(seed);
    rng.u64(..);
    rng.u64(..);
    rng.u64(..4) == 0
}

/// For how long nodes of this seed find a chunk without asking again: half of them for a short time.
pub fn fresh_hit_max(seed: u64) -> Duration {
    let mut rng = setup_rng(seed);
    // Those of the length of the run, the store, the width of tiers, and the chunks.
    (0..4).for_each(|_| _ = rng.u64(..));
    if rng.bool() { Duration::from_secs(5) } else { Duration::from_secs(60) }
}

/// Whether clients of this seed have few requests in flight: a fourth of them do.
pub fn has_few_requests(seed: u64) -> bool {
    let mut rng = setup_rng(seed);
    // That of the freshness, too.
    (0..5).for_each(|_| _ = rng.u64(..));
    rng.u64(..4) == 0
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Setting::Strong => "the store is strong",
            Setting::ListingsLag => "listings lag",
            Setting::NoConditions => "conditions are not honoured",
            Setting::OneEvictor => "conditions are not honoured, and node0 is the evictor",
        })
    }
}
