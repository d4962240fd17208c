//! Encodes runs of symbols as bit streams, the first bit highest.

use super::code_lengths::{CodeLengths, LENGTH_MAX};

/// The span of symbols whose pairs have a table, and its bits.
const SPAN: usize = 1 << SPAN_BITS;
const SPAN_BITS: usize = 6;

/// The bits of eight bytes that are 0 if each byte is less than `SPAN`.
const ABOVE_SPAN: u64 = u64::from_le_bytes([!(SPAN as u8 - 1); 8]);

/// The code of each symbol, and of each pair of symbols where most are close to one another: the
/// code's bits, and its length from bit 24 on.
#[derive(Debug)]
pub(super) struct EncodeTable {
    singles: [u32; 256],
    pairs: Option<PairTable>,
}

/// The codes of two symbols in a sequence, both less than `SPAN` above the first symbol.
#[derive(Debug)]
struct PairTable {
    /// The first symbol, eight times.
    first: u64,
    codes: [u32; SPAN * SPAN],
}

impl EncodeTable {
    pub(super) fn new(lengths: &CodeLengths) -> Self {
        let mut singles = [0; 256];
        // The next code, at the length of the last one.
        let (mut next, mut last) = (0u32, 0);
        for code in lengths.in_code_order().as_slice() {
            next <<= code.length - last;
            last = code.length;
            singles[usize::from(code.symbol)] = next | u32::from(code.length) << 24;
            next += 1;
        }
        EncodeTable { pairs: PairTable::new(&singles), singles }
    }

    #[inline(always)]
    fn code(&self, symbol: u8) -> Bits {
        Bits::from_entry(self.singles[usize::from(symbol)])
    }

    #[inline(always)]
    fn codes(&self, [a, b, c, d]: [u8; 4]) -> Bits {
        self.code(a).then(self.code(b)).then(self.code(c).then(self.code(d)))
    }
}

impl PairTable {
    /// The table for the highest symbols, if nearly all symbols are among them.
    fn new(singles: &[u32; 256]) -> Option<Self> {
        let last = singles.iter().rposition(|code| *code != 0)?;
        let first = last.saturating_sub(SPAN - 1);
        // A code of n bits is that of one symbol in 2^n.
        let each = singles[first..=last].iter().filter(|code| **code != 0);
        let share: u32 = each.map(|code| 1 << (LENGTH_MAX as u32 - (code >> 24))).sum();
        if share < (1 << LENGTH_MAX) / 32 * 31 {
            return None;
        }
        let single = |nth: usize| singles.get(first + nth).copied().unwrap_or_default();
        let codes = std::array::from_fn(|pair| {
            let (one, two) = (single(pair % SPAN), single(pair / SPAN));
            let length = two >> 24;
            ((one & 0xff_ffff) << length | (two & 0xff_ffff)) | ((one >> 24) + length) << 24
        });
        Some(PairTable { first: u64::from_le_bytes([first as u8; 8]), codes })
    }

    /// The codes of eight symbols, unless one is not in the table.
    #[inline(always)]
    fn codes(&self, symbols: [u8; 8]) -> Option<[Bits; 2]> {
        // A symbol below the first becomes at least 64, and so does what it borrows from.
        let above = u64::from_le_bytes(symbols).wrapping_sub(self.first);
        if above & ABOVE_SPAN != 0 {
            return None;
        }
        // Both symbols of a pair come together, and four pairs are four indices of 16 bits.
        let even = above & 0x003f_003f_003f_003f;
        let indices = even | (above & !0x003f_003f_003f_003f) >> (8 - SPAN_BITS);
        let pair = |nth: usize| {
            let index = (indices >> (16 * nth)) as usize & (SPAN * SPAN - 1);
            Bits::from_entry(self.codes[index])
        };
        Some([pair(0).then(pair(1)), pair(2).then(pair(3))])
    }
}

/// At most 56 bits.
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
    let (groups, tail) = symbols.as_chunks::<8>();
    for group in groups {
        let from_pairs = table.pairs.as_ref().and_then(|pairs| pairs.codes(*group));
        let [first, second] = from_pairs.unwrap_or_else(|| {
            let [a, b, c, d, e, f, g, h] = *group;
            [table.codes([a, b, c, d]), table.codes([e, f, g, h])]
        });
        // Nearly always: codes of eight symbols have 56 bits or less.
        if first.count + second.count <= 56 {
            writer.write(first.then(second))?;
        } else {
            writer.write(first)?;
            writer.write(second)?;
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
