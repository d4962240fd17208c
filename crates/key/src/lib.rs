//! Keys and namespaces of KV-cache chunks, and the checksums that verify their bytes.
//!
//! A [`Key`] names one chunk: a [`Namespace`] (tenant and geometry) and a [`KeyId`], one of
//! LMCache's kinds of key. [`names`] writes and reads every name that LMCache gives a chunk, and
//! those of vLLM's `fs` tier ([`VllmRunConfig`]),
//! [`hash`] chains token chunks to their hashes, [`Geometry`] and [`presets`] give the size of a
//! chunk. [`BlockSums`] are the CRC32C of a chunk's blocks, and [`Facts`] the record that travels with
//! a stored chunk so that a load can prove every byte. Nothing here does I/O.
//!
//! ```
//! use kvtier_key::names::{NameForm, detect};
//!
//! let (form, parsed) = detect("org-SEP-m@0x02010201@0@abcd.data").remove(0);
//! assert_eq!(form, NameForm::Fs);
//! assert_eq!(NameForm::MpNative.format(parsed.key())?, "org/m@02010201@0@abcd");
//! # Ok::<(), kvtier_key::InvalidKey>(())
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod block_checksums;
mod canonical;
mod digest;
mod dtype;
mod engine_key;
mod facts;
mod facts_record;
mod gds;
mod geometry;
pub mod hash;
mod inline_bytes;
mod invalid_key;
mod ipc_key;
mod json;
mod key;
mod key_id;
pub mod names;
mod namespace;
mod object_key;
mod plain_key;
pub mod presets;
mod pyint;
mod python_text;
#[cfg(feature = "serde")]
mod serde_forms;
mod vllm_run_config;

pub use block_checksums::{BLOCK_BYTES_MIN, BLOCKS_MAX, BlockSums, PieceSums};
pub use canonical::KeySummary;
pub use digest::Digest;
pub use dtype::DType;
pub use engine_key::{
    CacheEngineKey, EngineHash, LayerCacheEngineKey, TAG_BYTES_MAX, TAGS_MAX, Tag,
};
pub use facts::{CodecId, EncodedPayload, FACTS_BYTES_MAX, Facts, FactsError};
pub use gds::{ChunkShape, GDS_HEADER_BYTES, GdsElement, GdsHeader, GdsHeaderError, MemoryFormat};
pub use geometry::{Geometry, GeometryError, Mla};
pub use invalid_key::InvalidKey;
pub use ipc_key::{IPC_WORLD_MAX, IpcKey};
pub use key::Key;
pub use key_id::KeyId;
pub use namespace::Namespace;
pub use object_key::{
    ChunkHash, HASH_BYTES_MAX, KvRank, MODEL_BYTES_MAX, ObjectKey, SALT_CHARS_MAX,
};
pub use pyint::{INT_BYTES_MAX, PyInt};
pub use vllm_run_config::VllmRunConfig;

/// The examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
