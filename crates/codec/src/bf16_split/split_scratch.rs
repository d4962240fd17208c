//! The working memory of `bf16-split`.

use super::block::BlockDecoder;

/// Working memory: a block that crosses pieces, its symbols, and a decoder.
#[derive(Debug, Default)]
pub(crate) struct SplitScratch {
    pub(super) block: Vec<u8>,
    pub(super) symbols: Vec<u8>,
    pub(super) decoder: Option<BlockDecoder>,
}

impl SplitScratch {
    pub(crate) fn buffer_bytes(&self) -> usize {
        let decoder = self.decoder.as_ref().map_or(0, BlockDecoder::buffer_bytes);
        self.block.capacity() + self.symbols.capacity() + decoder
    }
}
