//! The file tier: chunks as files of a directory, moved straight between the caller's memory and
//! the device.
//!
//! [`FileTier`] is [`kvtier_disk::Disk`] over the engine of `kvtier-uring`: io_uring where the
//! machine allows it, a few blocking threads where not. Several processes may share one directory.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod config;
mod engine_mover;
mod tier;

pub use config::FileConfig;
pub use kvtier_disk::{ChunkShape, Durability, Layout, TierEncoding, Verify, inspect};
pub use kvtier_uring::{EngineKind, Error as EngineError, Registered};
pub use tier::FileTier;
