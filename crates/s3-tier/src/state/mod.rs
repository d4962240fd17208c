//! What the tier holds in memory. Nothing here starts a request of its own accord.

pub mod catalog;
pub mod changed_keys;
pub mod cluster;
pub mod counters;
pub mod eviction_queue;
pub mod geometry;
pub mod journal;
pub mod key_locks;
pub mod layout;
pub mod lease;
pub mod paths;
pub mod scheduler;
pub mod shared;
pub mod shares;
pub mod single_flight;
pub mod tenants;
pub mod transfer;
