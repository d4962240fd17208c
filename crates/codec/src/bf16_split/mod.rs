//! `bf16-split`: lossless coding of floating-point elements. Exponents of KV data are few and
//! uneven, so they are coded; signs and mantissas are nearly random, so they are stored as they are.

mod block;
mod code_lengths;
mod decode_table;
mod element_planes;
mod fp8_planes;
mod sample;
pub(crate) mod split_scratch;
mod stream_decoder;
mod stream_encoder;
mod symbol_counts;
mod word_costs;
mod word_decoder;
mod word_encoder;
mod word_list;
mod word_steps;

use self::block::{BLOCK_SYMBOLS, BlockDecoder, FP8_BLOCK_ELEMENTS};
use self::element_planes::GRANULE;
use self::fp8_planes::Fp8;
use self::sample::GAIN_PARTS;
use self::split_scratch::SplitScratch;
use crate::frame_header::{FrameHeader, HEADER_LEN};
use crate::pieces::{PieceReader, PieceWriter, total_len, total_len_mut};
use crate::{Chunk, DecodeProgress, ElementType, Error, Scratch, Stage, StageId, StageKind};

/// The version of frames without words. Those of fp8 elements are read, and no more written.
const VERSION_CODES: u8 = 1;

/// The version of frames that may have words. Only fp8 elements become words.
const VERSION_WORDS: u8 = 2;

/// Lossless coding of bf16, fp16 and fp8 elements: exponents by a prefix code, or for fp8 by
/// numbers for sequences of them; the other bits as they are. It refuses chunks of which it would
/// save less than 5 %, and chunks without an [`ElementType`].
///
/// A frame has no checksum. A damaged one decodes to an error or to wrong bytes: the caller's digest
/// of the raw bytes, or an encryption around the frame, proves the result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bf16Split;

/// How a frame is laid out.
#[derive(Clone, Copy)]
struct Layout {
    element: ElementType,
    /// The type of elements in frames that may have words.
    fp8: Option<Fp8>,
}

impl Layout {
    /// The layout of frames that are written.
    fn newest(element: ElementType) -> Self {
        Layout { element, fp8: Fp8::from_element(element) }
    }

    /// The layout that a header names.
    fn from_header(header: &FrameHeader) -> Option<Self> {
        let element = ElementType::from_number(header.parameter)?;
        match header.version {
            VERSION_CODES => Some(Layout { element, fp8: None }),
            _ => Some(Self::newest(element)).filter(|layout| layout.fp8.is_some()),
        }
    }

    fn version(self) -> u8 {
        if self.fp8.is_some() { VERSION_WORDS } else { VERSION_CODES }
    }

    /// The lengths of the blocks of `raw_len` bytes, and then that of the bytes that are left over.
    fn parts(self, raw_len: usize) -> (impl Iterator<Item = usize>, usize) {
        let tail = raw_len % GRANULE;
        let whole = raw_len - tail;
        let block = match self.fp8 {
            Some(_) => FP8_BLOCK_ELEMENTS,
            None => BLOCK_SYMBOLS * self.element.bytes_per_symbol(),
        };
        let blocks = (0..whole.div_ceil(block)).map(move |nth| (whole - nth * block).min(block));
        (blocks, tail)
    }
}

impl Stage for Bf16Split {
    fn id(&self) -> StageId {
        StageId::BF16_SPLIT
    }

    fn kind(&self) -> StageKind {
        StageKind::Typed
    }

    fn bound(&self, raw_len: usize) -> Result<usize, Error> {
        // The smallest blocks have one raw byte for each symbol.
        let blocks = raw_len.div_ceil(BLOCK_SYMBOLS);
        let too_long = || Error::invalid(format!("{raw_len} bytes are too many"));
        raw_len.checked_add(HEADER_LEN + blocks * block::HEADER_LEN).ok_or_else(too_long)
    }

    fn encode(
        &self,
        chunk: &Chunk<'_>,
        raw: &[&[u8]],
        out: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<Option<usize>, Error> {
        let Some(element) = chunk.element_type else { return Ok(None) };
        let raw_len = total_len(raw);
        let limit = raw_len - raw_len.div_ceil(GAIN_PARTS);
        if out.len() < limit {
            let why = format!("a buffer of {} bytes for {raw_len} raw ones", out.len());
            return Err(Error::invalid(why));
        }
        if !sample::promises_gain(element, raw) {
            return Ok(None);
        }
        Ok(encode_frame(element, raw, &mut out[..limit], &mut scratch.split))
    }

    fn raw_len(&self, stored: &[u8]) -> Result<usize, Error> {
        Ok(FrameHeader::read(stored, self.id(), VERSION_WORDS)?.0.raw_len)
    }

    fn decode(
        &self,
        chunk: &Chunk<'_>,
        stored: &[u8],
        raw: &mut [&mut [u8]],
        scratch: &mut Scratch,
    ) -> Result<(), Error> {
        self.decode_rest(chunk, stored, raw, DecodeProgress::default(), scratch)
    }

    fn decode_arrived(
        &self,
        _: &Chunk<'_>,
        arrived: &[u8],
        raw: &mut [&mut [u8]],
        from: DecodeProgress,
        scratch: &mut Scratch,
    ) -> Result<DecodeProgress, Error> {
        let Some((header, payload)) = arrived.split_first_chunk::<HEADER_LEN>() else {
            return Ok(DecodeProgress { wanted: HEADER_LEN, ..from });
        };
        let header = FrameHeader::from_bytes(header, self.id(), VERSION_WORDS)?;
        let layout = checked_layout(&header, raw)?;
        let mut blocks = Blocks { layout, payload, done: from };
        blocks.decode(raw, true, &mut scratch.split).ok_or_else(|| no_frame(layout, raw))?;
        Ok(blocks.done)
    }

    fn decode_rest(
        &self,
        _: &Chunk<'_>,
        stored: &[u8],
        raw: &mut [&mut [u8]],
        from: DecodeProgress,
        scratch: &mut Scratch,
    ) -> Result<(), Error> {
        let (header, payload) = FrameHeader::read(stored, self.id(), VERSION_WORDS)?;
        let layout = checked_layout(&header, raw)?;
        let mut blocks = Blocks { layout, payload, done: from };
        let decoded = blocks.decode(raw, false, &mut scratch.split);
        decoded.and_then(|()| blocks.copy_tail(raw)).ok_or_else(|| no_frame(layout, raw))
    }
}

fn checked_layout(header: &FrameHeader, raw: &[&mut [u8]]) -> Result<Layout, Error> {
    header.expect_raw_len(total_len_mut(raw))?;
    Layout::from_header(header)
        .filter(|_| header.key_id == 0)
        .ok_or_else(|| Error::corrupt("a bf16-split frame of no known element type"))
}

fn no_frame(layout: Layout, raw: &[&mut [u8]]) -> Error {
    let (raw_len, element) = (total_len_mut(raw), layout.element);
    Error::corrupt(format!("no bf16-split frame of {raw_len} bytes of {element:?}"))
}

/// The frame's bytes, if they fit `out`.
fn encode_frame(
    element: ElementType,
    raw: &[&[u8]],
    out: &mut [u8],
    scratch: &mut SplitScratch,
) -> Option<usize> {
    let raw_len = total_len(raw);
    let layout = Layout::newest(element);
    let header = FrameHeader::new(StageId::BF16_SPLIT, layout.version(), raw_len);
    let header = FrameHeader { parameter: element.number(), ..header };
    *out.first_chunk_mut()? = header.to_bytes();
    let mut at = HEADER_LEN;
    let mut reader = PieceReader::new(raw);
    let (blocks, tail) = layout.parts(raw_len);
    for len in blocks {
        let raw = reader.take(len, &mut scratch.block);
        at += scratch.encoder.encode(element, raw, &mut out[at..])?;
    }
    let raw = reader.take(tail, &mut scratch.block);
    out[at..].get_mut(..tail)?.copy_from_slice(raw);
    Some(at + tail)
}

/// The blocks of a frame that is being decoded.
struct Blocks<'a> {
    layout: Layout,
    /// What comes after the header; not all of it may have arrived.
    payload: &'a [u8],
    /// What is decoded of it. Stored bytes count without the header.
    done: DecodeProgress,
}

impl Blocks<'_> {
    /// Decodes the blocks that are left, or only those that have arrived. Nothing where `payload` is
    /// not that of a frame with the length of `raw`.
    fn decode(
        &mut self,
        raw: &mut [&mut [u8]],
        only_arrived: bool,
        scratch: &mut SplitScratch,
    ) -> Option<()> {
        let Layout { element, fp8 } = self.layout;
        let (blocks, _) = self.layout.parts(total_len_mut(raw));
        let decoder = scratch.decoder.get_or_insert_with(BlockDecoder::new);
        let mut writer = PieceWriter::new(raw);
        writer.skip(self.done.raw);
        let mut raw_end = 0;
        for len in blocks {
            raw_end += len;
            if raw_end <= self.done.raw {
                continue;
            }
            let stored = self.payload.get(self.done.stored..)?;
            if only_arrived {
                let wanted = BlockDecoder::bytes_wanted(stored);
                self.done.wanted = wanted.saturating_add(HEADER_LEN + self.done.stored);
                if stored.len() < wanted {
                    return Some(());
                }
            }
            let mut left = stored;
            let block = &mut scratch.block;
            let decode = |raw: &mut [u8]| {
                left = decoder.decode(element, fp8, stored, raw).ok_or(())?;
                Ok::<_, ()>(())
            };
            writer.fill(len, block, decode).ok()?;
            self.done.stored = self.payload.len() - left.len();
            self.done.raw = raw_end;
        }
        self.done.wanted = usize::MAX;
        Some(())
    }

    /// Copies what comes after the blocks. Nothing where that is more or less than it must be.
    fn copy_tail(&self, raw: &mut [&mut [u8]]) -> Option<()> {
        let tail = self.payload.get(self.done.stored..)?;
        let mut left = total_len_mut(raw).checked_sub(self.done.raw)?;
        if tail.len() != left {
            return None;
        }
        // Fewer bytes than `GRANULE`, at the ends of the last pieces.
        for piece in raw.iter_mut().rev() {
            let here = left.min(piece.len());
            let at = piece.len() - here;
            piece[at..].copy_from_slice(&tail[left - here..left]);
            left -= here;
        }
        Some(())
    }
}
