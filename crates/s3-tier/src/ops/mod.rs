//! What callers wait for: loads, saves, lookups, removes, and the space that saves need.

pub mod admission_order;
pub mod classify;
pub mod decode;
pub mod decode_arriving;
pub mod encode;
pub mod evict;
pub mod load;
pub mod lookup;
pub mod metadata;
pub mod remove;
pub mod reserve;
pub mod save;
pub mod save_batch;
