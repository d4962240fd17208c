//! Eviction policies as pure bookkeeping over dense `u32` slots.
//!
//! A [`Policy`] records what happens to slots (inserted, touched, pinned, removed) and answers one
//! question: which slot to evict next. It has no keys, no clock, no lock and no I/O. The caller
//! (`kvtier-index`) numbers the slots. Slots are small numbers that are reused, so a policy keeps
//! flat arrays of at most 32 bytes a slot.
//!
//! ```
//! use kvtier_evict::{PolicyKind, SlotInfo};
//!
//! let mut policy = PolicyKind::Lru.build();
//! for slot in 0..3 {
//!     policy.insert(SlotInfo::new(slot, 4096));
//! }
//! policy.touch(0);
//! policy.pin(1);
//! assert_eq!(policy.victim(), Some(2));
//! policy.evict(2, 0); // after the medium has deleted the chunk
//! assert_eq!(policy.victim(), Some(0));
//! ```
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

extern crate alloc;

mod arc;
pub(crate) mod default_policy;
mod deferred;
mod fifo;
mod ghosts;
mod isolated_lru;
mod kind;
mod lfu;
mod lru;
mod lru_compat;
mod mru;
mod noop;
mod policy;
mod s3fifo;
mod segments;
mod sieve;
mod slot_queue;
mod slots;
mod tenant_use_order;
mod wtinylfu;

pub use arc::ArcPolicy;
pub use default_policy::KvPolicy;
pub use fifo::Fifo;
pub use isolated_lru::IsolatedLru;
pub use kind::{PolicyKind, UnknownPolicy};
pub use lfu::Lfu;
pub use lru::Lru;
pub use lru_compat::LruCompat;
pub use mru::Mru;
pub use noop::Noop;
pub use policy::{EvictionHint, Policy, SLOTS_MAX, SlotInfo};
pub use s3fifo::S3Fifo;
pub use sieve::Sieve;
pub use tenant_use_order::PerTenant;
pub use wtinylfu::WTinyLfu;
