//! CacheGen as LMCache 0.5.6 computes it: a lossy encoding of KV data that quantises each token
//! and codes each channel of each layer arithmetically. Symbols, CDFs and streams equal LMCache's
//! bit for bit, and the container is LMCache's pickle.
//!
//! One chunk is encoded in these steps, for the keys and the values of each layer:
//!
//! 1. `quantize`: each token has the maximum of its magnitudes; a channel becomes a symbol
//!    `round(x * (M / maximum) + M)` with `M = bins / 2 - 1`.
//! 2. `cdf`: each channel counts its symbols over all tokens; the sums are scaled to 16 bits.
//! 3. `stream_encoder`: each channel of each block of up to 256 tokens becomes a stream of bits.
//! 4. `container`: CDFs, maxima, streams and their lengths are tensors in a pickle. As a `stage` of
//!    a chain the same parts are in a `frame` of kvtier's own.

mod bins;
mod cdf;
mod codec;
mod container;
mod container_writer;
mod decode;
mod encode;
mod frame;
mod layout;
mod pickle;
mod quantize;
#[cfg(test)]
mod reference_coder;
mod stage;
mod stream_decoder;
mod stream_encoder;
mod torch_storage;
#[cfg(test)]
mod vector_tests;

pub use bins::{BinRange, Bins};
pub use codec::CacheGen;
pub use container::ContainerShape;
pub use layout::{KvOrder, KvShape};
pub use stage::CacheGenStage;
