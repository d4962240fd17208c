//! What chunks the seed chooses for all of a run: their tenants, and how their objects are named.

use std::fmt;
use std::sync::Arc;

use kvtier_core::Namespace;
use kvtier_index::Quotas;
use kvtier_s3_tier::{Layout, TierConfig};

use super::KEYS;
use super::model::{LONGEST_BYTES, Model, len, namespace};
use crate::schedule::setup_rng;

/// The tenant of few chunks, ...
pub const SMALL_TENANT: &str = "small";
/// ... of which there is one to this number of keys.
const SMALL_ONE_IN: u64 = 10;
/// Its quota: a fourth of what its chunks have, and more than the longest.
const SMALL_QUOTA_BYTES: u64 = 3 * LONGEST_BYTES;

/// What the chunks of a run are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Chunks {
    /// All are of one tenant.
    OneTenant,
    /// Another tenant has a tenth of them, with or without a quota.
    TwoTenants { has_quota: bool },
    /// Objects have LMCache's names, and are served without facts. Something before the store takes away
    /// the facts of answers, and changes bytes.
    LmcacheNames,
}

impl Chunks {
    /// Those of a seed: an eighth has a second tenant with a quota, an eighth one without, an eighth
    /// LMCache's names.
    pub fn of_seed(seed: u64) -> Self {
        let mut rng = setup_rng(seed);
        // Those of the length of the run, the store, and the width of tiers.
        (0..3).for_each(|_| _ = rng.u64(..));
        match rng.u64(..8) {
            0 => Chunks::TwoTenants { has_quota: true },
            1 => Chunks::TwoTenants { has_quota: false },
            2 => Chunks::LmcacheNames,
            _ => Chunks::OneTenant,
        }
    }

    /// All keys.
    pub fn model(self) -> Model {
        match self {
            Chunks::TwoTenants { .. } => {
                let small = Arc::new(Namespace::new(SMALL_TENANT, Default::default()));
                let other = namespace();
                let of = |n| if is_of_small_tenant(n) { &small } else { &other };
                Model::new().in_namespaces(|n| Arc::clone(of(n)))
            }
            Chunks::OneTenant => Model::new(),
            Chunks::LmcacheNames => Model::new().with_lmcache_names(),
        }
    }

    pub fn configure(self, config: &mut TierConfig) {
        match self {
            Chunks::OneTenant | Chunks::TwoTenants { has_quota: false } => {}
            Chunks::TwoTenants { has_quota: true } => {
                config.quotas = Quotas::new().with(SMALL_TENANT, SMALL_QUOTA_BYTES);
            }
            Chunks::LmcacheNames => {
                config.layout = Layout::LmcacheMp;
                config.namespace = Some(namespace());
            }
        }
    }

    /// The bytes of all chunks of the small tenant.
    pub fn small_tenant_bytes(self) -> Option<u64> {
        matches!(self, Chunks::TwoTenants { .. })
            .then(|| (0..KEYS).filter(|n| is_of_small_tenant(*n)).map(|n| len(n) as u64).sum())
    }

    /// Its quota.
    pub fn quota(self) -> Option<u64> {
        (self == Chunks::TwoTenants { has_quota: true }).then_some(SMALL_QUOTA_BYTES)
    }
}

pub fn is_of_small_tenant(n: u64) -> bool {
    n.is_multiple_of(SMALL_ONE_IN)
}

impl fmt::Display for Chunks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Chunks::OneTenant => "all chunks are of one tenant",
            Chunks::TwoTenants { has_quota: false } => "chunks are of two tenants",
            Chunks::TwoTenants { has_quota: true } => {
                "chunks are of two tenants, one of which has a quota"
            }
            Chunks::LmcacheNames => "objects have LMCache's names, and are served without facts",
        })
    }
}
