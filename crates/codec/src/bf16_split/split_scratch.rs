//! The working memory of `bf16-split`.

use super::block::{BlockDecoder, BlockEncoder};

/// Working memory: a block that crosses pieces, an encoder and a decoder.
#[derive(Debug, Default)]
pub(crate) struct SplitScratch {
    pub(super) block: Vec<u8>,
    pub(super) encoder: BlockEncoder,
    pub(super) decoder: Option<BlockDecoder>,
}

impl SplitScratch {
    pub(crate) fn buffer_bytes(&self) -> usize {
        let decoder = self.decoder.as_ref().map_or(0, BlockDecoder::buffer_bytes);
        self.block.capacity() + self.encoder.buffer_bytes() + decoder
    }
}
