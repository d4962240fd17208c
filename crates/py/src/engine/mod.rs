//! The shared core of the adapters that run inside an inference engine (`kvtier.vllm`).
//!
//! An engine names chunks by raw hashes, owns one large region of host memory, looks keys up one by
//! one in its scheduler, and submits jobs of many chunks. Each of these is one call here:
//!
//! - [`keys`]: the namespace of an engine's configuration, and the keys of its chunks.
//! - [`lookups`]: answers from memory; keys that only a bucket can answer are asked for in one batch
//!   in the background.
//! - [`jobs`]: saves and loads of a whole job between the region and the tiers.
//! - [`submitter`]: the thread that names and submits the chunks of jobs.
//! - [`chunk_events`]: what was stored and removed, in the engine's own names.
//! - [`start_job`]: names the chunks of a job and starts it, on that thread.
//! - [`shared_state`]: what the class shares with its jobs.
//! - [`py_engine_tiers`]: the Python class over all of them.

mod chunk_events;
mod job_args;
mod jobs;
mod join_all;
mod keys;
mod lookups;
mod py_engine_tiers;
mod shared_state;
mod start_job;
mod submitter;

pub use py_engine_tiers::{EngineRequest, EngineTiers};
