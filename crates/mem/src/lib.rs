//! Registered memory for KV-cache chunks.
//!
//! An [`Arena`] hands out [`Lease`]s: exclusive, writable slots that know their [`Place`] and how
//! much of them is initialised. A frozen lease is a [`View`]: shared, sliceable, immutable. Both
//! return to their arena when the last owner drops them, whichever thread that is on. Memory of
//! others becomes a lease through an owner that is kept until the last use. A [`Budget`] counts
//! bytes that have no memory of their own.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod alloc;
mod arena;
mod attached;
mod backing;
mod budget;
mod config;
#[cfg(feature = "cuda")]
pub mod cuda;
mod error;
mod fd_passing;
mod foreign;
mod lease;
mod place;
mod shared;
mod socket;
mod sync;
mod view;
mod wait_queue;

pub use arena::{Arena, ArenaStats};
pub use attached::Attached;
pub use backing::{BackingKind, Swept, sweep};
pub use budget::{Budget, BudgetStats, Permit};
pub use config::ArenaConfig;
pub use error::{Error, ErrorKind};
pub use lease::Lease;
pub use place::{Place, Region, RegionId};
pub use shared::{Descriptor, Lent};
pub use socket::set_receive_low_water;
pub use view::View;
