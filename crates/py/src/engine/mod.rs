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
//! - [`events`]: what was stored and removed, in the engine's own names.
//! - [`work`]: what a job needs on that thread.
//! - [`tiers`]: the Python class over all of them.

mod events;
mod jobs;
mod join;
mod keys;
mod lookups;
mod submitter;
mod tiers;
mod work;

pub use tiers::{EngineRequest, EngineTiers};
