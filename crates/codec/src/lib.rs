//! Payload transforms of KV-cache chunks: what LMCache calls a "serde". No I/O.
//!
//! A [`Codec`] writes into a buffer of its caller and never beyond it, and a decode gives exactly
//! the raw bytes that were announced or an error: stored bytes may be torn, foreign or hostile.
//! Which codec a chunk was stored with stands in its facts as a [`CodecId`](kvtier_key::CodecId);
//! [`by_id`] finds it.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod codec;
mod codec_list;
mod error;
mod identity;
mod lz4;

pub use codec::Codec;
pub use codec_list::{by_id, by_name};
pub use error::{Error, ErrorKind};
pub use identity::IdentityCodec;
pub use lz4::{LZ4_RAW_BYTES_MAX, Lz4};
