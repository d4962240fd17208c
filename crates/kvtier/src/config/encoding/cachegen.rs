//! `cachegen` in a tier's `encode`: the shape of the chunks, and that it is lossy.

use kvtier_codec::CacheGenStage;
use kvtier_codec::cachegen::{KvOrder, KvShape};

/// The shape of the chunks that `cachegen` encodes: all keys, then all values, as LMCache has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheGenSpec {
    /// Layers of the model.
    pub layers: u32,
    /// Elements of one token's keys in one layer: KV heads of one rank, times the head size.
    pub kv_width: u32,
    /// Tokens of a full chunk. Other chunks are stored as they are.
    pub chunk_tokens: u32,
}

impl CacheGenSpec {
    /// LMCache's number of tokens in a chunk.
    pub const CHUNK_TOKENS: u32 = 256;

    /// Chunks of 256 tokens.
    pub fn new(layers: u32, kv_width: u32) -> Self {
        CacheGenSpec { layers, kv_width, chunk_tokens: Self::CHUNK_TOKENS }
    }

    /// The stage.
    ///
    /// # Errors
    /// `Invalid`: an extent is zero or too large.
    pub(super) fn stage(self) -> Result<CacheGenStage, kvtier_codec::Error> {
        let [layers, width, tokens] =
            [self.layers, self.kv_width, self.chunk_tokens].map(|extent| extent as usize);
        let shape = KvShape { layers, heads: 1, head_size: width };
        CacheGenStage::new(shape, KvOrder::KeysThenValues, tokens)
    }

    /// For people.
    pub(super) fn describe(self) -> String {
        let CacheGenSpec { layers, kv_width, chunk_tokens } = self;
        format!("cachegen of {layers} layers x {kv_width} x {chunk_tokens} tokens (lossy)")
    }
}
