//! Where the keys and values of a chunk are in its raw bytes.

use std::ops::Range;

use crate::{Error, ErrorKind, FloatType};

/// The fixed extents of a model's KV data; the number of tokens follows from a chunk's length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Layers of the model.
    pub layers: usize,
    /// KV heads of this process.
    pub heads: usize,
    /// Elements of one head.
    pub head_size: usize,
}

/// The order of the raw bytes. In both the elements of a token's heads follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvOrder {
    /// `[2, layers, tokens, hidden]`: all keys, then all values. LMCache calls it `KV_2LTD`.
    KeysThenValues,
    /// `[layers, 2, tokens, heads, head_size]`: keys and values of each layer in turn.
    ByLayer,
}

/// The keys or the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeysOrValues {
    Keys,
    Values,
}

/// The layout of one chunk.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChunkLayout {
    pub(super) shape: KvShape,
    pub(super) order: KvOrder,
    pub(super) tokens: usize,
    pub(super) element_bytes: usize,
}

impl KvShape {
    pub(super) fn check(self) -> Result<(), Error> {
        let extents = [2, self.layers, self.heads, self.head_size, 4];
        let bytes = extents.iter().try_fold(1usize, |all, extent| all.checked_mul(*extent));
        match bytes {
            Some(bytes) if bytes > 0 && u32::try_from(bytes).is_ok() => Ok(()),
            _ => Err(Error::new(
                ErrorKind::Invalid,
                format!("CacheGen takes no KV data of the shape {self:?}"),
            )),
        }
    }

    pub(super) fn channels(self) -> usize {
        self.heads * self.head_size
    }
}

impl ChunkLayout {
    /// The layout of `raw_len` bytes. Errors: `Invalid`, these are no whole tokens, or none.
    pub(super) fn new(
        shape: KvShape,
        order: KvOrder,
        dtype: FloatType,
        raw_len: usize,
    ) -> Result<ChunkLayout, Error> {
        let token_bytes = 2 * shape.layers * shape.channels() * dtype.bytes();
        if raw_len == 0 || !raw_len.is_multiple_of(token_bytes) {
            let why = format!("{raw_len} bytes are no tokens of {token_bytes} bytes each");
            return Err(Error::new(ErrorKind::Invalid, why));
        }
        let tokens = raw_len / token_bytes;
        Ok(ChunkLayout { shape, order, tokens, element_bytes: dtype.bytes() })
    }

    /// The keys and the values of all layers in the order of CDFs and streams: all keys, then all values.
    pub(super) fn planes(&self) -> impl Iterator<Item = (KeysOrValues, usize)> + use<> {
        let layers = self.shape.layers;
        [KeysOrValues::Keys, KeysOrValues::Values]
            .into_iter()
            .flat_map(move |which| (0..layers).map(move |layer| (which, layer)))
    }

    /// The bytes of all tokens' keys or values of one layer.
    pub(super) fn plane(&self, which: KeysOrValues, layer: usize) -> Range<usize> {
        let which = match which {
            KeysOrValues::Keys => 0,
            KeysOrValues::Values => 1,
        };
        let index = match self.order {
            KvOrder::KeysThenValues => which * self.shape.layers + layer,
            KvOrder::ByLayer => layer * 2 + which,
        };
        let bytes = self.tokens * self.row_bytes();
        index * bytes..(index + 1) * bytes
    }

    /// The bytes of one token's keys or values of one layer.
    pub(super) fn row_bytes(&self) -> usize {
        self.shape.channels() * self.element_bytes
    }
}
