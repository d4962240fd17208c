//! Chunk-hash chains: every chunk of tokens is hashed together with the hash of the chunk before
//! it, so one hash names a whole prefix. The algorithms are LMCache's, to the bit; a cache is
//! shared only between engines that agree on algorithm, seed and chunk size.

mod algorithm;
mod builtin;
mod cbor;
mod chain;
mod hash_error;
mod prefix_hash;
mod token_number;

pub use algorithm::Algorithm;
pub use chain::{Chunking, HashChain};
pub use hash_error::HashError;
pub use prefix_hash::HashLink;
pub use token_number::Token;
