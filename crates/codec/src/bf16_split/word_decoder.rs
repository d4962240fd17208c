//! Decodes blocks of words. Each number of 12 bits is looked up for itself, so a processor looks up
//! as many at a time as it can.

use super::element_planes::RUN_SYMBOLS;
use super::fp8_planes::{Fp8, SYMBOLS_MAX};
use super::word_list::{BUDGET, Costs, NUMBER_BITS, WORDS_MAX, WordList, packed_len, runs};

/// The words that are decoded at once: they fill whole bytes.
const GROUP: usize = 4;

/// The bytes of a group.
const GROUP_LEN: usize = GROUP * NUMBER_BITS / 8;

/// What a group could write if its words had as many symbols as a byte can say. They have fewer, but
/// this much memory saves the check.
const WINDOW: usize = GROUP * u8::MAX as usize + size_of::<Entry>();

/// Memory for the symbols of one run, and for what words write after them.
type Run = [u8; RUN_SYMBOLS + WINDOW];

/// A word: its symbols, the first one lowest, as they stand in elements, and how many they are in
/// the highest byte. A decoder writes all of it: what comes after the symbols is written over.
#[derive(Clone, Copy, Debug, Default)]
struct Entry(u64);

impl Entry {
    #[inline(always)]
    fn count(self) -> usize {
        (self.0 >> 56) as usize
    }

    /// This word, and one more symbol.
    fn then(self, symbol: u64) -> Self {
        Entry((self.0 | symbol << (8 * self.count())) + (1 << 56))
    }
}

/// What blocks of words decode with.
#[derive(Debug)]
pub(super) struct WordDecoder {
    entries: Box<[Entry; WORDS_MAX]>,
    run: Box<Run>,
}

/// A symbol as it stands in elements, and its cost.
#[derive(Clone, Copy, Default)]
struct Letter {
    symbol: u64,
    cost: usize,
}

impl WordDecoder {
    pub(super) fn new() -> Self {
        WordDecoder {
            entries: Box::new([Entry(0); WORDS_MAX]),
            run: Box::new([0; size_of::<Run>()]),
        }
    }

    pub(super) fn buffer_bytes(&self) -> usize {
        size_of_val(&*self.entries) + size_of_val(&*self.run)
    }

    /// Decodes a payload into all of `raw`. Nothing where it is none of that length.
    pub(super) fn decode(&mut self, fp8: Fp8, payload: &[u8], raw: &mut [u8]) -> Option<()> {
        let (rest, coded) = payload.split_at_checked(fp8.rest_len(raw.len()))?;
        let (stored_costs, coded) = coded.split_at_checked(fp8.symbols())?;
        let mut costs = Costs::default();
        costs[..fp8.symbols()].copy_from_slice(stored_costs);
        self.fill(fp8, &WordList::new(&costs)?);
        let (sizes, packed) = coded.split_at_checked(2 * runs(raw.len()).count())?;
        let (mut rest, mut packed) = (rest, packed);
        for (raw, size) in raw.chunks_mut(RUN_SYMBOLS).zip(sizes.as_chunks().0) {
            let words = usize::from(u16::from_le_bytes(*size));
            let (here, bits);
            (here, packed) = packed.split_at_checked(packed_len(words))?;
            (bits, rest) = rest.split_at(fp8.rest_len(raw.len()));
            self.decode_run(here, words, raw.len())?;
            fp8.merge(&self.run[..raw.len()], bits, raw);
        }
        packed.is_empty().then_some(())
    }

    /// The entries of all words.
    fn fill(&mut self, fp8: Fp8, words: &WordList) {
        let mut letters = [Letter::default(); SYMBOLS_MAX];
        let alphabet = words.alphabet();
        for (letter, symbol) in letters.iter_mut().zip(alphabet) {
            let cost = words.cost((*symbol).into());
            *letter = Letter { symbol: u64::from(*symbol) << fp8.mantissa_bits(), cost };
        }
        let mut entries = self.entries.iter_mut();
        add_words(&letters[..alphabet.len()], Entry(0), BUDGET, &mut entries);
        // No word has these numbers. They decode to nothing, which is noticed at the end of a run.
        entries.for_each(|entry| *entry = Entry(0));
    }

    /// Decodes the words of one run. Nothing where they have more or less than `len` symbols.
    fn decode_run(&mut self, packed: &[u8], words: usize, len: usize) -> Option<()> {
        let (groups, tail) = packed.as_chunks::<GROUP_LEN>();
        let mut at = 0;
        for [a, b, c, d, e, f] in groups {
            let low = u32::from_le_bytes([*a, *b, *c, *d]);
            let numbers = u64::from(low) | u64::from(u16::from_le_bytes([*e, *f])) << 32;
            let window = self.run.get_mut(at..at + WINDOW)?.first_chunk_mut::<WINDOW>()?;
            let mut to = 0;
            for nth in 0..GROUP {
                let number = (numbers >> (nth * NUMBER_BITS)) as usize % WORDS_MAX;
                let entry = self.entries[number];
                window[to..to + size_of::<Entry>()].copy_from_slice(&entry.0.to_le_bytes());
                to += entry.count();
            }
            at += to;
        }
        let mut last = [0; 8];
        last[..tail.len()].copy_from_slice(tail);
        let mut numbers = u64::from_le_bytes(last);
        for _ in groups.len() * GROUP..words {
            let entry = self.entries[numbers as usize % WORDS_MAX];
            let window = self.run.get_mut(at..at + size_of::<Entry>())?;
            window.copy_from_slice(&entry.0.to_le_bytes());
            at += entry.count();
            numbers >>= NUMBER_BITS;
        }
        // Zeros fill the last byte.
        (at == len && numbers == 0).then_some(())
    }
}

/// Writes the entries of all words that go on from `word` with what is left of its budget. They are
/// no more than a list may have, and no deeper than a word is long.
fn add_words(
    letters: &[Letter],
    word: Entry,
    budget: usize,
    entries: &mut std::slice::IterMut<'_, Entry>,
) {
    for letter in letters {
        let Some(left) = budget.checked_sub(letter.cost) else { break };
        let longer = word.then(letter.symbol);
        let Some(entry) = entries.next() else { break };
        *entry = longer;
        if left >= letters[0].cost {
            add_words(letters, longer, left, entries);
        }
    }
}
