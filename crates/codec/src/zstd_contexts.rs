//! The working memory of the zstd library, which is used again for each chunk.

use std::fmt;

use zstd::bulk::{Compressor, Decompressor};

/// One context each way.
#[derive(Default)]
pub(crate) struct ZstdContexts {
    compressor: Option<(i32, Compressor<'static>)>,
    decompressor: Option<Decompressor<'static>>,
}

impl fmt::Debug for ZstdContexts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZstdContexts").finish_non_exhaustive()
    }
}

impl ZstdContexts {
    /// What compresses at `level`.
    pub(crate) fn compressor(&mut self, level: i32) -> std::io::Result<&mut Compressor<'static>> {
        let fits = self.compressor.take().filter(|(has, _)| *has == level);
        let kept = match fits {
            Some(kept) => kept,
            None => (level, Compressor::new(level)?),
        };
        Ok(&mut self.compressor.insert(kept).1)
    }

    /// What decompresses.
    pub(crate) fn decompressor(&mut self) -> std::io::Result<&mut Decompressor<'static>> {
        let kept = match self.decompressor.take() {
            Some(kept) => kept,
            None => Decompressor::new()?,
        };
        Ok(self.decompressor.insert(kept))
    }
}
