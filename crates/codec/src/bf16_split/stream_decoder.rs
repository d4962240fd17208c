//! Decodes the four streams of a segment side by side: while a processor waits for the table's
//! answer for one stream, it works on the others.

use super::code_lengths::LENGTH_MAX;
use super::decode_table::{DecodeTable, ENTRIES, Entry, Header};
use super::element_planes::RUN_SYMBOLS;

/// The streams of one segment.
pub(super) const STREAMS: usize = 4;

/// Table look-ups for each load of the bits: 4 of 12 bits are fewer than 57.
const LOOK_UPS: usize = 4;

/// What the look-ups of one load could write if their symbols were as many as a byte can say. They
/// are fewer; so much memory saves the check.
const WINDOW: usize = u8::MAX as usize + size_of::<Entry>();

/// Memory for the symbols of one run, and for what look-ups write after them.
pub(super) type Run = [u8; RUN_SYMBOLS + WINDOW];

/// Memory for the runs of one segment.
pub(super) type Runs = [Run; STREAMS];

/// One stream, and how far it is decoded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    /// The next bit of the data.
    bit: usize,
    /// The bit after the stream's last byte.
    bit_end: usize,
    /// The symbols that are decoded.
    at: usize,
    /// The symbols of the run.
    symbols: usize,
}

impl Stream {
    /// The stream in these bytes of the data, which becomes a run of `symbols` symbols.
    pub(super) fn new(bytes: std::ops::Range<usize>, symbols: usize) -> Self {
        debug_assert!(symbols <= RUN_SYMBOLS);
        Stream { bit: 8 * bytes.start, bit_end: 8 * bytes.end, at: 0, symbols }
    }

    /// The next 57 bits or more from the highest bit on; nothing near the end of `data`.
    #[inline(always)]
    fn load(&self, data: &[u8]) -> Option<u64> {
        let from = self.bit >> 3;
        let bytes = data.get(from..from + 8)?.first_chunk()?;
        Some(u64::from_be_bytes(*bytes) << (self.bit & 7))
    }

    /// The same, with zeros after the end of `data`.
    fn load_at_end(&self, data: &[u8]) -> u64 {
        self.load(data).unwrap_or_else(|| {
            let left = data.get(self.bit >> 3..).unwrap_or_default();
            let mut bytes = [0; 8];
            let len = left.len().min(8);
            bytes[..len].copy_from_slice(&left[..len]);
            u64::from_be_bytes(bytes) << (self.bit & 7)
        })
    }

    /// How many steps there are before the run's end, whatever their symbols.
    #[inline(always)]
    fn steps(&self, symbols_max: usize) -> usize {
        (self.symbols - self.at) / (LOOK_UPS * symbols_max)
    }

    /// Decodes the whole symbols of one load. Answers false near the end of `data`.
    #[inline(always)]
    fn step(&mut self, table: &[Entry; ENTRIES], data: &[u8], run: &mut Run) -> bool {
        let Some(bits) = self.load(data) else { return false };
        self.look_up::<LOOK_UPS>(table, bits, run);
        true
    }

    #[inline(always)]
    fn look_up<const TIMES: usize>(&mut self, table: &[Entry; ENTRIES], bits: u64, run: &mut Run) {
        let mut bits = bits;
        let run = &mut run[self.at % RUN_SYMBOLS..];
        let mut sum = Header::default();
        for _ in 0..TIMES {
            let entry = table[(bits >> (64 - LENGTH_MAX)) as usize];
            let at = sum.count();
            run[at..at + 8].copy_from_slice(&entry.symbols());
            sum = sum.plus(entry.header());
            bits <<= entry.header().bits() & 63;
        }
        self.at += sum.count();
        self.bit += sum.bits();
    }

    /// Decodes what is left, and checks that the stream ends with it.
    fn finish(&mut self, table: &DecodeTable, data: &[u8], run: &mut Run) -> bool {
        while self.steps(table.symbols_max()) > 0 {
            self.look_up::<LOOK_UPS>(table.entries(), self.load_at_end(data), run);
        }
        while self.at + table.symbols_max() <= self.symbols {
            self.look_up::<1>(table.entries(), self.load_at_end(data), run);
        }
        while self.at < self.symbols {
            let index = self.load_at_end(data) >> (64 - LENGTH_MAX);
            let symbol = table.entries()[index as usize].symbols()[0];
            run[self.at] = symbol;
            self.at += 1;
            self.bit += table.length(symbol);
        }
        // Less than a byte is left, and it is padded with zeros.
        let left = self.bit_end.wrapping_sub(self.bit);
        left == 0 || (left < 8 && self.load_at_end(data) >> (64 - left) == 0)
    }
}

/// Decodes all streams into their runs. Answers whether each ended where its symbols did.
pub(super) fn decode(
    table: &DecodeTable,
    data: &[u8],
    streams: [Stream; STREAMS],
    runs: &mut Runs,
) -> bool {
    let entries = table.entries();
    // Variables and no arrays: the compiler keeps them in registers.
    let [mut a, mut b, mut c, mut d] = streams;
    let [run_a, run_b, run_c, run_d] = &mut *runs;
    'data: loop {
        // As many as all streams have in any case: no step asks again.
        let steps = [&a, &b, &c, &d].map(|stream| stream.steps(table.symbols_max()));
        let steps = steps.into_iter().min().unwrap_or_default();
        if steps == 0 {
            break;
        }
        for _ in 0..steps {
            // One after the other, to need few registers: the processor does them side by side.
            let all = a.step(entries, data, run_a)
                && b.step(entries, data, run_b)
                && c.step(entries, data, run_c)
                && d.step(entries, data, run_d);
            if !all {
                break 'data;
            }
        }
    }
    let mut ends = [a, b, c, d].into_iter().zip(runs);
    ends.all(|(mut stream, run)| stream.finish(table, data, run))
}
