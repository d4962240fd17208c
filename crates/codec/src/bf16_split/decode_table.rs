//! The decoder's table: for every value of the next bits, all whole symbols in them at once.

use std::fmt;

use super::code_lengths::{Code, CodeLengths, LENGTH_MAX};

/// The most symbols of one entry.
const SYMBOLS_MAX: usize = 6;

/// The entries of a table.
pub(super) const ENTRIES: usize = 1 << LENGTH_MAX;

/// The bits of an entry that are symbols.
const SYMBOL_BITS: usize = 8 * SYMBOLS_MAX;

/// The whole symbols in the next bits.
///
/// The symbols, the first one lowest, and from bit 48 on the [`Header`]. A decoder writes all of it
/// to the run: what comes after the symbols is written over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Entry(u64);

/// How many bits (bits 0 to 7) and how many symbols (from bit 8 on).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Header(u32);

impl Header {
    #[inline(always)]
    pub(super) fn bits(self) -> usize {
        (self.0 & 0xff) as usize
    }

    #[inline(always)]
    pub(super) fn count(self) -> usize {
        (self.0 >> 8 & 0xff) as usize
    }

    /// The sums of both, for a few entries.
    #[inline(always)]
    pub(super) fn plus(self, other: Header) -> Self {
        Header(self.0.wrapping_add(other.0))
    }
}

impl Entry {
    #[inline(always)]
    pub(super) fn header(self) -> Header {
        Header((self.0 >> SYMBOL_BITS) as u32)
    }

    /// The symbols, and then bytes without a meaning.
    #[inline(always)]
    pub(super) fn symbols(self) -> [u8; 8] {
        self.0.to_le_bytes()
    }

    /// `code`, and then this entry's symbols.
    fn after(self, code: Code) -> Self {
        let header = (self.0 >> SYMBOL_BITS) + (1 << 8) + u64::from(code.length);
        let symbols = self.0 << 8 & ((1 << SYMBOL_BITS) - 1);
        Entry(header << SYMBOL_BITS | symbols | u64::from(code.symbol))
    }

    /// Without the last symbol, if there are as many as fit.
    fn with_space(self, lengths: &CodeLengths) -> Self {
        if self.header().count() < SYMBOLS_MAX {
            return self;
        }
        let last = self.symbols()[SYMBOLS_MAX - 1];
        let length = u64::from(lengths.0[usize::from(last)]);
        let without = self.0 & !(0xff << (SYMBOL_BITS - 8));
        Entry(without - ((1 << 8 | length) << SYMBOL_BITS))
    }
}

/// One entry for each value of the next `LENGTH_MAX` bits.
pub(super) struct DecodeTable {
    /// The entries for the next `n` bits are those from `2^n` to `2^(n + 1)`: longer ones are made
    /// from shorter ones.
    entries: Box<[Entry; 2 * ENTRIES]>,
    lengths: CodeLengths,
    /// The most symbols that an entry has.
    symbols_max: usize,
}

impl fmt::Debug for DecodeTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DecodeTable").finish_non_exhaustive()
    }
}

impl DecodeTable {
    pub(super) fn new() -> Self {
        DecodeTable {
            entries: Box::new([Entry(0); 2 * ENTRIES]),
            lengths: CodeLengths([0; 256]),
            symbols_max: SYMBOLS_MAX,
        }
    }

    /// The bytes of the entries.
    pub(super) fn buffer_bytes(&self) -> usize {
        size_of_val(&*self.entries)
    }

    /// Makes the table of another code, which must be complete (`CodeLengths::unpack`).
    pub(super) fn fill(&mut self, lengths: CodeLengths) {
        let order = lengths.in_code_order();
        let shortest = order.as_slice().first().map_or(1, |code| usize::from(code.length));
        self.symbols_max = (LENGTH_MAX / shortest).min(SYMBOLS_MAX);
        let crowded = shortest == 1;
        self.entries[..2].fill(Entry(0));
        for bits in 1..=LENGTH_MAX {
            let (shorter, entries) = self.entries.split_at_mut(1 << bits);
            let mut entries = &mut entries[..1 << bits];
            for code in order.as_slice() {
                let Some(left) = bits.checked_sub(code.length.into()) else { break };
                let after = &shorter[1 << left..2 << left];
                let (here, next) = std::mem::take(&mut entries).split_at_mut(1 << left);
                for (entry, after) in here.iter_mut().zip(after) {
                    let after = if crowded { after.with_space(&lengths) } else { *after };
                    *entry = after.after(*code);
                }
                entries = next;
            }
            // No symbol is short enough for these.
            entries.fill(Entry(0));
        }
        self.lengths = lengths;
    }

    /// The entries for the next `LENGTH_MAX` bits. None is empty.
    pub(super) fn entries(&self) -> &[Entry; ENTRIES] {
        self.entries.last_chunk().expect("the second half of the entries")
    }

    /// The most symbols that an entry has, at least one.
    #[inline(always)]
    pub(super) fn symbols_max(&self) -> usize {
        self.symbols_max
    }

    /// The length of the code of `symbol`.
    pub(super) fn length(&self, symbol: u8) -> usize {
        self.lengths.0[usize::from(symbol)].into()
    }
}
