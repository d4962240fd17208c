//! Encodes runs of symbols as bit streams, the first bit highest.

use super::code_lengths::CodeLengths;

/// The span of symbols whose pairs have a table.
const SPAN: usize = 32;

/// The code of each symbol, and of each pair of symbols where they are close to one another: the
/// code's bits, and its length from bit 24 on.
#[derive(Debug)]
pub(super) struct EncodeTable {
    singles: [u32; 256],
    pairs: Option<PairTable>,
}

/// The codes of two symbols in a sequence, both less than `SPAN` above `first`.
#[derive(Debug)]
struct PairTable {
    first: u8,
    codes: [u32; SPAN * SPAN],
}

impl EncodeTable {
    pub(super) fn new(lengths: &CodeLengths) -> Self {
        let mut singles = [0; 256];
        // The next code, at the length of the last one.
        let (mut next, mut last) = (0u32, 0);
        let order = lengths.in_code_order();
        for code in order.as_slice() {
            next <<= code.length - last;
            last = code.length;
            singles[usize::from(code.symbol)] = next | u32::from(code.length) << 24;
            next += 1;
        }
        let symbols = order.as_slice().iter().map(|code| code.symbol);
        let (first, last) = (symbols.clone().min(), symbols.max());
        let pairs = first.filter(|first| last.is_some_and(|last| usize::from(last - first) < SPAN));
        EncodeTable { pairs: pairs.map(|first| PairTable::new(&singles, first)), singles }
    }

    #[inline(always)]
    fn code(&self, symbol: u8) -> Bits {
        Bits::from_entry(self.singles[usize::from(symbol)])
    }
}

impl PairTable {
    fn new(singles: &[u32; 256], first: u8) -> Self {
        let single = |nth: usize| singles[(usize::from(first) + nth) & 0xff];
        let codes = std::array::from_fn(|pair| {
            let (one, two) = (single(pair % SPAN), single(pair / SPAN));
            let (one_bits, length) = (one & 0xff_ffff, two >> 24);
            (one_bits << length | (two & 0xff_ffff)) | ((one >> 24) + length) << 24
        });
        PairTable { first, codes }
    }

    #[inline(always)]
    fn code(&self, one: u8, two: u8) -> Bits {
        let above = |symbol: u8| usize::from(symbol.wrapping_sub(self.first)) & (SPAN - 1);
        Bits::from_entry(self.codes[above(two) * SPAN + above(one)])
    }
}

/// At most 48 bits.
#[derive(Clone, Copy)]
struct Bits {
    value: u64,
    count: u32,
}

impl Bits {
    #[inline(always)]
    fn from_entry(entry: u32) -> Self {
        Bits { value: (entry & 0xff_ffff).into(), count: entry >> 24 }
    }

    fn then(self, next: Bits) -> Bits {
        Bits { value: self.value << next.count | next.value, count: self.count + next.count }
    }
}

/// Writes the stream of `symbols` to the front of `out`. Answers its bytes, or nothing where `out`
/// is too short: 8 bytes more than the stream always suffice.
pub(super) fn encode(table: &EncodeTable, symbols: &[u8], out: &mut [u8]) -> Option<usize> {
    let mut writer = BitWriter { out, at: 0, held: 0, count: 0 };
    let (groups, tail) = symbols.as_chunks::<4>();
    match &table.pairs {
        Some(pairs) => {
            for [a, b, c, d] in groups {
                writer.write(pairs.code(*a, *b).then(pairs.code(*c, *d)))?;
            }
        }
        None => {
            for group in groups {
                let [a, b, c, d] = group.map(|symbol| table.code(symbol));
                writer.write(a.then(b).then(c.then(d)))?;
            }
        }
    }
    for symbol in tail {
        writer.write(table.code(*symbol))?;
    }
    Some(writer.at + usize::from(writer.count > 0))
}

struct BitWriter<'a> {
    out: &'a mut [u8],
    /// The bytes that are complete.
    at: usize,
    /// The bits after them, from the highest on.
    held: u64,
    /// How many: less than 8.
    count: u32,
}

impl BitWriter<'_> {
    #[inline(always)]
    fn write(&mut self, bits: Bits) -> Option<()> {
        let count = self.count + bits.count;
        self.held |= bits.value << (64 - count);
        *self.out.get_mut(self.at..)?.first_chunk_mut()? = self.held.to_be_bytes();
        self.at += (count >> 3) as usize;
        self.held <<= count & !7;
        self.count = count & 7;
        Some(())
    }
}
