//! What callers wait for: loads, saves, lookups, removals, and the room that they need.

pub mod batch;
pub mod evict;
pub mod load;
pub mod lookup;
pub mod metadata;
pub mod save;
