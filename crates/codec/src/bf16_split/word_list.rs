//! The words of a block: sequences of symbols that have a number of 12 bits each, a variable-to-fixed
//! code as Tunstall's is one. It decodes fast, because no number waits for the one before it.

use super::element_planes::RUN_SYMBOLS;
use super::fp8_planes::{PAIR_SHIFT, SYMBOLS_MAX};

/// What the symbols of a word may cost together. It fits `PAIR_SHIFT` bits.
pub(super) const BUDGET: usize = (1 << PAIR_SHIFT) - 1;

/// The sums that words may cost, and 0.
const PLACES: usize = BUDGET + 1;

/// The least cost of a symbol: no word has more than [`WORD_SYMBOLS`].
pub(super) const COST_MIN: usize = BUDGET / (WORD_SYMBOLS + 1) + 1;

/// The most symbols of a word.
pub(super) const WORD_SYMBOLS: usize = 7;

/// The bits of a word's number.
pub(super) const NUMBER_BITS: usize = 12;

/// The most words.
pub(super) const WORDS_MAX: usize = 1 << NUMBER_BITS;

/// What each symbol costs; 0 = the symbol is in no word.
pub(super) type Costs = [u8; SYMBOLS_MAX];

/// The lengths of the runs of a block.
pub(super) fn runs(elements: usize) -> impl Iterator<Item = usize> + Clone {
    let run = move |nth: usize| (elements - nth * RUN_SYMBOLS).min(RUN_SYMBOLS);
    (0..elements.div_ceil(RUN_SYMBOLS)).map(run)
}

/// The bytes of `words` words.
pub(super) fn packed_len(words: usize) -> usize {
    (words * NUMBER_BITS).div_ceil(8)
}

/// All words: every sequence of symbols that cost no more than [`BUDGET`] together.
///
/// Their numbers ascend as in a dictionary: a word comes before those that begin with it. The
/// alphabet is the symbols by cost, and then by value.
#[derive(Debug)]
pub(super) struct WordList {
    costs: Costs,
    /// The symbols in words, in alphabetical order.
    alphabet: [u8; SYMBOLS_MAX],
    /// How many these are.
    letters: usize,
    /// For each symbol and each budget that is left: the words of that budget that begin with an
    /// earlier symbol.
    before: [[u16; BUDGET + 1]; SYMBOLS_MAX],
}

impl WordList {
    /// The words for these costs; nothing where a cost is out of range or the words are too many.
    pub(super) fn new(costs: &Costs) -> Option<Self> {
        let valid = |cost: &u8| *cost == 0 || (COST_MIN..=BUDGET).contains(&usize::from(*cost));
        if !costs.iter().all(valid) {
            return None;
        }
        let mut list = WordList {
            costs: *costs,
            alphabet: [0; SYMBOLS_MAX],
            letters: 0,
            before: [[0; BUDGET + 1]; SYMBOLS_MAX],
        };
        for cost in COST_MIN..=BUDGET {
            for symbol in (0..SYMBOLS_MAX).filter(|symbol| usize::from(costs[*symbol]) == cost) {
                list.alphabet[list.letters] = symbol as u8;
                list.letters += 1;
            }
        }
        list.count()?;
        Some(list)
    }

    /// Fills `before`.
    fn count(&mut self) -> Option<()> {
        // The words that begin with what has left this budget, itself among them.
        let mut sizes = [0; BUDGET + 1];
        for budget in 0..=BUDGET {
            let mut sum = 0;
            for symbol in &self.alphabet[..self.letters] {
                let symbol = usize::from(*symbol);
                let Some(left) = budget.checked_sub(self.costs[symbol].into()) else { break };
                self.before[symbol][budget] = sum as u16;
                sum += sizes[left];
                if sum > WORDS_MAX {
                    return None;
                }
            }
            sizes[budget] = sum + 1;
        }
        Some(())
    }

    /// How many words there are for these costs; [`usize::MAX`] if they are too many.
    pub(super) fn len(costs: &Costs) -> usize {
        let mut used = [0; SYMBOLS_MAX];
        let (mut letters, mut alone) = (0, 0);
        for cost in costs.iter().copied().map(usize::from).filter(|cost| *cost > 0) {
            // Most symbols of many blocks are so rare that they are words alone.
            if cost == BUDGET {
                alone += 1;
            } else {
                used[letters] = cost;
                letters += 1;
            }
        }
        // The sequences that cost so much, after as many places as the budget: none cost less than
        // nothing. As many at once as do not depend on one another.
        let mut sequences = [0u32; 2 * PLACES];
        sequences[PLACES] = 1;
        let mut words = alone;
        for spent in (COST_MIN..PLACES).step_by(COST_MIN) {
            let mut sums = [0; COST_MIN];
            for cost in &used[..letters] {
                let before = sequences[PLACES + spent - cost % PLACES..].iter();
                sums.iter_mut().zip(before).for_each(|(sum, before)| *sum += before);
            }
            sequences[PLACES + spent..][..COST_MIN].copy_from_slice(&sums);
            words += sums.iter().sum::<u32>() as usize;
            if words > WORDS_MAX {
                return usize::MAX;
            }
        }
        words
    }

    pub(super) fn cost(&self, symbol: usize) -> usize {
        self.costs[symbol].into()
    }

    /// The symbols in words, in alphabetical order: those that cost least come first.
    pub(super) fn alphabet(&self) -> &[u8] {
        &self.alphabet[..self.letters]
    }

    /// The number of the word of one symbol.
    pub(super) fn first(&self, symbol: usize) -> u16 {
        self.before[symbol][BUDGET]
    }

    /// For each budget that a word has left: the words that go on from it with an earlier symbol. If
    /// the budget suffices, the word that goes on with `symbol` has a number that is greater by these
    /// and by one.
    pub(super) fn before(&self, symbol: usize) -> &[u16; BUDGET + 1] {
        &self.before[symbol]
    }
}
