//! Buffers that stages use again for each chunk.

use std::fmt;

use crate::bf16_split::split_scratch::SplitScratch;
use crate::zstd_contexts::ZstdContexts;

/// The working memory of a thread that encodes or decodes. It grows to what the largest chunk needs
/// and is used again for the next one.
///
/// Decrypted bytes stay in it until they are overwritten.
#[derive(Default)]
pub struct Scratch {
    /// Pieces that are gathered into one, or one that is cut into pieces.
    pub(crate) spare: Vec<u8>,
    /// What a tag covers besides the ciphertext.
    pub(crate) associated_data: Vec<u8>,
    pub(crate) split: SplitScratch,
    pub(crate) zstd: ZstdContexts,
    /// What the chunk that a lossy stage encoded last decodes to.
    pub(crate) decoded: Vec<u8>,
    /// What is between two stages of a chain.
    pub(crate) between: [Vec<u8>; 2],
}

/// The working memory of a chain: what is between stages, and what the stages use.
pub(crate) struct Memory<'a> {
    pub(crate) between: &'a mut [Vec<u8>; 2],
    pub(crate) scratch: &'a mut Scratch,
}

impl Scratch {
    /// Without any memory.
    pub fn new() -> Self {
        Scratch::default()
    }

    /// Runs a chain's stages with the memory between them apart from what the stages use.
    pub(crate) fn with_between<T>(&mut self, run: impl FnOnce(Memory<'_>) -> T) -> T {
        let mut between = std::mem::take(&mut self.between);
        let result = run(Memory { between: &mut between, scratch: self });
        self.between = between;
        result
    }

    /// The bytes of its buffers, without the working memory of the zstd library.
    pub fn buffer_bytes(&self) -> usize {
        let between: usize = self.between.iter().map(Vec::capacity).sum();
        let own = self.spare.capacity()
            + self.associated_data.capacity()
            + between
            + self.decoded.capacity();
        own + self.split.buffer_bytes()
    }
}

impl fmt::Debug for Scratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scratch").field("buffer_bytes", &self.buffer_bytes()).finish()
    }
}
