//! The engine of a tier in a directory: names, formats and publishing of files, and loads that verify
//! every byte.
//!
//! [`Disk`] is a whole [`Tier`](kvtier_core::Tier), generic over a [`Mover`] that moves leases to
//! and from open files. It owns the names, the [`footer`], the index and its eviction, the
//! process's staging directory, and the quarantine. It does not depend on io_uring or GPUs. A
//! directory may also hold the files of another program, in its [`Layout`].
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod active_reads;
mod change_log;
pub mod chunk_file_name;
mod config;
mod correct_tenants;
mod corrupt_chunks;
mod corrupt_file;
mod counters;
mod data_dir;
mod delete_unfinished;
mod delete_victims;
mod direct_io;
mod disk;
mod encoding_memory;
#[cfg(all(test, feature = "simulate"))]
mod fake_process;
mod file_system_probe;
mod find_unindexed;
mod follow_changes;
pub mod footer;
mod full_device_status;
mod geometry_agreement;
mod index_age;
pub mod inspect;
mod known_lengths;
mod last_fault;
mod layout;
mod ledger;
mod load;
mod load_buffers;
mod lookup;
mod maintenance;
mod mover;
mod name_locks;
mod op_threads;
mod reconcile;
mod recreate_deleted_dir;
mod relist_throttle;
mod remove;
mod save;
mod save_batch;
mod shared;
#[cfg(feature = "simulate")]
mod simulated;
mod snapshot_leader;
mod space;
mod space_state;
mod submit_transfer;
mod syncfs_thread;
mod tenant_key;
mod thread_pool;
mod tier_of_disk;
mod transfer_memory;
mod use_order;
mod wait_queue;

pub use config::{DiskConfig, Durability};
pub use data_dir::kind_of;
pub use disk::Disk;
#[doc(hidden)]
pub use kvtier_codec;
pub use kvtier_codec::TierEncoding;
#[doc(hidden)]
pub use kvtier_core;
pub use kvtier_evict::PolicyKind;
pub use kvtier_index::{LmcacheEviction, Quotas};
pub use kvtier_key::ChunkShape;
pub use layout::{Layout, Verify};
pub use mover::{Fetched, Finish, Moved, Mover, Part, Refused, Sums, Transfer, Uploaded, Watch};
