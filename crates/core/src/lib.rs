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

mod batch_results;
mod begin_op;
mod bitmap;
mod clock;
mod delegate_tier;
mod error;
mod event_delivery;
mod events;
mod hint;
mod hold;
mod inflight_limits;
mod key_page;
mod lookup;
mod op;
mod op_context;
mod process_timers;
mod random_bytes;
mod reply;
mod spill;
mod status;
mod sync;
mod ticket;
mod tier;
mod tier_ext;
mod tier_limits;
mod timers;
mod unclaimed_hold;
mod usage;

pub use batch_results::{Batch, Slot};
pub use begin_op::Admission;
pub use bitmap::Bitmap;
pub use clock::{Clock, ManualClock, TimeSource};
pub use error::{Error, ErrorKind};
pub use event_delivery::Listeners;
pub use events::{Event, Listener};
pub use hint::Hint;
pub use hold::{Hold, HoldId};
pub use inflight_limits::{Gate, GateLimits, GateStats, Pass, QueueLength};
pub use key_page::{Cursor, KeyInfo, KeyPage};
pub use kvtier_key as key;
pub use kvtier_key::{Digest, Key, Namespace};
pub use kvtier_mem as mem;
pub use kvtier_mem::{Lease, Place, View};
pub use lookup::{LookedUp, Mode, Presence};
pub use op::{Done, Load, Loaded, MissReason, Op, Removed, Save, Saved, ShedReason};
pub use op_context::{Chain, Class, Ctx};
pub use random_bytes::random_bytes;
pub use reply::Reply;
pub use spill::{Spill, Spilled};
pub use status::Status;
pub use ticket::{Completer, Dropped, Ticket, ticket};
pub use tier::{OTHER_TENANTS, Observe, Tier};
pub use tier_ext::TierExt;
pub use tier_limits::Caps;
pub use timers::{Expire, Timekeeper};
pub use usage::{TenantUsage, Usage};
