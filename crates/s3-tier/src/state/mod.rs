//! What the tier holds in memory. Nothing here starts a request of its own accord.

pub mod catalog;
pub mod changed_during_listing;
pub mod chunk_lengths;
pub mod cluster;
pub mod counters;
pub mod eviction_queue;
pub mod head_requests;
pub mod journal;
pub mod key_locks;
pub mod layout;
pub mod lease;
pub mod paths;
pub mod scheduler;
pub mod shared;
pub mod shares;
pub mod tenants;
pub mod transfer_settings;
