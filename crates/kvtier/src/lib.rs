//! The storage layer for the KV cache of LLM inference, composed.
//!
//! A tier stores chunks under keys: [`HostTier`] in memory, `file::FileTier` in a directory, an S3
//! tier in a bucket. A [`Stack`] of tiers is a tier too. [`Blocking`] saves and loads whole chunks as
//! bytes:
//!
//! ```
//! # #[cfg(feature = "file")] {
//! use kvtier::file::{FileConfig, FileTier};
//! use kvtier::{Blocking, Key, Namespace};
//!
//! # let dir = std::env::temp_dir().join(format!("kvtier-doc-{}", std::process::id()));
//! let tier = FileTier::open(FileConfig::new(&dir, 64 << 20))?;
//! let ns = Namespace::from_name("llama-3-8b bf16, 256 tokens");
//! let key = Key::from_name(&ns, "prompt 7, chunk 0");
//! tier.save_bytes(&key, vec![42; 256 << 10])?;
//! assert_eq!(tier.load_bytes(&key)?, Some(vec![42; 256 << 10]));
//! # drop(tier); let _ = std::fs::remove_dir_all(&dir);
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Engines use batches instead: [`Tier::save`] and [`Tier::load`] move many chunks between a medium
//! and memory that the caller owns ([`Lease`], [`View`]), and return a ticket that is a future. The
//! programs in `examples/` show each part: `file_tier`, `s3_tier`, `stack_from_yaml`, `host_tier`,
//! `own_memory`, `async_batches`, `metrics`, `own_tier`.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod blocking;
pub mod byte_size;
#[cfg(feature = "config")]
pub mod config;
mod host;
pub mod metrics;
pub mod prelude;
mod stack;
mod sync;

pub use blocking::Blocking;
pub use host::{HostConfig, HostTier};
#[cfg(any(feature = "config", feature = "file", feature = "s3"))]
pub use kvtier_codec as codec;
pub use kvtier_core as core;
pub use kvtier_core::{Key, Namespace, Observe, Tier, TierExt};
pub use kvtier_evict as evict;
#[cfg(feature = "file")]
pub use kvtier_file as file;
#[cfg(feature = "gds")]
pub use kvtier_gds as gds;
pub use kvtier_index::{LmcacheEviction, Quotas};
pub use kvtier_key as key;
pub use kvtier_mem as mem;
pub use kvtier_mem::{Arena, ArenaConfig, Lease, View};
#[cfg(feature = "s3")]
pub use kvtier_s3 as s3;
#[cfg(feature = "s3")]
pub use kvtier_s3_tier as s3_tier;
pub use stack::{Admit, Stack, StackConfig, TierRule, Write};
