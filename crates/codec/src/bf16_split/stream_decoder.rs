//! Decodes the four streams of a segment side by side: while a processor waits for the table's
//! answer for one stream, it works on the others.

use super::code_lengths::LENGTH_MAX;
use super::decode_table::{DecodeTable, ENTRIES, Entry, SYMBOLS_MAX};

/// The streams of one segment.
pub(super) const STREAMS: usize = 4;

/// How far beyond its symbols a run may be written.
pub(super) const SLACK: usize = 8;

/// Table look-ups for each load of the bits: 4 of 12 bits are fewer than 57.
const LOOK_UPS: usize = 4;

/// What the look-ups of one load may write: 31 is the mask of offsets in it, which are at most 24.
const WINDOW: usize = 31 + 8;

const _: () = assert!(LOOK_UPS * SYMBOLS_MAX <= 31);

/// One stream and the run of symbols that it becomes.
#[derive(Debug, Default)]
pub(super) struct Stream<'a> {
    /// The next bit of the data.
    bit: usize,
    /// The bit after the stream's last byte.
    bit_end: usize,
    /// The run, and `SLACK` bytes.
    run: &'a mut [u8],
    /// The symbols that are decoded.
    at: usize,
}

/// The symbols of one load of bits.
struct Step<'a> {
    /// The bits that are left of the load, from the highest one on.
    bits: u64,
    window: &'a mut [u8; WINDOW],
    /// How many bits and symbols are decoded.
    sum: Entry,
}

impl Step<'_> {
    #[inline(always)]
    fn look_up(&mut self, table: &[Entry; ENTRIES]) {
        let entry = table[(self.bits >> (64 - LENGTH_MAX)) as usize];
        let at = self.sum.count() & 31;
        self.window[at..at + 8].copy_from_slice(&entry.symbols());
        self.sum = self.sum.plus(entry);
        self.bits <<= entry.bits() & 63;
    }
}

impl<'a> Stream<'a> {
    /// The stream in these bytes of the data, for a `run` that has `SLACK` bytes more than symbols.
    pub(super) fn new(bytes: std::ops::Range<usize>, run: &'a mut [u8]) -> Self {
        Stream { bit: 8 * bytes.start, bit_end: 8 * bytes.end, run, at: 0 }
    }

    /// The next 57 bits or more from the highest bit on, zeros after the end of `data`.
    #[inline(always)]
    fn load(&self, data: &[u8]) -> u64 {
        let from = self.bit >> 3;
        let word = match data.get(from..from + 8) {
            Some(bytes) => u64::from_be_bytes(bytes.try_into().unwrap_or_default()),
            None => load_at_end(data, from),
        };
        word << (self.bit & 7)
    }

    /// Starts to decode the whole symbols of one load, where they all fit the run.
    #[inline(always)]
    fn start(&mut self, data: &[u8]) -> Option<Step<'_>> {
        let bits = self.load(data);
        let window = self.run.get_mut(self.at..self.at + WINDOW)?.first_chunk_mut()?;
        Some(Step { bits, window, sum: Entry::default() })
    }

    #[inline(always)]
    fn advance(&mut self, sum: Entry) {
        self.at += sum.count();
        self.bit += sum.bits();
    }

    /// Decodes what is left, and checks that the stream ends with it.
    fn finish(&mut self, table: &DecodeTable, data: &[u8]) -> bool {
        while let Some(mut step) = self.start(data) {
            (0..LOOK_UPS).for_each(|_| step.look_up(table.entries()));
            let sum = step.sum;
            self.advance(sum);
        }
        let symbols = self.run.len() - SLACK;
        while self.at < symbols {
            let index = self.load(data) >> (64 - LENGTH_MAX);
            let symbol = table.entries()[index as usize].symbols()[0];
            self.run[self.at] = symbol;
            self.at += 1;
            self.bit += table.length(symbol);
        }
        // Less than a byte is left, and it is padded with zeros.
        let left = self.bit_end.wrapping_sub(self.bit);
        left == 0 || (left < 8 && self.load(data) >> (64 - left) == 0)
    }
}

#[cold]
fn load_at_end(data: &[u8], from: usize) -> u64 {
    let mut bytes = [0; 8];
    let left = data.get(from..).unwrap_or_default();
    let len = left.len().min(8);
    bytes[..len].copy_from_slice(&left[..len]);
    u64::from_be_bytes(bytes)
}

/// Decodes all streams into their runs. Answers whether each ended where its symbols did.
pub(super) fn decode(table: &DecodeTable, data: &[u8], streams: [Stream<'_>; STREAMS]) -> bool {
    let entries = table.entries();
    // Variables and no arrays: the compiler keeps them in registers.
    let [mut a, mut b, mut c, mut d] = streams;
    while let (Some(mut in_a), Some(mut in_b), Some(mut in_c), Some(mut in_d)) =
        (a.start(data), b.start(data), c.start(data), d.start(data))
    {
        for _ in 0..LOOK_UPS {
            in_a.look_up(entries);
            in_b.look_up(entries);
            in_c.look_up(entries);
            in_d.look_up(entries);
        }
        let sums = [in_a.sum, in_b.sum, in_c.sum, in_d.sum];
        a.advance(sums[0]);
        b.advance(sums[1]);
        c.advance(sums[2]);
        d.advance(sums[3]);
    }
    [a, b, c, d].iter_mut().all(|stream| stream.finish(table, data))
}
