//! Encodings of KV-cache chunks, which LMCache calls "serde": compression and encryption. No I/O.
//!
//! Every step is a [`Stage`]. A stage writes into memory of its caller and never beyond it, and a
//! decode gives exactly the raw bytes that were announced or an error: stored bytes may be torn,
//! foreign or hostile.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod aes_gcm;
mod bf16_split;
pub mod cachegen;
mod chain;
mod chain_order;
mod codec_id;
mod decode_whole;
mod decoder;
mod element_type;
mod error;
mod float_type;
mod fp8;
mod frame_header;
mod lz4;
mod padding;
mod pieces;
mod scratch;
mod stage;
mod stage_by_name;
mod tier_encoding;
mod zstd;
mod zstd_contexts;

/// Golden vectors.
#[cfg(test)]
#[path = "../../testkit/tests/vectors/load.rs"]
mod vectors;

pub use aes_gcm::{
    AES_256_GCM_OVERHEAD, Aes256Gcm, CHUNKS_PER_KEY_MAX, Keyring, LMCACHE_AES_OVERHEAD,
    LmcacheAesGcm, LmcacheAesKey, MasterKey, SECRET_LEN_MIN,
};
pub use bf16_split::Bf16Split;
pub use cachegen::CacheGenStage;
pub use chain::{Chain, Encoded};
pub use codec_id::{STAGES_MAX, is_lossy, stage_names};
pub use decode_whole::{Undecoded, UndecodedCause};
pub use decoder::{Decoder, Stored};
pub use element_type::ElementType;
pub use error::{Error, ErrorKind};
pub use float_type::FloatType;
pub use fp8::{Fp8, Fp8Kind};
pub use lz4::{LZ4_RAW_BYTES_MAX, Lz4};
pub use padding::may_be_encoded;
pub use scratch::Scratch;
pub use stage::{Chunk, DecodeProgress, Stage, StageId, StageKind};
pub use stage_by_name::stage_by_name;
pub use tier_encoding::TierEncoding;
pub use zstd::Zstd;
