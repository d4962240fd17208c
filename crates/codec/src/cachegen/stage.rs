//! CacheGen as a stage of a chain: lossy, for full chunks of one shape whose type the engine declares.

use super::encode::encode_and_quantize;
use super::frame::{Description, TOKENS_MAX, VERSION, decode, longest, write};
use super::layout::ChunkLayout;
use super::quantize::are_finite;
use super::{Bins, KvOrder, KvShape};
use crate::float_type::for_float_type;
use crate::frame_header::FrameHeader;
use crate::pieces::{gather, grow, scatter, total_len, total_len_mut};
use crate::{Chunk, Error, FloatType, Scratch, Stage, StageId, StageKind};

/// CacheGen as a stage of a chain. **Lossy**: a chunk decodes to other values than were encoded.
///
/// It leaves out every chunk that is not certainly KV data of its shape: the engine must declare
/// bf16, fp16 or fp32, and the chunk must be as long as a full one. It also leaves out chunks with
/// NaN or infinities, and those of which it would save less than half.
///
/// Symbols, CDFs and streams are LMCache's; the frame is kvtier's own. It states its shape, so that
/// a stage of any shape decodes it. A frame has no checksum: a digest of what it decodes to, or an
/// encryption around it, proves the result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheGenStage {
    shape: KvShape,
    order: KvOrder,
    chunk_tokens: usize,
    bins: Bins,
}

impl CacheGenStage {
    /// For full chunks of `chunk_tokens` tokens, with LMCache's bins for that number of layers.
    ///
    /// # Errors
    /// `Invalid`: an extent is zero or too large.
    pub fn new(shape: KvShape, order: KvOrder, chunk_tokens: usize) -> Result<Self, Error> {
        shape.check()?;
        if !(1..=TOKENS_MAX).contains(&chunk_tokens) {
            let why =
                format!("cachegen takes chunks of 1 to {TOKENS_MAX} tokens, not {chunk_tokens}");
            return Err(Error::invalid(why));
        }
        Ok(CacheGenStage { shape, order, chunk_tokens, bins: Bins::for_layers(shape.layers) })
    }

    /// The layout of a full chunk; nothing where a chunk of `raw_len` bytes is none.
    fn layout(&self, float: FloatType, raw_len: usize) -> Option<ChunkLayout> {
        let layout = ChunkLayout::new(self.shape, self.order, float, raw_len).ok()?;
        (layout.tokens == self.chunk_tokens).then_some(layout)
    }
}

impl Stage for CacheGenStage {
    fn id(&self) -> StageId {
        StageId::CACHEGEN
    }

    fn kind(&self) -> StageKind {
        StageKind::Typed
    }

    fn bound(&self, raw_len: usize) -> Result<usize, Error> {
        Ok(longest(raw_len))
    }

    fn encode(
        &self,
        chunk: &Chunk<'_>,
        raw: &[&[u8]],
        out: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<Option<usize>, Error> {
        let raw_len = total_len(raw);
        let declared = chunk.declared_dtype.and_then(|dtype| FloatType::try_from(dtype).ok());
        let layout = declared.and_then(|float| Some((float, self.layout(float, raw_len)?)));
        let Some((float, layout)) = layout else { return Ok(None) };
        let space = out.len();
        let Some(out) = out.get_mut(..longest(raw_len)) else {
            let why = format!("a buffer of {space} bytes for {raw_len} raw ones");
            return Err(Error::invalid(why));
        };
        let raw = gather(raw, &mut scratch.spare);
        let decoded = grow(&mut scratch.decoded, raw_len);
        let encoded =
            for_float_type!(float, encode_and_quantize(raw, &layout, &self.bins, decoded));
        // LMCache's decoder has no space for streams that hardly become smaller.
        let Ok(encoded) = encoded else { return Ok(None) };
        if ![&encoded.max_key, &encoded.max_value].iter().all(|maxima| are_finite(maxima, float)) {
            return Ok(None);
        }
        let about = Description { layout: &layout, float, bins: &self.bins };
        Ok(write(&about, &encoded, out))
    }

    fn raw_len(&self, stored: &[u8]) -> Result<usize, Error> {
        Ok(FrameHeader::read(stored, self.id(), VERSION)?.0.raw_len)
    }

    fn decode(
        &self,
        _: &Chunk<'_>,
        stored: &[u8],
        raw: &mut [&mut [u8]],
        scratch: &mut Scratch,
    ) -> Result<(), Error> {
        // Before memory is taken for pieces.
        FrameHeader::read(stored, self.id(), VERSION)?.0.expect_raw_len(total_len_mut(raw))?;
        scatter(raw, &mut scratch.spare, |raw| decode(stored, raw))
    }
}
