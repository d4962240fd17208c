//! Reads and writes that own their memory until the kernel is done with it.
//!
//! An [`Engine`] takes [`Job`]s (parts to read from or write to one open file) and calls back when
//! all of a job's memory is free again. There are two engines with one interface: an io_uring
//! reactor thread, and a few blocking threads for machines that refuse io_uring. This crate has no
//! notion of keys or file names.
//!
//! ```
//! use std::sync::{Arc, mpsc};
//! use kvtier_mem::View;
//! use kvtier_uring::{Engine, EngineConfig, EngineKind, Job, Part};
//!
//! let path = std::env::temp_dir().join(format!("kvtier-uring-{}", std::process::id()));
//! let file = Arc::new(std::fs::File::create(&path)?.into());
//! let engine = Engine::new(EngineConfig::default().with_kind(EngineKind::Threads))?;
//! let part = Part::Write { at: 0, from: View::from(vec![7; 4096]), len: 4096 };
//! let (done, finished) = mpsc::channel();
//! let submitted = engine.submit(Job::write(file).with_part(part), move |job| {
//!     let _ = done.send(job.result);
//! });
//! assert!(submitted.is_ok());
//! assert_eq!(finished.recv()??, 4096);
//! std::fs::remove_file(path)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod config;
mod engine;
mod error;
mod generation_slab;
mod job;
mod reactor;
mod registered_memory;
mod ring_setup;
mod running;
mod scheduler;
mod shared_schedule;
mod stats;
mod sync;
mod threads;

pub use config::{EngineConfig, EngineKind};
pub use engine::Engine;
pub use error::{Error, ErrorKind};
pub use job::{Finished, Job, JobClass, Part, RefusalReason, RefusedJob, Watch};
pub use registered_memory::Registered;
pub use stats::Stats;
