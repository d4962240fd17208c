//! The storage layer for the KV cache of LLM inference, composed.
//!
//! A [`Stack`] of tiers is one tier: a [`HostTier`] over a file tier keeps what is hot in memory
//! and everything on disk. Ops, keys and tickets are those of [`core`].
//!
//! ```
//! # #[cfg(feature = "file")] {
//! use std::{sync::Arc, time::Duration};
//! use kvtier::{HostConfig, HostTier, Stack, Tier, file::{FileConfig, FileTier}};
//! use kvtier::core::{Ctx, Digest, Load, Loaded, Namespace, Save};
//! use kvtier::core::key::{ChunkHash, KeyId, KvRank, ObjectKey};
//!
//! let dir = std::env::temp_dir().join(format!("kvtier-doc-{}", std::process::id()));
//! let host = Arc::new(HostTier::open(HostConfig::new(16 << 20))?);
//! let arena = host.arena().clone();
//! let stack = Stack::new("stack", vec![host, Arc::new(FileTier::open(FileConfig::new(&dir, 64 << 20))?)])?;
//!
//! let ns = Arc::new(Namespace::new("example", Digest::derive("layout", b"llama")));
//! let id = ObjectKey { model: "llama".into(), rank: KvRank(0), group: 0, hash: ChunkHash::new(&[1; 32]), salt: "".into() };
//! let key = kvtier::Key::new(ns, KeyId::Object(id));
//! let ctx = Ctx::within(Duration::from_secs(10));
//!
//! let mut chunk = arena.lease(256 << 10)?;
//! chunk.write_at(0, &[42; 256 << 10])?;
//! let _ = stack.save(&ctx, vec![Save { key: key.clone(), from: vec![chunk.freeze()] }]).wait();
//! let done = stack.load(&ctx, vec![Load { key, into: vec![arena.lease(256 << 10)?] }]).wait();
//! assert!(matches!(done[0].result, Ok(Loaded::Hit { len: 262_144 })));
//! # drop(stack); let _ = std::fs::remove_dir_all(&dir);
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod bytes;
#[cfg(feature = "config")]
pub mod config;
mod host;
pub mod metrics;
pub mod prelude;
mod promise;
mod stack;
mod sync;

pub use host::{HostConfig, HostTier};
pub use kvtier_core as core;
pub use kvtier_core::{Key, Observe, Tier, TierExt};
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
pub use stack::{Admit, Rule, Stack, StackConfig, Write};
