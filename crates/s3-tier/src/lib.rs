//! A cache tier in a bucket: one PUT a save, one GET a load, never a HEAD on the way to the bytes.
//!
//! The payload is the object, the facts that prove it are one metadata field. The index holds what
//! the bucket stores, within bounds of freshness; changes by other nodes are discovered. The tier
//! has a small runtime of its own.
//!
//! # Floors
//! - `state`: what the tier holds in memory. It uses neither of the floors below.
//! - `ops`: loads, saves, lookups and evictions. They use `state` alone.
//! - `background`: work that no caller waits for: listings, journals, the lease of the evictor,
//!   snapshots. It uses `state` and `ops`.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod background;
mod config;
pub mod inspect;
mod key_listing;
mod ops;
#[cfg(feature = "simulate")]
pub mod simulated;
mod state;
mod sync_config;
#[cfg(test)]
mod test_shared;
mod tier;

#[cfg(any(fuzzing, clippy))]
pub use background::fuzz_manifest;
pub use config::{Compat, Layout, TierConfig, Verify};
pub use key_listing::ListedKeys;
pub use kvtier_codec::TierEncoding;
pub use sync_config::{Evictor, SyncConfig};
pub use tier::S3Tier;
