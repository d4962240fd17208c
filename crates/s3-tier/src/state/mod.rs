//! What the tier holds in memory. Nothing here starts a request of its own accord.

pub mod catalog;
pub mod changed_during_listing;
pub mod chunk_lengths;
pub mod counters;
pub mod encoding;
pub mod epoch_lease;
pub mod eviction_queue;
pub mod head_single_flight;
pub mod key_locks;
pub mod listing_lag;
pub mod machine;
pub mod node;
pub mod node_budget;
pub mod object_names;
pub mod own_journal;
pub mod own_object_names;
pub mod scheduler;
pub mod shared;
pub mod tenants;
pub mod transfer_settings;
