//! Registered memory for KV-cache chunks.
//!
//! An [`Arena`] hands out [`Lease`]s: exclusive, writable slots with a [`Place`] and an initialised
//! length. A frozen lease is a [`View`]: shared, sliceable, immutable. Both return to their arena
//! when the last owner drops them, on whichever thread. Foreign memory becomes a lease through an
//! owner that is kept until the last use. A [`Budget`] limits bytes that have no memory of their
//! own.
//!
//! ```
//! use kvtier_mem::{Arena, ArenaConfig};
//!
//! let arena = Arena::new(ArenaConfig::heap(1 << 20).with_slots(4096))?;
//! let mut lease = arena.lease(4096)?;
//! lease.write_at(0, b"key and value")?;
//! let view = lease.freeze(); // shared and immutable from here on
//! assert_eq!(view.slice(4..7).as_host(), Some(&b"and"[..]));
//! drop(view);
//! assert_eq!(arena.stats().free, arena.stats().capacity);
//! # Ok::<(), kvtier_mem::Error>(())
//! ```
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod alloc;
mod arena;
mod attached;
mod backing;
mod byte_budget;
mod config;
#[cfg(feature = "cuda")]
pub mod cuda;
mod error;
mod fd_passing;
mod foreign;
mod lease;
mod lease_descriptor;
mod lend_to_process;
mod memory_kind;
mod owner;
mod receive_low_water;
mod region;
mod sync;
mod view;
mod wait_queue;

pub use arena::{Arena, ArenaStats};
pub use attached::Attached;
pub use backing::{BackingKind, Swept, sweep};
pub use byte_budget::{Budget, BudgetStats, Permit};
pub use config::ArenaConfig;
pub use error::{Error, ErrorKind};
pub use lease::Lease;
pub use lease_descriptor::Descriptor;
pub use lend_to_process::Lent;
pub use memory_kind::Place;
pub use receive_low_water::set_receive_low_water;
pub use region::{Region, RegionId};
pub use view::View;
