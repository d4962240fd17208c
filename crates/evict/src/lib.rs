//! Eviction policies as pure bookkeeping over dense `u32` slots.
//!
//! A [`Policy`] is told what happened to slots (inserted, touched, pinned, removed) and answers one question: which
//! slot goes next. It knows no keys, no clock, no lock and no I/O; whoever numbers the slots (`kvtier-index`) owns
//! those. Slots are small numbers that are reused, so a policy keeps flat arrays, at most 32 bytes a slot.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

extern crate alloc;

mod kind;
mod lru;
mod policy;

pub use kind::{PolicyKind, UnknownPolicy};
pub use lru::Lru;
pub use policy::{Entry, Policy, SLOTS_MAX};
