//! The chain of hashes over a row of tokens, by each algorithm.

use std::fmt;
use std::num::NonZeroUsize;

use super::{Token, builtin, cbor};
use crate::{ChunkHash, EngineHash, PyInt};

/// How a chunk is hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// BLAKE3 over the parent's 32 bytes and each token as 4 bytes big-endian: LMCache's default in
    /// multi-process mode.
    Blake3,
    /// SHA-256 over canonical CBOR as vLLM does it; the multi-process mode keeps all 32 bytes.
    Sha256Cbor,
    /// SHA-256 over canonical CBOR, of which the in-process mode keeps and chains the first 8 bytes
    /// as a number.
    Sha256Cbor64,
    /// CPython's own `hash()` of a tuple: LMCache's default in in-process mode.
    Builtin,
}

impl Algorithm {
    /// Its name in our configuration and in layouts.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Blake3 => "blake3",
            Algorithm::Sha256Cbor => "sha256_cbor",
            Algorithm::Sha256Cbor64 => "sha256_cbor_64bit",
            Algorithm::Builtin => "builtin",
        }
    }
}

/// The hash of one chunk: what names it, and what the next chunk is chained to.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum HashLink {
    /// 32 bytes, of [`Algorithm::Blake3`] and [`Algorithm::Sha256Cbor`].
    Bytes([u8; 32]),
    /// A number, of [`Algorithm::Sha256Cbor64`].
    Unsigned(u64),
    /// A signed number, of [`Algorithm::Builtin`].
    Signed(i64),
}

impl HashLink {
    /// The hash as an `ObjectKey` holds it: numbers as 8 bytes big-endian.
    pub fn chunk_hash(self) -> ChunkHash {
        match self {
            HashLink::Bytes(bytes) => ChunkHash::new(&bytes),
            HashLink::Unsigned(number) => ChunkHash::new(&number.to_be_bytes()),
            HashLink::Signed(number) => ChunkHash::new(&number.to_be_bytes()),
        }
    }

    /// The hash as a `CacheEngineKey` holds it.
    pub fn engine_hash(self) -> EngineHash {
        match self {
            HashLink::Bytes(bytes) => EngineHash::Bytes(ChunkHash::new(&bytes)),
            HashLink::Unsigned(number) => EngineHash::Int(PyInt::from(number)),
            HashLink::Signed(number) => EngineHash::Int(PyInt::from(number)),
        }
    }
}

impl fmt::Debug for HashLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HashLink::Bytes(bytes) => bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}")),
            HashLink::Unsigned(number) => write!(f, "{number}"),
            HashLink::Signed(number) => write!(f, "{number}"),
        }
    }
}

/// Why tokens could not be hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HashError {
    /// The algorithm takes tokens of 32 bits, unsigned, and one is not.
    Token,
    /// The algorithm starts from a seed, and none was given.
    Seed,
    /// The parent is no hash of this algorithm.
    Parent,
    /// The tokens to skip are no whole number of chunks, or more than there are.
    Skip,
}

impl fmt::Display for HashError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            HashError::Token => {
                "a token is no unsigned number of 32 bits, which this algorithm needs"
            }
            HashError::Seed => {
                "this algorithm starts from a seed (the engines' PYTHONHASHSEED) and none was given"
            }
            HashError::Parent => "the parent is no hash of this algorithm",
            HashError::Skip => {
                "the tokens to skip are no whole number of chunks of the given tokens"
            }
        })
    }
}

impl std::error::Error for HashError {}

/// How a token slice is cut into chunks, and which of them are returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Chunking {
    /// Tokens in a full chunk.
    pub chunk_tokens: NonZeroUsize,
    /// Tokens at the front whose chunks are hashed, because later ones build on them, but not
    /// returned.
    pub skip_tokens: usize,
    /// Whether the remaining tokens make a last, shorter chunk.
    pub partial: bool,
}

impl Chunking {
    /// Every full chunk of `chunk_tokens` tokens.
    pub fn full(chunk_tokens: NonZeroUsize) -> Self {
        Chunking { chunk_tokens, skip_tokens: 0, partial: false }
    }

    /// Leaves out the chunks of the first `tokens`.
    pub fn skipping(mut self, tokens: usize) -> Self {
        self.skip_tokens = tokens;
        self
    }

    /// Makes a last, shorter chunk of the remaining tokens.
    pub fn with_partial(mut self) -> Self {
        self.partial = true;
        self
    }
}

/// A chain of chunk hashes, and its latest hash.
///
/// ```
/// use std::num::NonZeroUsize;
/// use kvtier_key::hash::{Algorithm, Chunking, HashChain};
///
/// let tokens: Vec<u32> = (0..1000).collect();
/// let cut = Chunking::full(NonZeroUsize::new(256).unwrap());
/// let mut chain = HashChain::start(Algorithm::Blake3, None)?;
/// let hashes = chain.chunks(&tokens, cut)?;
/// assert_eq!(hashes.len(), 3, "the last 232 tokens are no full chunk");
///
/// // A prompt with the same first 512 tokens shares the first two hashes.
/// let mut other = HashChain::start(Algorithm::Blake3, None)?;
/// assert_eq!(other.chunks(&tokens[..512], cut)?, hashes[..2]);
/// # Ok::<(), kvtier_key::hash::HashError>(())
/// ```
#[derive(Clone, Debug)]
pub struct HashChain {
    algorithm: Algorithm,
    last: HashLink,
    scratch: Vec<u8>,
}

impl HashChain {
    /// The chain before its first chunk. `seed` is the engines' `PYTHONHASHSEED`, which the two
    /// kinds of SHA-256 start from (an engine without one draws a random start, which
    /// cannot be shared). The others ignore it.
    ///
    /// # Errors
    ///
    /// For these two without a seed.
    pub fn start(algorithm: Algorithm, seed: Option<&str>) -> Result<Self, HashError> {
        let last = match algorithm {
            // LMCache's constant start. It needs no seed, so all engines share these chains.
            Algorithm::Blake3 => HashLink::Bytes(*blake3::hash(&[0; 12]).as_bytes()),
            Algorithm::Sha256Cbor => {
                // A missing seed is an error and not an empty text: an engine without one draws
                // random bytes, so no key computed here would ever match.
                HashLink::Bytes(cbor::text_sha256(seed.ok_or(HashError::Seed)?))
            }
            Algorithm::Sha256Cbor64 => {
                HashLink::Unsigned(fold(&cbor::text_sha256(seed.ok_or(HashError::Seed)?)))
            }
            // `NONE_HASH` of LMCache where vLLM is absent. Hashes of whole numbers do not depend on
            // Python's seed.
            Algorithm::Builtin => HashLink::Signed(0),
        };
        Ok(HashChain { algorithm, last, scratch: Vec::new() })
    }

    /// The chain after the chunk whose hash is `parent`.
    ///
    /// # Errors
    ///
    /// For a hash of another algorithm.
    pub fn after(algorithm: Algorithm, parent: HashLink) -> Result<Self, HashError> {
        match (algorithm, parent) {
            (Algorithm::Blake3 | Algorithm::Sha256Cbor, HashLink::Bytes(_))
            | (Algorithm::Sha256Cbor64, HashLink::Unsigned(_))
            | (Algorithm::Builtin, HashLink::Signed(_)) => {
                Ok(HashChain { algorithm, last: parent, scratch: Vec::new() })
            }
            _ => Err(HashError::Parent),
        }
    }

    /// The hash of the last chunk, or what the first one is chained to.
    pub fn last(&self) -> HashLink {
        self.last
    }

    /// Hashes one chunk, whatever its length, and moves on. On an error the chain stands where it
    /// stood.
    pub fn push<T: Token>(&mut self, tokens: &[T]) -> Result<HashLink, HashError> {
        self.last = match self.last {
            // Both algorithms of 32 bytes have the same kind of link, so here the algorithm
            // decides; for the numbers the kind of link does.
            HashLink::Bytes(parent) if self.algorithm == Algorithm::Blake3 => {
                HashLink::Bytes(blake3_of(&parent, tokens, &mut self.scratch)?)
            }
            HashLink::Bytes(parent) => {
                HashLink::Bytes(cbor::object_sha256(&parent, tokens, &mut self.scratch))
            }
            HashLink::Unsigned(parent) => {
                HashLink::Unsigned(fold(&cbor::engine_sha256(parent, tokens, &mut self.scratch)))
            }
            HashLink::Signed(parent) => HashLink::Signed(builtin::hash(parent, tokens)),
        };
        Ok(self.last)
    }

    /// Hashes the chunks of `tokens` that `cut` asks for, in order, and moves behind the last.
    pub fn chunks<T: Token>(
        &mut self,
        tokens: &[T],
        cut: Chunking,
    ) -> Result<Vec<HashLink>, HashError> {
        // A skip inside of a chunk has no meaning for the caller's list: the chunk would be neither
        // returned nor skipped.
        let size = cut.chunk_tokens.get();
        if cut.skip_tokens > tokens.len() || !cut.skip_tokens.is_multiple_of(size) {
            return Err(HashError::Skip);
        }
        let mut links = Vec::with_capacity((tokens.len() - cut.skip_tokens).div_ceil(size));
        for (i, chunk) in tokens.chunks(size).enumerate() {
            // Only the last slice can be shorter. Without it the chain ends at a full chunk and can
            // be continued.
            if chunk.len() < size && !cut.partial {
                break;
            }
            // Skipped chunks are hashed too: each link depends on the one before it.
            let link = self.push(chunk)?;
            if i >= cut.skip_tokens / size {
                links.push(link);
            }
        }
        Ok(links)
    }
}

fn blake3_of<T: Token>(
    parent: &[u8; 32],
    tokens: &[T],
    scratch: &mut Vec<u8>,
) -> Result<[u8; 32], HashError> {
    scratch.clear();
    scratch.extend_from_slice(parent);
    for token in tokens {
        // Big-endian: the byte order is part of the hash, and must be LMCache's on every machine.
        scratch.extend_from_slice(&token.as_u32().ok_or(HashError::Token)?.to_be_bytes());
    }
    Ok(*blake3::hash(scratch).as_bytes())
}

fn fold(hash: &[u8; 32]) -> u64 {
    u64::from_be_bytes(*hash.first_chunk().expect("32 bytes have a first eight"))
}
