//! The GPU tier: chunks as files of a directory, transferred to and from GPU memory.
//!
//! [`GdsTier`] is [`kvtier_disk::Disk`] over a mover for GPU memory. Loads go through pinned host
//! memory: while one piece of a chunk is copied to the GPU and checksummed, io_uring reads the next
//! ones. If cuFile works without host memory, loads go straight to the GPU, which also computes
//! their checksums. Saves never use cuFile: their checksums need the bytes in host memory anyway,
//! and direct I/O writes them from pinned memory. Files, footers, cap, eviction and recovery are
//! those of the file tier, and each tier reads the files of the other. Chunks in host memory are
//! transferred as in the file tier.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod bench;
mod checksum;
mod config;
mod cufile;
mod diagnose;
mod incompressible_bytes;
mod mover;
mod tier;

pub use bench::{BenchConfig, Throughput, measure};
pub use config::{CufileMode, GdsConfig, Proof};
pub use diagnose::{DiagnosticStep, diagnose};
pub use kvtier_disk::{ChunkShape, Durability, Layout, Verify};
pub use kvtier_uring::{EngineKind, Registered};
pub use tier::{GdsTier, GpuRegistration};
