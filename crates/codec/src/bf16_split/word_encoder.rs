//! Encodes blocks of fp8 elements as words.
//!
//! A payload: the rest bits, the costs of all symbols (1 byte each), the number of words of each run
//! (2 bytes each), and then the words of each run, four in six bytes.

use super::code_lengths::PACKED_LEN;
use super::element_planes::RUN_SYMBOLS;
use super::fp8_planes::{Fp8, PAIR_SHIFT};
use super::sample::GAIN_PARTS;
use super::word_costs::{self, SymbolCounts};
use super::word_list::{WordList, packed_len, runs};
use super::word_steps::{LANES, Numbers, PAIRS, RUN_PAIRS, WordSteps, walk_runs};

/// Blocks of more than `SAMPLE_ALL` pairs are counted in part: the first `SAMPLE_PAIRS` of each
/// `SAMPLE_STRETCH`. A few stretches are no whole number of tokens, whatever these have of heads: the
/// same heads of all tokens are no sample.
const SAMPLE_PAIRS: usize = 64;
const SAMPLE_ALL: usize = 1 << 15;
const SAMPLE_STRETCH: usize = 456;

/// Words may be longer than the entropy allows by one byte in this many, and by the lengths of codes:
/// others become codes, which come closer to it.
const EXCESS_PARTS: u64 = 25;

/// Working memory of the encoder.
#[derive(Debug)]
pub(super) struct WordEncoder {
    /// The pairs of a block.
    pairs: Vec<u16>,
    counts: Box<[[u32; PAIRS]; 4]>,
    steps: WordSteps,
    numbers: Box<[Numbers; LANES]>,
}

impl WordEncoder {
    pub(super) fn new() -> Self {
        WordEncoder {
            pairs: Vec::new(),
            counts: Box::new([[0; PAIRS]; 4]),
            steps: WordSteps::new(),
            numbers: Box::new([[0; size_of::<Numbers>()]; LANES]),
        }
    }

    pub(super) fn buffer_bytes(&self) -> usize {
        let pairs = self.pairs.capacity() * size_of::<u16>();
        pairs + size_of_val(&*self.counts) + self.steps.buffer_bytes() + size_of_val(&*self.numbers)
    }

    /// Writes `raw` to the front of `out` and answers the bytes of the payload. Nothing where words
    /// gain too little: less than 5 %, or clearly less than codes would.
    pub(super) fn encode(&mut self, fp8: Fp8, raw: &[u8], out: &mut [u8]) -> Option<usize> {
        let rest_len = fp8.rest_len(raw.len());
        let (rest, coded) = out.split_at_mut_checked(rest_len)?;
        // All runs of a group of lanes are whole, to be found without looking.
        let lanes = raw.len().div_ceil(LANES * RUN_SYMBOLS) * LANES;
        if self.pairs.len() < lanes * RUN_PAIRS {
            self.pairs.resize(lanes * RUN_PAIRS, 0);
        }
        split_runs(fp8, raw, &mut self.pairs, rest);
        let counts = count(fp8, &self.pairs[..raw.len() / 2], &mut self.counts);
        let costs = word_costs::choose(fp8, &counts)?;
        self.steps.fill(fp8, &WordList::new(&costs)?);
        let (stored_costs, coded) = coded.split_at_mut_checked(fp8.symbols())?;
        stored_costs.copy_from_slice(&costs[..fp8.symbols()]);
        let coded_len = self.encode_runs(raw.len(), coded)?;
        let len = rest_len + fp8.symbols() + coded_len;
        let entropy = word_costs::total_bits(word_costs::entropy(&counts), raw.len()) / 8;
        let ideal = rest_len as u64 + entropy;
        let gains = len <= raw.len() - raw.len() / GAIN_PARTS;
        let longest = ideal + ideal / EXCESS_PARTS + PACKED_LEN as u64;
        (gains && len as u64 <= longest).then_some(len)
    }

    /// The numbers of words of all runs, and then the words.
    fn encode_runs(&mut self, elements: usize, out: &mut [u8]) -> Option<usize> {
        let sizes_len = 2 * runs(elements).count();
        let (sizes, packed) = out.split_at_mut_checked(sizes_len)?;
        let mut sizes = sizes.as_chunks_mut::<2>().0.iter_mut();
        let mut at = 0;
        let (pairs, mut left) = (self.pairs.as_chunks().0.as_chunks().0, elements / 2);
        for lanes in pairs {
            let lens =
                std::array::from_fn(|nth| left.saturating_sub(nth * RUN_PAIRS).min(RUN_PAIRS));
            left -= lens.iter().sum::<usize>();
            let words = walk_runs(&self.steps, lanes, lens, &mut self.numbers);
            // Runs of nothing have no words and no size.
            for ((numbers, words), size) in self.numbers.iter().zip(words).zip(&mut sizes) {
                *size = (words as u16).to_le_bytes();
                let len = packed_len(words);
                pack(&numbers[..2 * words], packed.get_mut(at..at + len)?);
                at += len;
            }
        }
        Some(sizes_len + at)
    }
}

fn split_runs(fp8: Fp8, raw: &[u8], pairs: &mut [u16], rest: &mut [u8]) {
    let (mut rest, pairs) = (rest, pairs.chunks_mut(RUN_PAIRS));
    for (raw, pairs) in raw.chunks(RUN_SYMBOLS).zip(pairs) {
        let (bits, other_bits) = rest.split_at_mut(fp8.rest_len(raw.len()));
        fp8.split(raw, pairs, bits);
        rest = other_bits;
    }
}

/// Counts the symbols of all pairs, or of a sample of many pairs.
fn count(fp8: Fp8, pairs: &[u16], tables: &mut [[u32; PAIRS]; 4]) -> SymbolCounts {
    tables.iter_mut().for_each(|table| table.fill(0));
    let counted = if pairs.len() > SAMPLE_ALL { SAMPLE_PAIRS } else { SAMPLE_STRETCH };
    for stretch in pairs.chunks(SAMPLE_STRETCH) {
        let (groups, tail) = stretch[..stretch.len().min(counted)].as_chunks::<4>();
        // Four tables, because equal pairs in a sequence would wait for one another.
        for group in groups {
            for (table, pair) in tables.iter_mut().zip(group) {
                table[usize::from(pair >> PAIR_SHIFT)] += 1;
            }
        }
        for pair in tail {
            tables[0][usize::from(pair >> PAIR_SHIFT)] += 1;
        }
    }
    let mut counts = SymbolCounts::default();
    for pair in 0..fp8.symbols() * fp8.symbols() {
        let sum: u32 = tables.iter().map(|table| table[pair]).sum();
        counts[pair % fp8.symbols()] += sum;
        counts[pair / fp8.symbols()] += sum;
    }
    counts
}

/// Packs numbers of two bytes each.
fn pack(numbers: &[u8], out: &mut [u8]) {
    let (groups, tail) = numbers.as_chunks::<8>();
    let (packed, last) = out.as_chunks_mut::<6>();
    for (group, to) in groups.iter().zip(packed) {
        let bits = pack_four(*group).to_le_bytes();
        to[..4].copy_from_slice(&bits[..4]);
        to[4..].copy_from_slice(&bits[4..6]);
    }
    let mut group = [0; 8];
    group[..tail.len()].copy_from_slice(tail);
    let len = last.len();
    last.copy_from_slice(&pack_four(group).to_le_bytes()[..len]);
}

/// The low 12 bits of four numbers, the first one lowest.
fn pack_four(numbers: [u8; 8]) -> u64 {
    let four = u64::from_le_bytes(numbers);
    let two = four & 0xfff_0000_0fff | four >> 4 & 0xff_f000_00ff_f000;
    two & 0xff_ffff | two >> 8 & 0xffff_ff00_0000
}
