use std::fmt;

use crate::hash::Algorithm;
use crate::{DType, Digest};

/// The latent that models with multi-head latent attention keep instead of keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mla {
    /// Elements of the compressed latent.
    pub latent: u32,
    /// Elements of the rotary part beside it.
    pub rope: u32,
}

/// What a chunk of KV cache is made of: enough to say its size in bytes.
///
/// ```
/// use kvtier_key::{DType, Geometry};
///
/// // Llama 3 8B: 32 layers, 8 heads of 128 elements, on two GPUs.
/// let geometry = Geometry::heads(32, 8, 128).with_dtype(DType::BFloat16).with_tp(2);
/// assert_eq!(geometry.rank_heads()?, 4);
/// assert_eq!(geometry.chunk_bytes()?, 256 * geometry.token_bytes()?);
/// # Ok::<(), kvtier_key::GeometryError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Geometry {
    /// Layers that keep KV.
    pub layers: u32,
    /// KV heads of the whole model, before tensor parallelism; 1 with MLA.
    pub kv_heads: u32,
    /// Elements of one head of a key or a value; with MLA the latent and the rotary part together.
    pub head_dim: u32,
    /// The element type.
    pub dtype: DType,
    /// Tokens in a full chunk.
    pub chunk_tokens: u32,
    /// Set for multi-head latent attention: one latent a token and layer, no separate values, the
    /// same on every rank.
    pub mla: Option<Mla>,
    /// Ranks of tensor parallelism that share the KV heads.
    pub tp: u32,
}

/// Why a geometry cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GeometryError {
    /// A count is 0.
    Zero,
    /// Ranks and KV heads do not divide one another.
    Ranks,
    /// A chunk has more bytes than 64 bits count.
    Size,
}

impl fmt::Display for GeometryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GeometryError::Zero => {
                "layers, heads, head size, chunk tokens and ranks must be at least 1"
            }
            GeometryError::Ranks => {
                "the ranks of tensor parallelism and the KV heads must divide one another"
            }
            GeometryError::Size => "a chunk of this geometry has more bytes than 64 bits count",
        })
    }
}

impl std::error::Error for GeometryError {}

impl Geometry {
    /// Keys and values of `kv_heads` heads of `head_dim` elements in `layers` layers: bfloat16,
    /// chunks of 256 tokens, one rank, unless changed.
    pub const fn heads(layers: u32, kv_heads: u32, head_dim: u32) -> Self {
        Geometry {
            layers,
            kv_heads,
            head_dim,
            dtype: DType::BFloat16,
            chunk_tokens: 256,
            mla: None,
            tp: 1,
        }
    }

    /// One latent a token in each of `layers` layers: bfloat16, chunks of 256 tokens, one rank
    /// unless changed.
    pub const fn latent(layers: u32, mla: Mla) -> Self {
        let head_dim = mla.latent.saturating_add(mla.rope);
        Geometry {
            layers,
            kv_heads: 1,
            head_dim,
            dtype: DType::BFloat16,
            chunk_tokens: 256,
            mla: Some(mla),
            tp: 1,
        }
    }

    /// Sets the element type.
    pub fn with_dtype(mut self, dtype: DType) -> Self {
        self.dtype = dtype;
        self
    }

    /// Sets the tokens of a full chunk.
    pub fn with_chunk_tokens(mut self, tokens: u32) -> Self {
        self.chunk_tokens = tokens;
        self
    }

    /// Sets the ranks of tensor parallelism.
    pub fn with_tp(mut self, ranks: u32) -> Self {
        self.tp = ranks;
        self
    }

    /// KV heads that one rank keeps; with more ranks than heads each head is kept on several. 1
    /// with MLA.
    pub fn rank_heads(&self) -> Result<u32, GeometryError> {
        self.checked()?;
        // The latent is not divided by tensor parallelism: each rank has all of it.
        Ok(if self.mla.is_some() { 1 } else { (self.kv_heads / self.tp).max(1) })
    }

    /// The shape of one rank's full chunk as LMCache has it: [keys and values, layers, tokens,
    /// elements].
    pub fn shape(&self) -> Result<[u64; 4], GeometryError> {
        let hidden = u64::from(self.rank_heads()?) * u64::from(self.head_dim);
        Ok([
            // Keys and values are two planes; a latent stands for both.
            if self.mla.is_some() { 1 } else { 2 },
            self.layers.into(),
            self.chunk_tokens.into(),
            hidden,
        ])
    }

    /// Bytes of one rank's full chunk, all layers together.
    pub fn chunk_bytes(&self) -> Result<u64, GeometryError> {
        let bytes =
            self.shape()?.into_iter().try_fold(u64::from(self.dtype.bytes()), u64::checked_mul);
        bytes.ok_or(GeometryError::Size)
    }

    /// Bytes of one token on one rank, all layers together.
    pub fn token_bytes(&self) -> Result<u64, GeometryError> {
        self.with_chunk_tokens(1).chunk_bytes()
    }

    /// The canonical form: what two engines must agree on to share chunks.
    pub fn canonical(&self) -> Vec<u8> {
        // The version of this form. Any change of it makes another namespace, and so an empty
        // cache.
        let mut out = vec![1];
        // Fixed places for all fields; the flag behind them separates "no MLA" from a latent of 0.
        let mla = self.mla.unwrap_or(Mla { latent: 0, rope: 0 });
        let counts = [
            self.layers,
            self.kv_heads,
            self.head_dim,
            self.chunk_tokens,
            self.tp,
            mla.latent,
            mla.rope,
        ];
        counts.iter().for_each(|count| out.extend_from_slice(&count.to_le_bytes()));
        out.push(self.mla.is_some().into());
        out.extend_from_slice(self.dtype.name().as_bytes());
        out
    }

    /// The layout's digest for a [`Namespace`](crate::Namespace): the geometry with how tokens are
    /// hashed. Engines with other chunks, another algorithm or another seed get another digest.
    pub fn layout(&self, algorithm: Algorithm, seed: Option<&str>) -> Digest {
        let mut bytes = self.canonical();
        // Names of types and algorithms have no NUL, so it separates them.
        bytes.push(0);
        bytes.extend_from_slice(algorithm.name().as_bytes());
        bytes.push(0);
        // An empty seed is not the same as none.
        if let Some(seed) = seed {
            bytes.push(1);
            bytes.extend_from_slice(seed.as_bytes());
        }
        Digest::derive("kvtier 2026 layout v1", &bytes)
    }

    fn checked(&self) -> Result<(), GeometryError> {
        if [self.layers, self.kv_heads, self.head_dim, self.chunk_tokens, self.tp].contains(&0) {
            return Err(GeometryError::Zero);
        }
        // More ranks than heads is allowed: engines then keep each head on several ranks.
        let shared = self.kv_heads.is_multiple_of(self.tp) || self.tp.is_multiple_of(self.kv_heads);
        if shared || self.mla.is_some() { Ok(()) } else { Err(GeometryError::Ranks) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_known_models() {
        let llama = Geometry::heads(32, 8, 128);
        assert_eq!(llama.chunk_bytes(), Ok(32 << 20));
        assert_eq!(llama.token_bytes(), Ok(128 << 10));
        assert_eq!(llama.shape(), Ok([2, 32, 256, 1024]));
        assert_eq!(llama.with_tp(4).chunk_bytes(), Ok(8 << 20));
        assert_eq!(llama.with_tp(16).rank_heads(), Ok(1), "each head on two ranks");
        assert_eq!(
            llama.with_dtype(DType::Fp8E4M3Fn).with_chunk_tokens(16).chunk_bytes(),
            Ok(1 << 20)
        );
        let deepseek = Geometry::latent(61, Mla { latent: 512, rope: 64 });
        assert_eq!(deepseek.chunk_bytes(), Ok(61 * 256 * 576 * 2));
        assert_eq!(
            deepseek.with_tp(8).chunk_bytes(),
            deepseek.chunk_bytes(),
            "every rank keeps the whole latent"
        );
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let llama = Geometry::heads(32, 8, 128);
        assert_eq!(llama.with_chunk_tokens(0).chunk_bytes(), Err(GeometryError::Zero));
        assert_eq!(llama.with_tp(3).chunk_bytes(), Err(GeometryError::Ranks));
        assert_eq!(
            Geometry::heads(u32::MAX, u32::MAX, u32::MAX).chunk_bytes(),
            Err(GeometryError::Size)
        );
    }

    #[test]
    fn layouts_differ_in_everything_engines_must_agree_on() {
        let llama = Geometry::heads(32, 8, 128);
        let deepseek = Geometry::latent(61, Mla { latent: 512, rope: 64 });
        let latent_as_head = Geometry::heads(61, 1, 576);
        let mut layouts: Vec<Digest> =
            [llama, llama.with_tp(2), llama.with_chunk_tokens(16), deepseek, latent_as_head]
                .iter()
                .flat_map(|geometry| {
                    [
                        (Algorithm::Blake3, None),
                        (Algorithm::Sha256Cbor, Some("")),
                        (Algorithm::Sha256Cbor, Some("0")),
                    ]
                    .map(|(algorithm, seed)| geometry.layout(algorithm, seed))
                })
                .collect();
        let count = layouts.len();
        layouts.sort_unstable();
        layouts.dedup();
        assert_eq!(layouts.len(), count);
    }
}
