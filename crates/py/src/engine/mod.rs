//! The shared core of the adapters that run inside an inference engine (`kvtier.vllm` and
//! `kvtier.sglang`).
//!
//! An engine names chunks by raw hashes and owns large regions of host memory. It looks keys up, and
//! moves many chunks with each job. vLLM's scheduler submits jobs and polls them; SGLang's threads
//! call and wait. Both use the same parts:
//!
//! - [`open_engine`]: the open tiers with all that follows.
//! - [`keys`]: the namespace of an engine's configuration, and the keys of its chunks.
//! - [`registered_memory`]: the regions of the engine, by address.
//! - [`lookups`]: answers from memory; keys that only a bucket can answer are asked for in one batch
//!   in the background. [`failed_chunks`] are misses meanwhile.
//! - [`jobs`]: saves and loads of a whole job between the regions and the tiers.
//! - [`start_job`]: names the chunks of a job and starts it.
//! - [`submitter`]: the thread that does so for an engine that must not wait.
//! - [`chunk_events`]: what was stored and removed, in the engine's own names.
//! - [`job_args`]: the arguments of jobs. [`shared_state`]: what the classes share with their jobs.
//! - [`py_engine_tiers`]: the Python class over all of them, with the calls that never wait.
//! - [`py_engine_pool`]: the Python class of one host pool, with the calls that wait.

mod chunk_events;
mod failed_chunks;
mod job_args;
mod jobs;
mod join_all;
mod keys;
mod load_counts;
mod lookups;
mod open_engine;
mod py_engine_pool;
mod py_engine_tiers;
mod registered_memory;
mod running_jobs;
mod shared_state;
mod start_job;
mod submitter;

pub use py_engine_pool::EnginePool;
pub use py_engine_tiers::{EngineRequest, EngineTiers};
