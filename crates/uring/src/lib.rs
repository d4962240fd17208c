//! Reads and writes whose memory belongs to the operation until the kernel is done with it.
//!
//! An [`Engine`] takes [`Job`]s (parts to read from or write to one open file) and calls back when
//! all of a job's memory is free again. Behind one face there are two engines: an io_uring reactor
//! thread, and a few blocking threads for machines that refuse io_uring. Nothing here knows a key
//! or a file name.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod engine;
mod error;
mod job;
mod reactor;
mod ring;
mod running;
mod sched;
mod shared;
mod slab;
mod stats;
mod sync;
mod threads;

pub use engine::{Engine, EngineConfig, EngineKind, Registered};
pub use error::{Error, ErrorKind};
pub use job::{Class, Finished, Job, Part, Refused, RefusedWhy, Watch};
pub use stats::Stats;
