//! Keys and namespaces of KV-cache chunks, and what proves that bytes are theirs.
//!
//! A [`Key`] names one chunk: a [`Namespace`] (whose cache, which geometry) and a [`KeyId`] (model, rank, group, chunk
//! hash, salt). [`BlockSums`] are the CRC32C of a chunk's blocks, and [`Facts`] the record that travels with a stored
//! chunk so that a load can prove every byte. Nothing here does I/O.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod digest;
mod facts;
mod facts_wire;
mod id;
mod key;
mod namespace;
mod sums;

pub use digest::Digest;
pub use facts::{CodecId, FACTS_BYTES_MAX, Facts, FactsError};
pub use id::{ChunkHash, InvalidKey, KeyId, KvRank, ObjectKey};
pub use key::Key;
pub use namespace::Namespace;
pub use sums::{BLOCK_BYTES_MIN, BLOCKS_MAX, BlockSums, PieceSums};
