//! One block of a frame: a header, and its symbols with a code of their own.
//!
//! | at | bytes | field |
//! |---|---|---|
//! | 0 | 1 | form: 0 raw, 1 constant, 2 coded, 3 words |
//! | 1 | 3 | 0 |
//! | 4 | 4 | bytes of the payload, little-endian |
//!
//! Payload, raw: the raw bytes. Constant: the rest bits, then the one symbol. Coded: the rest bits,
//! then the lengths of all 256 codes (4 bits each), then the length of each stream (2 bytes,
//! little-endian), then the streams. Words: see `word_encoder.rs`.

use super::code_lengths::{CodeLengths, PACKED_LEN};
use super::decode_table::DecodeTable;
use super::element_planes::RUN_SYMBOLS;
use super::fp8_planes::Fp8;
use super::stream_decoder::{self, Run, Runs, STREAMS, Stream};
use super::stream_encoder::{self, EncodeTable};
use super::symbol_counts::{self, Counts};
use super::word_decoder::WordDecoder;
use super::word_encoder::WordEncoder;
use crate::ElementType;
use crate::pieces::grow;

/// The symbols of a block: all but the last block of a frame have this many.
pub(super) const BLOCK_SYMBOLS: usize = 1 << 18;

/// The elements of a block of fp8 elements, which may be words.
pub(super) const FP8_BLOCK_ELEMENTS: usize = 1 << 19;

/// The symbols of a segment, which has `STREAMS` runs: what decoders keep in their nearest caches.
const SEGMENT_SYMBOLS: usize = STREAMS * RUN_SYMBOLS;

/// What a block is longer than its payload, which is never longer than the raw bytes.
pub(super) const HEADER_LEN: usize = 8;

/// A block that becomes longer than its sample promises by one byte in this many is counted whole.
const EXCESS_PARTS: usize = 32;

const RAW: u8 = 0;
const CONSTANT: u8 = 1;
const CODED: u8 = 2;
const WORDS: u8 = 3;

/// Working memory to encode blocks with.
#[derive(Debug, Default)]
pub(super) struct BlockEncoder {
    symbols: Vec<u8>,
    words: Option<WordEncoder>,
}

/// What one block decodes with.
#[derive(Debug)]
pub(super) struct BlockDecoder {
    table: DecodeTable,
    /// The runs of a segment.
    runs: Box<Runs>,
    words: WordDecoder,
}

/// The lengths of the runs of the segment with `symbols` symbols, a multiple of eight.
fn run_lens(symbols: usize) -> [usize; STREAMS] {
    let each = symbols.div_ceil(8 * STREAMS) * 8;
    std::array::from_fn(|nth| symbols.saturating_sub(nth * each).min(each))
}

/// The lengths of all runs of a block.
fn all_runs(symbols: usize) -> impl Iterator<Item = usize> {
    let segments = symbols.div_ceil(SEGMENT_SYMBOLS);
    (0..segments)
        .flat_map(move |nth| run_lens((symbols - nth * SEGMENT_SYMBOLS).min(SEGMENT_SYMBOLS)))
}

impl BlockEncoder {
    pub(super) fn buffer_bytes(&self) -> usize {
        self.symbols.capacity() + self.words.as_ref().map_or(0, WordEncoder::buffer_bytes)
    }

    /// Writes `raw` as a block to the front of `out` and answers its bytes; nothing where `out` is
    /// too short.
    pub(super) fn encode(
        &mut self,
        element: ElementType,
        raw: &[u8],
        out: &mut [u8],
    ) -> Option<usize> {
        let (header, payload) = out.split_first_chunk_mut::<HEADER_LEN>()?;
        let coded = match self.encode_words(element, raw, payload) {
            Some(len) => Some((WORDS, len)),
            None => encode_symbols(element, raw, &mut self.symbols, payload),
        };
        let (form, len) = match coded {
            // Coding gains nothing or does not fit.
            None => {
                payload.get_mut(..raw.len())?.copy_from_slice(raw);
                (RAW, raw.len())
            }
            Some(coded) => coded,
        };
        header[..4].copy_from_slice(&[form, 0, 0, 0]);
        header[4..].copy_from_slice(&(len as u32).to_le_bytes());
        Some(HEADER_LEN + len)
    }

    /// The bytes of a payload of words; nothing for elements that are not fp8, and where words gain
    /// too little.
    fn encode_words(
        &mut self,
        element: ElementType,
        raw: &[u8],
        payload: &mut [u8],
    ) -> Option<usize> {
        let fp8 = Fp8::from_element(element)?;
        self.words.get_or_insert_with(WordEncoder::new).encode(fp8, raw, payload)
    }
}

/// The form and the length of a payload that is shorter than `raw`.
fn encode_symbols(
    element: ElementType,
    raw: &[u8],
    symbols: &mut Vec<u8>,
    payload: &mut [u8],
) -> Option<(u8, usize)> {
    let count = raw.len() / element.bytes_per_symbol();
    let symbols = grow(symbols, count);
    let rest_len = element.rest_len(count);
    let (rest, after) = payload.split_at_mut_checked(rest_len)?;
    split_runs(element, raw, symbols, rest);
    symbols.first()?;
    let counts = symbol_counts::count_block(symbols);
    if counts.iter().filter(|count| **count > 0).count() == 1 {
        *after.first_mut()? = symbols[0];
        return Some((CONSTANT, rest_len + 1));
    }
    let limit = raw.len() - 1 - rest_len;
    let coding = Coding::new(&counts, symbols.len());
    let coded = coding.encode(symbols, after, limit);
    let is_sampled = counts.iter().sum::<u32>() as usize != symbols.len();
    let coded = match coded {
        // The sample was not like the block.
        None if is_sampled => coding_of_all(symbols).encode(symbols, after, limit),
        Some(len)
            if is_sampled && len > coding.expected_len + coding.expected_len / EXCESS_PARTS =>
        {
            coding_of_all(symbols).encode(symbols, after, limit)
        }
        coded => coded,
    };
    coded.map(|len| (CODED, rest_len + len))
}

fn coding_of_all(symbols: &[u8]) -> Coding {
    Coding::new(&symbol_counts::count(symbols), symbols.len())
}

/// A code for the symbols of a block.
struct Coding {
    lengths: CodeLengths,
    /// The bytes that the symbols become, if those that were counted are like all.
    expected_len: usize,
}

impl Coding {
    fn new(counts: &Counts, symbols: usize) -> Self {
        let lengths = CodeLengths::from_counts(counts);
        let counted: u32 = counts.iter().sum();
        let bits = lengths.total_bits(counts) * symbols as u64 / u64::from(counted);
        // Streams end with a whole byte and a length of two.
        let expected_len = bits as usize / 8 + 3 * all_runs(symbols).count() + PACKED_LEN;
        Coding { lengths, expected_len }
    }

    /// Writes the code, the lengths of the streams and the streams; answers their bytes. Nothing
    /// where they are more than `limit` or do not fit.
    fn encode(&self, symbols: &[u8], out: &mut [u8], limit: usize) -> Option<usize> {
        if self.expected_len > limit {
            return None;
        }
        let table = EncodeTable::new(&self.lengths);
        let (packed, out) = out.split_first_chunk_mut::<PACKED_LEN>()?;
        *packed = self.lengths.pack();
        let sizes_len = 2 * all_runs(symbols.len()).count();
        let (sizes, streams) = out.split_at_mut_checked(sizes_len)?;
        let (mut symbols, mut at) = (symbols, 0);
        for (len, size) in all_runs(symbols.len()).zip(sizes.as_chunks_mut().0) {
            let run;
            (run, symbols) = symbols.split_at(len);
            let bytes = stream_encoder::encode(&table, run, &mut streams[at..])?;
            *size = (bytes as u16).to_le_bytes();
            at += bytes;
        }
        Some(PACKED_LEN + sizes_len + at).filter(|len| *len <= limit)
    }
}

fn split_runs(element: ElementType, raw: &[u8], symbols: &mut [u8], rest: &mut [u8]) {
    let (mut raw, mut symbols, mut rest) = (raw, symbols, rest);
    for len in all_runs(symbols.len()) {
        let here;
        (here, raw) = raw.split_at(len * element.bytes_per_symbol());
        let (run, other_runs) = symbols.split_at_mut(len);
        let (bits, other_bits) = rest.split_at_mut(element.rest_len(len));
        element.split(here, run, bits);
        (symbols, rest) = (other_runs, other_bits);
    }
}

impl BlockDecoder {
    pub(super) fn new() -> Self {
        let runs = Box::new([[0; size_of::<Run>()]; STREAMS]);
        BlockDecoder { table: DecodeTable::new(), runs, words: WordDecoder::new() }
    }

    pub(super) fn buffer_bytes(&self) -> usize {
        self.table.buffer_bytes() + size_of::<Runs>() + self.words.buffer_bytes()
    }

    /// How many bytes must have arrived before the block at the front of `arrived` can be decoded,
    /// as far as they say so: its header, and then all of it.
    pub(super) fn bytes_wanted(arrived: &[u8]) -> usize {
        let Some(([.., a, b, c, d], _)) = arrived.split_first_chunk::<HEADER_LEN>() else {
            return HEADER_LEN;
        };
        HEADER_LEN.saturating_add(u32::from_le_bytes([*a, *b, *c, *d]) as usize)
    }

    /// Decodes the block at the front of `stored` into all of `raw`, and returns what comes after
    /// it. Nothing where it is no block of that length. `fp8` is the type of elements in frames that
    /// may have words.
    pub(super) fn decode<'a>(
        &mut self,
        element: ElementType,
        fp8: Option<Fp8>,
        stored: &'a [u8],
        raw: &mut [u8],
    ) -> Option<&'a [u8]> {
        let (header, stored) = stored.split_first_chunk::<HEADER_LEN>()?;
        let [form, 0, 0, 0, length @ ..] = *header else { return None };
        let length = u32::from_le_bytes(length) as usize;
        let (payload, after) = stored.split_at_checked(length)?;
        if form == RAW {
            if payload.len() != raw.len() {
                return None;
            }
            raw.copy_from_slice(payload);
            return Some(after);
        }
        if let (WORDS, Some(fp8)) = (form, fp8) {
            self.words.decode(fp8, payload, raw)?;
            return Some(after);
        }
        let count = raw.len() / element.bytes_per_symbol();
        let (rest, coded) = payload.split_at_checked(element.rest_len(count))?;
        match (form, coded) {
            (CONSTANT, [symbol]) => self.repeat(element, *symbol, rest, raw),
            (CODED, _) => self.decode_streams(element, rest, coded, raw)?,
            _ => return None,
        }
        Some(after)
    }

    fn repeat(&mut self, element: ElementType, symbol: u8, rest: &[u8], raw: &mut [u8]) {
        let (mut rest, mut raw) = (rest, raw);
        let run = &mut self.runs[0];
        run.fill(symbol);
        for len in all_runs(raw.len() / element.bytes_per_symbol()) {
            let bits;
            (bits, rest) = rest.split_at(element.rest_len(len));
            let (here, next) = raw.split_at_mut(len * element.bytes_per_symbol());
            element.merge(&run[..len], bits, here);
            raw = next;
        }
    }

    fn decode_streams(
        &mut self,
        element: ElementType,
        rest: &[u8],
        coded: &[u8],
        raw: &mut [u8],
    ) -> Option<()> {
        let (packed, coded) = coded.split_first_chunk::<PACKED_LEN>()?;
        self.table.fill(CodeLengths::unpack(packed)?);
        let count = raw.len() / element.bytes_per_symbol();
        let (sizes, data) = coded.split_at_checked(2 * all_runs(count).count())?;
        let sizes = sizes.as_chunks::<2>().0.iter().map(|size| u16::from_le_bytes(*size));
        if sizes.clone().map(usize::from).sum::<usize>() != data.len() {
            return None;
        }
        let mut sizes = sizes.map(usize::from);
        let (mut rest, mut at) = (rest, 0);
        for raw in raw.chunks_mut(SEGMENT_SYMBOLS * element.bytes_per_symbol()) {
            let lens = run_lens(raw.len() / element.bytes_per_symbol());
            let streams = lens.map(|len| {
                let from = at;
                at += sizes.next().unwrap_or_default();
                Stream::new(from..at, len)
            });
            if !stream_decoder::decode(&self.table, data, streams, &mut self.runs) {
                return None;
            }
            rest = merge_runs(element, &self.runs, lens, rest, raw);
        }
        Some(())
    }
}

/// Puts a segment together and returns the rest bits of the next ones.
fn merge_runs<'a>(
    element: ElementType,
    runs: &Runs,
    lens: [usize; STREAMS],
    rest: &'a [u8],
    raw: &mut [u8],
) -> &'a [u8] {
    let (mut rest, mut raw) = (rest, raw);
    for (run, len) in runs.iter().zip(lens) {
        let bits;
        (bits, rest) = rest.split_at(element.rest_len(len));
        let (here, next) = raw.split_at_mut(len * element.bytes_per_symbol());
        element.merge(&run[..len], bits, here);
        raw = next;
    }
    rest
}
