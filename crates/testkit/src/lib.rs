//! What proves tiers.
//!
//! - [`mod@conformance`]: every promise of the [`Tier`](kvtier_core::Tier) contract as one
//!   function, and a macro that makes each a test;
//! - [`ModelTier`]: the contract in memory, as plainly as it can be said; the reference that other
//!   tiers are compared with;
//! - [`passes_everything_on`]: what every tier around a tier promises;
//! - [`FaultTier`]: any tier, with faults from a seed;
//! - [`Content`]: what is in a chunk, derived from its key, so that any piece of it can be checked
//!   without a copy to compare with;
//! - [`s3`]: an S3 server in memory that checks signatures, speaks S3 Express and fails as a script
//!   says;
//! - [`strategies`]: keys, namespaces and sizes for proptest.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod conformance;
mod content;
mod fault_tier;
mod model;
pub mod s3;
mod seed;
pub mod strategies;
mod worker_thread;

pub use conformance::decorator::passes_everything_on;
pub use content::{Content, Wrong};
pub use fault_tier::{FaultTier, Faults};
pub use model::{ModelConfig, ModelTier};
pub use seed::{Seed, for_each_seed};
