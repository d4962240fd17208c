//! What other nodes did: their journals are read and applied.

mod apply;
mod batches;
pub mod event_time;
pub mod last_writes;
pub mod merge;
pub mod progress;
pub mod unclear_chunks;
