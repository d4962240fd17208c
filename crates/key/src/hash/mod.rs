//! Chunk-hash chains: every chunk of tokens is hashed together with the hash of the chunk before
//! it, so one hash names a whole prefix. The algorithms are LMCache's, to the bit; a cache is
//! shared only between engines that agree on algorithm, seed and chunk size.

mod builtin;
mod cbor;
mod chain;
mod token;

pub use chain::{Algorithm, Chunking, HashChain, HashError, HashLink};
pub use token::Token;
