//! Keys and namespaces of KV-cache chunks, and what proves that bytes are theirs.
//!
//! A [`Key`] names one chunk: a [`Namespace`] (whose cache, which geometry) and a [`KeyId`] (model, rank, group, chunk
//! hash, salt). [`BlockSums`] are the CRC32C of a chunk's blocks, and [`Facts`] the record that travels with a stored
//! chunk so that a load can prove every byte. Nothing here does I/O.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod digest;
mod dtype;
mod engine;
mod facts;
mod facts_wire;
mod geometry;
pub mod hash;
mod id;
mod ipc;
mod key;
pub mod names;
mod namespace;
pub mod presets;
mod pyint;
mod python;
mod small;
mod sums;

pub use digest::Digest;
pub use dtype::DType;
pub use engine::{CacheEngineKey, EngineHash, LayerCacheEngineKey, TAG_BYTES_MAX, TAGS_MAX, Tag};
pub use facts::{CodecId, FACTS_BYTES_MAX, Facts, FactsError};
pub use geometry::{Geometry, GeometryError, Mla};
pub use id::{ChunkHash, HASH_BYTES_MAX, InvalidKey, KeyId, KvRank, MODEL_BYTES_MAX, ObjectKey, SALT_CHARS_MAX};
pub use ipc::{IPC_WORLD_MAX, IpcKey};
pub use key::Key;
pub use namespace::Namespace;
pub use pyint::{INT_BYTES_MAX, PyInt};
pub use sums::{BLOCK_BYTES_MIN, BLOCKS_MAX, BlockSums, PieceSums};
