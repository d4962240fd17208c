//! The index of one tier: its chunks, their holds, and the eviction that frees space.
//!
//! An [`Index`] maps key digests to slots, counts usage per tenant, keeps holds with their time
//! limits, and drives eviction through a [`Policy`](kvtier_evict::Policy). It does no I/O, reads no
//! clock (time comes in as milliseconds of any monotonic clock) and takes no lock. A tier keeps it
//! in a mutex, and moves bytes outside of it.
//!
//! # A save
//!
//! 1. [`Index::reserve`] claims space before the write begins. [`Reserve::Granted`]: write.
//!    [`Reserve::Evict`]: delete these chunks, call [`Index::finish_evict`] or
//!    [`Index::abort_evict`] for each, and ask again. [`Reserve::Busy`]: other saves are deleting
//!    enough; ask again when they are done. [`Reserve::Full`]: shed the save.
//! 2. [`Index::commit`] when the chunk is published, or [`Index::cancel`] when the write failed.
//! 3. [`Index::victims`] with a need of 0, to return below the high mark.
//! 4. When the request is complete, [`Index::touch_batch`] with its whole chain.
//!
//! ```
//! use kvtier_evict::PolicyKind;
//! use kvtier_index::{Chunk, Index, IndexConfig, Reserve};
//! use kvtier_key::Digest;
//!
//! let mut index = Index::new(IndexConfig::new(10_000).with_high_mark(1.0), PolicyKind::Lru.build())?;
//! for n in 0..8u8 {
//!     // 1000 bytes of payload that cost the medium 2000
//!     let chunk = Chunk::new(Digest::derive("example", &[n]), 1000, 2000);
//!     let reservation = loop {
//!         match index.reserve(0, chunk.bytes) {
//!             Reserve::Granted(reservation) => break reservation, // write, the mutex released
//!             Reserve::Evict(victims) => victims.iter().for_each(|victim| {
//!                 index.finish_evict(&victim.chunk.digest); // after the medium deleted it
//!             }),
//!             other => panic!("{other:?}"),
//!         }
//!     };
//!     let _ = index.commit(reservation, chunk);
//! }
//! assert_eq!((index.usage().used, index.usage().entries), (10_000, 5));
//! assert!(index.get(&Digest::derive("example", &[2])).is_none());
//! assert!(index.get(&Digest::derive("example", &[3])).is_some());
//! # Ok::<(), kvtier_index::InvalidConfig>(())
//! ```
//!
//! # After a restart
//!
//! [`Index::insert`] enters the chunks that the medium lists. A [`snapshot`] and the [`journal`]s
//! then give the order of use. Both formats stop at the first torn or foreign byte, and never
//! invent a record.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod chunk;
mod chunk_record;
mod config;
mod digest_tag;
mod fields;
mod frame;
mod index;
pub mod journal;
mod last_use;
mod quota_config;
mod save_batch;
mod slab;
pub mod snapshot;
mod tenant_id;
mod tenant_id_key;
mod tenant_names;
mod tenant_numbers;
mod usage;

pub use chunk::{CHUNK_BYTES_LIMIT, ChainPlace, Chunk, IndexEntry};
pub use config::{IndexConfig, InvalidConfig, VICTIMS_MAX};
pub use digest_tag::DigestTag;
pub use frame::ReadEnd;
pub use index::{
    ChunkPage, HeldHits, HoldsFull, Index, IndexHoldId, InsertOutcome, LmcacheEviction, Refusal,
    RemoveOutcome, Reservation, Reserve, ReserveRequest, SetId, SetsFull, SlotCursor,
};
pub use last_use::{LastUse, LastUses};
pub use quota_config::Quotas;
pub use save_batch::{PendingChunk, SaveBatch, SharedIndex};
pub use tenant_id::TenantId;
pub use tenant_id_key::TenantKey;
pub use tenant_names::TenantNames;
pub use usage::{IndexUsage, TenantTotals};
