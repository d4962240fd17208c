//! kvtier's own container of an encoded chunk: a frame that holds LMCache's maxima, CDFs and
//! streams, smaller and simpler to read than a pickle. docs/ENCODINGS.md has it byte by byte.

use super::Bins;
use super::cdf::{TOTAL_MAX, counts_of_cdf, write_cdf_of_counts};
use super::container::{Block, Container, ContainerShape};
use super::decode::decode_chunk;
use super::encode::Encoded;
use super::layout::{ChunkLayout, KeysOrValues, KvOrder, KvShape};
use super::stream_encoder::BLOCK_TOKENS;
use crate::float_type::for_float_type;
use crate::frame_header::{FrameHeader, HEADER_LEN};
use crate::{Error, FloatType, StageId};

pub(super) const VERSION: u8 = 1;

/// A chunk's tables are at most this many times as long as its raw bytes: so little space bounds
/// the memory of a decoder.
const TABLES_MAX: usize = 4;

/// The most tokens of a chunk.
pub(super) const TOKENS_MAX: usize = TOTAL_MAX;

/// What a frame states of its chunk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Description<'a> {
    pub(super) layout: &'a ChunkLayout,
    pub(super) float: FloatType,
    pub(super) bins: &'a Bins,
}

impl Description<'_> {
    fn float_number(&self) -> u8 {
        match self.float {
            FloatType::Bf16 => 1,
            FloatType::Fp16 => 2,
            FloatType::Fp32 => 3,
        }
    }

    fn order_number(&self) -> u8 {
        match self.layout.order {
            KvOrder::KeysThenValues => 0,
            KvOrder::ByLayer => 1,
        }
    }

    fn raw_len(&self) -> usize {
        2 * self.layout.shape.layers * self.layout.tokens * self.layout.row_bytes()
    }

    /// The counts of each channel that are stored, by plane: all but the last, which is what is
    /// left of the tokens.
    fn stored_counts(&self) -> impl Iterator<Item = usize> + '_ {
        self.layout.planes().map(|(which, layer)| {
            let bins = match which {
                KeysOrValues::Keys => self.bins.key()[layer],
                KeysOrValues::Values => self.bins.value()[layer],
            };
            // The greatest symbol is twice the one of zero.
            2 * (usize::from(bins) / 2 - 1)
        })
    }

    fn entries(&self) -> usize {
        self.bins.most() + 1
    }

    fn channels(&self) -> usize {
        self.layout.shape.channels()
    }

    /// The bytes of all CDFs, unless they are too long for the chunk.
    fn tables_len(&self) -> Option<usize> {
        let each = 2 * self.layout.shape.layers * self.channels();
        let len = each.checked_mul(2 * self.entries())?;
        (len <= self.raw_len().checked_mul(TABLES_MAX)?).then_some(len)
    }
}

/// Writes the frame of a chunk to the front of `out` and answers its bytes; nothing where `out` is
/// too short, or the tables too long for the chunk.
pub(super) fn write(about: &Description<'_>, encoded: &Encoded, out: &mut [u8]) -> Option<usize> {
    about.tables_len()?;
    let raw_len = about.raw_len();
    let parameter = about.float_number();
    let header = FrameHeader { parameter, ..FrameHeader::new(StageId::CACHEGEN, VERSION, raw_len) };
    let mut writer = Writer { out, at: 0 };
    writer.put(&header.to_bytes())?;
    writer.put(&(about.layout.shape.layers as u32).to_le_bytes())?;
    writer.put(&(about.channels() as u32).to_le_bytes())?;
    writer.put(&[about.order_number(), 0, 0, 0])?;
    for part in [about.bins.key(), about.bins.value(), &encoded.max_key, &encoded.max_value] {
        writer.put(part)?;
    }
    write_counts(about, encoded, &mut writer)?;
    for block in &encoded.blocks {
        for length in block.lengths.as_chunks().0 {
            // 1 to 256.
            writer.put(&[(u32::from_le_bytes(*length) - 1) as u8])?;
        }
    }
    for block in &encoded.blocks {
        writer.put(&block.streams)?;
    }
    Some(writer.at)
}

fn write_counts(about: &Description<'_>, encoded: &Encoded, writer: &mut Writer<'_>) -> Option<()> {
    let tokens = about.layout.tokens as u64;
    let mut cdf = vec![0; about.entries()];
    let mut cdfs = encoded.cdf.chunks_exact(2 * about.entries());
    for counts in about.stored_counts() {
        for stored in cdfs.by_ref().take(about.channels()) {
            for (entry, bytes) in cdf.iter_mut().zip(stored.as_chunks().0) {
                *entry = u16::from_le_bytes(*bytes);
            }
            for count in counts_of_cdf(&cdf, counts, tokens) {
                writer.put_number(count)?;
            }
        }
    }
    Some(())
}

struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) -> Option<()> {
        self.out.get_mut(self.at..)?.get_mut(..bytes.len())?.copy_from_slice(bytes);
        self.at += bytes.len();
        Some(())
    }

    /// Seven bits a byte, the lowest first; the high bit says that more follow.
    fn put_number(&mut self, number: u32) -> Option<()> {
        let mut left = number;
        while left >= 0x80 {
            self.put(&[left as u8 | 0x80])?;
            left >>= 7;
        }
        self.put(&[left as u8])
    }
}

/// Decodes a frame into all of `raw`.
///
/// # Errors
/// `Corrupt`: no frame of a chunk of that length. `Unsupported`: another version.
pub(super) fn decode(stored: &[u8], raw: &mut [u8]) -> Result<(), Error> {
    let (header, payload) = FrameHeader::read(stored, StageId::CACHEGEN, VERSION)?;
    header.expect_raw_len(raw.len())?;
    let no_frame = || Error::corrupt(format!("no cachegen frame of {} bytes", raw.len()));
    let parts = Parts::read(&header, payload).ok_or_else(no_frame)?;
    let container = parts.container().ok_or_else(no_frame)?;
    for_float_type!(parts.float, decode_chunk(&container, &parts.layout, &parts.bins, raw))
}

/// The fields of a frame.
struct Parts<'a> {
    float: FloatType,
    layout: ChunkLayout,
    bins: Bins,
    max_key: &'a [u8],
    max_value: &'a [u8],
    /// As LMCache has them: 16 bits for each entry, and 32 for each length of a stream.
    cdf: Vec<u8>,
    lengths: Vec<u8>,
    streams: &'a [u8],
}

impl<'a> Parts<'a> {
    fn read(header: &FrameHeader, payload: &'a [u8]) -> Option<Self> {
        let float = match (header.parameter, header.key_id) {
            (1, 0) => FloatType::Bf16,
            (2, 0) => FloatType::Fp16,
            (3, 0) => FloatType::Fp32,
            _ => return None,
        };
        // No encoder keeps what is longer.
        if HEADER_LEN + payload.len() > longest(header.raw_len) {
            return None;
        }
        let mut reader = Reader { left: payload };
        let shape = KvShape { layers: reader.take_u32()?, heads: 1, head_size: reader.take_u32()? };
        let order = match reader.take(4)? {
            [0, 0, 0, 0] => KvOrder::KeysThenValues,
            [1, 0, 0, 0] => KvOrder::ByLayer,
            _ => return None,
        };
        shape.check().ok()?;
        let layout = ChunkLayout::new(shape, order, float, header.raw_len).ok()?;
        if layout.tokens > TOKENS_MAX {
            return None;
        }
        let bins = Bins::from_stored(reader.take(shape.layers)?, reader.take(shape.layers)?)?;
        let maxima_len = shape.layers.checked_mul(layout.tokens * float.bytes())?;
        let (max_key, max_value) = (reader.take(maxima_len)?, reader.take(maxima_len)?);
        let about = Description { layout: &layout, float, bins: &bins };
        let cdf = read_counts(&about, &mut reader)?;
        let channels = 2 * shape.layers * shape.channels();
        let blocks = layout.tokens.div_ceil(BLOCK_TOKENS);
        let lengths = reader.take(channels.checked_mul(blocks)?)?;
        let lengths = lengths.iter().flat_map(|less_one| (u32::from(*less_one) + 1).to_le_bytes());
        let lengths = lengths.collect();
        Some(Parts { float, bins, max_key, max_value, cdf, lengths, streams: reader.left, layout })
    }

    fn container(&self) -> Option<Container<'_>> {
        let shape = self.layout.shape;
        let channels = 2 * shape.layers * shape.channels();
        let (mut streams, mut tokens) = (self.streams, self.layout.tokens);
        let mut blocks = Vec::with_capacity(tokens.div_ceil(BLOCK_TOKENS));
        for lengths in self.lengths.chunks_exact(4 * channels) {
            let mut block = Block { tokens: tokens.min(BLOCK_TOKENS), streams, lengths };
            let len = (0..channels).map(|channel| block.length(channel)).sum();
            (block.streams, streams) = streams.split_at_checked(len)?;
            tokens -= block.tokens;
            blocks.push(block);
        }
        streams.is_empty().then_some(Container {
            shape: ContainerShape {
                layers: shape.layers,
                tokens: self.layout.tokens,
                heads: shape.heads,
                head_size: shape.head_size,
                dtype: self.float,
            },
            cdf_entries: self.bins.most() + 1,
            cdf: &self.cdf,
            max_type: self.float,
            max_key: self.max_key,
            max_value: self.max_value,
            blocks,
        })
    }
}

/// The longest frame of a chunk: half of it. What a lossy encoding saves less is not worth its loss.
pub(super) fn longest(raw_len: usize) -> usize {
    raw_len / 2
}

fn read_counts(about: &Description<'_>, reader: &mut Reader<'_>) -> Option<Vec<u8>> {
    let tokens = about.layout.tokens as u32;
    let mut tables = Vec::with_capacity(about.tables_len()?);
    let mut cdf = vec![0; about.entries()];
    for stored in about.stored_counts() {
        let mut counts = vec![0; stored + 1];
        for _ in 0..about.channels() {
            let mut left = tokens;
            for count in &mut counts[..stored] {
                *count = reader.take_number()?;
                left = left.checked_sub(*count)?;
            }
            counts[stored] = left;
            write_cdf_of_counts(&counts, tokens.into(), &mut cdf);
            tables.extend(cdf.iter().flat_map(|entry| entry.to_le_bytes()));
        }
    }
    Some(tables)
}

struct Reader<'a> {
    left: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let taken;
        (taken, self.left) = self.left.split_at_checked(len)?;
        Some(taken)
    }

    fn take_u32(&mut self) -> Option<usize> {
        let (bytes, left) = self.left.split_first_chunk()?;
        self.left = left;
        usize::try_from(u32::from_le_bytes(*bytes)).ok()
    }

    /// A number in as few bytes as possible, of at most 16 bits.
    fn take_number(&mut self) -> Option<u32> {
        let mut number = 0;
        for shift in [0, 7, 14] {
            let (byte, left) = self.left.split_first()?;
            self.left = left;
            number |= u32::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                let is_shortest = *byte != 0 || shift == 0;
                return is_shortest.then_some(number);
            }
        }
        None
    }
}
