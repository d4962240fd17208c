//! The chain of hashes over a row of tokens, by each algorithm.

use std::num::NonZeroUsize;

use super::{Algorithm, HashError, HashLink, Token};

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
        let last = algorithm.first_link(seed)?;
        Ok(HashChain { algorithm, last, scratch: Vec::new() })
    }

    /// The chain after the chunk whose hash is `parent`.
    ///
    /// # Errors
    ///
    /// For a hash of another algorithm.
    pub fn after(algorithm: Algorithm, parent: HashLink) -> Result<Self, HashError> {
        if !algorithm.makes(parent) {
            return Err(HashError::Parent);
        }
        Ok(HashChain { algorithm, last: parent, scratch: Vec::new() })
    }

    /// The hash of the last chunk, or what the first one is chained to.
    pub fn last(&self) -> HashLink {
        self.last
    }

    /// Hashes one chunk, whatever its length, and moves on. On an error the chain stands where it
    /// stood.
    pub fn push<T: Token>(&mut self, tokens: &[T]) -> Result<HashLink, HashError> {
        self.last = self.algorithm.next_link(self.last, tokens, &mut self.scratch)?;
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
