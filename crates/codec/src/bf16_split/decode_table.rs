//! The decoder's table: for every value of the next bits, all whole symbols in them at once.

use std::fmt;

use super::code_lengths::{Code, CodeLengths, LENGTH_MAX};

/// The most symbols of one entry.
pub(super) const SYMBOLS_MAX: usize = 6;

/// The entries of a table.
pub(super) const ENTRIES: usize = 1 << LENGTH_MAX;

/// The whole symbols in the next bits.
///
/// Bits 0 to 7: how many bits the symbols take. Bits 8 to 15: how many symbols. From bit 16 on: the
/// symbols, the first one lowest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Entry(u64);

impl Entry {
    pub(super) fn bits(self) -> usize {
        (self.0 & 0xff) as usize
    }

    pub(super) fn count(self) -> usize {
        (self.0 >> 8 & 0xff) as usize
    }

    /// The symbols, and zeros after them.
    pub(super) fn symbols(self) -> [u8; 8] {
        (self.0 >> 16).to_le_bytes()
    }

    /// The sums of the bits and the counts, for a few entries; symbols mean nothing in it.
    #[inline(always)]
    pub(super) fn plus(self, other: Entry) -> Self {
        Entry(self.0.wrapping_add(other.0))
    }

    /// `code`, and then this entry's symbols.
    fn after(self, code: Code) -> Self {
        let header = (self.0 & 0xffff) + (1 << 8) + u64::from(code.length);
        Entry((self.0 & !0xffff) << 8 | u64::from(code.symbol) << 16 | header)
    }

    /// Without the last symbol, if there are as many as fit.
    fn with_space(self, lengths: &CodeLengths) -> Self {
        if self.count() < SYMBOLS_MAX {
            return self;
        }
        let last = self.0 >> 56;
        let length = u64::from(lengths.0[last as usize]);
        Entry((self.0 & !(0xff << 56)) - (1 << 8) - length)
    }
}

/// One entry for each value of the next `LENGTH_MAX` bits.
pub(super) struct DecodeTable {
    /// The entries for the next `n` bits are those from `2^n` to `2^(n + 1)`: longer ones are made
    /// from shorter ones.
    entries: Box<[Entry; 2 * ENTRIES]>,
    lengths: CodeLengths,
}

impl fmt::Debug for DecodeTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DecodeTable").finish_non_exhaustive()
    }
}

impl DecodeTable {
    pub(super) fn new() -> Self {
        DecodeTable { entries: Box::new([Entry(0); 2 * ENTRIES]), lengths: CodeLengths([0; 256]) }
    }

    /// The bytes of the entries.
    pub(super) fn buffer_bytes(&self) -> usize {
        size_of_val(&*self.entries)
    }

    /// Makes the table of another code, which must be complete (`CodeLengths::unpack`).
    pub(super) fn fill(&mut self, lengths: CodeLengths) {
        let order = lengths.in_code_order();
        let crowded = order.as_slice().first().is_some_and(|code| code.length == 1);
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

    /// The length of the code of `symbol`.
    pub(super) fn length(&self, symbol: u8) -> usize {
        self.lengths.0[usize::from(symbol)].into()
    }
}
