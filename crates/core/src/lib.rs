//! The traits and types that all tiers of kvtier share: [`Tier`] and [`Observe`], operations, their
//! context, tickets and errors.
//!
//! Completion inside, `async` outside, batch first. A tier takes a batch of ops and returns a
//! [`Ticket`]: a future that a plain thread can also [`wait`](Ticket::wait) for.
//!
//! An op owns its memory until the medium is done with it; the ticket owns only the result. Two
//! rules follow. Dropping a ticket loses the result and nothing else. And a ticket resolves at its
//! deadline even when the kernel still holds the op's memory: that memory returns to its owner
//! later, and the [`Gate`] counts it as stranded until then.
//!
//! - To call a tier, start with [`Ctx`], [`Load`], [`Save`] and [`TierExt`].
//! - To write a tier, start with the example of [`Tier`]; [`Admission`], [`Gate`],
//!   [`Batch`], [`Reply`] and [`Timekeeper`] implement limits, deadlines and completion.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod admission;
mod batch_results;
mod bitmap;
mod caps;
mod clock;
mod ctx;
mod delegate;
mod entropy;
mod error;
mod ext;
mod gate;
mod hold;
mod listeners;
mod observe;
mod op;
mod reply;
mod sync;
mod ticket;
mod tier;
mod timekeeper;

pub use admission::Admission;
pub use batch_results::{Batch, Slot};
pub use bitmap::Bitmap;
pub use caps::Caps;
pub use clock::{Clock, ManualClock};
pub use ctx::{Chain, Class, Ctx, Hint, Hold, Mode};
pub use entropy::random_bytes;
pub use error::{Error, ErrorKind};
pub use ext::TierExt;
pub use gate::{Gate, GateLimits, GateStats, Pass};
pub use kvtier_key as key;
pub use kvtier_key::{Digest, Key, Namespace};
pub use kvtier_mem as mem;
pub use kvtier_mem::{Lease, Place, View};
pub use listeners::Listeners;
pub use observe::{Cursor, Event, KeyInfo, KeyPage, Listener, Observe, Status, TenantUsage, Usage};
pub use op::{
    Done, HoldId, Load, Loaded, LookedUp, MissReason, Op, Presence, Removed, Save, Saved,
    ShedReason,
};
pub use reply::Reply;
pub use ticket::{Completer, Dropped, Ticket, ticket};
pub use tier::{OTHER_TENANTS, Spill, Spilled, Tier};
pub use timekeeper::{Expire, Timekeeper};
