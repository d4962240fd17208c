//! The GPU tier: chunks as files of a directory, moved to and from the memory of GPUs.
//!
//! [`GdsTier`] is [`kvtier_disk::Disk`] over a mover that reaches GPU memory through pinned host
//! memory: while one piece of a chunk is copied to the GPU and its checksum taken, the next ones
//! are read by io_uring. Where cuFile works without host memory, loads go straight to the
//! GPU, which also takes their checksums; saves never do, since theirs need the bytes at the CPU
//! anyway, and from pinned memory they are written by direct I/O. Files, footers, cap, eviction and
//! recovery are the file tier's, and each of the two reads what the other wrote. What lies in host
//! memory moves as it does there.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod bench;
mod config;
mod cufile;
mod diagnose;
mod mover;
mod random;
mod sums;
mod tier;

pub use bench::{BenchConfig, Throughput, measure};
pub use config::{CufileMode, GdsConfig, Proof};
pub use diagnose::{DiagnosticStep, diagnose};
pub use kvtier_disk::{ChunkShape, Durability, Layout, Verify};
pub use kvtier_uring::{EngineKind, Registered};
pub use tier::{GdsTier, GpuRegistration};
