//! Finds the words of runs: for each pair of symbols and each budget that a word has left, a table
//! says how its number goes on, or which words end.

use std::hint::select_unpredictable;

use super::element_planes::RUN_SYMBOLS;
use super::fp8_planes::{Fp8, PAIR_SHIFT};
use super::word_list::{BUDGET, WordList};

/// The pairs of symbols of a run.
pub(super) const RUN_PAIRS: usize = RUN_SYMBOLS / 2;

/// The runs that are encoded side by side: what a processor's registers hold.
pub(super) const LANES: usize = 4;

/// Pairs of the most symbols.
pub(super) const PAIRS: usize = 1 << 10;

/// The pairs of each possible budget that is left.
const STEPS: usize = PAIRS << PAIR_SHIFT;

/// The bits of a place that are a budget.
const BUDGET_BITS: u32 = u8::BITS;

/// What two more symbols make of a word.
#[derive(Clone, Copy, Debug, Default)]
struct Step {
    /// What is added to the word's number. If the word ends, that is what is written. The high half
    /// is the number of a second word, if a symbol alone is one.
    add: u32,
    /// The number of the word that begins, if another ends.
    next: u16,
    /// The bytes of the words that end, two each, and in the low byte what is left of the budget.
    place: u16,
}

impl Step {
    fn new(add: u32, next: u16, budget: usize, ends: usize) -> Self {
        Step { add, next, place: ((2 * ends) << BUDGET_BITS | budget) as u16 }
    }
}

/// The numbers of a run's words, two bytes each, and a few more that are written over.
pub(super) type Numbers = [u8; 2 * RUN_SYMBOLS + 4];

/// The steps of all pairs of symbols.
#[derive(Debug)]
pub(super) struct WordSteps {
    /// By pair, and then by budget.
    steps: Box<[Step; STEPS]>,
}

impl WordSteps {
    pub(super) fn new() -> Self {
        let steps = vec![Step::default(); STEPS].into_boxed_slice();
        WordSteps { steps: steps.try_into().expect("as many as the array has") }
    }

    pub(super) fn buffer_bytes(&self) -> usize {
        size_of_val(&*self.steps)
    }

    /// Makes the steps of other words.
    pub(super) fn fill(&mut self, fp8: Fp8, words: &WordList) {
        let rows = self.steps.as_chunks_mut().0.iter_mut().take(fp8.symbols() * fp8.symbols());
        for (pair, row) in rows.enumerate() {
            fill_row(words, pair % fp8.symbols(), pair / fp8.symbols(), row);
        }
    }
}

/// The steps of one pair of symbols for each budget that is left.
fn fill_row(words: &WordList, first: usize, second: usize, row: &mut [Step; BUDGET + 1]) {
    let (cost, second_cost) = (words.cost(first), words.cost(second));
    let (before, second_before) = (words.before(first), words.before(second));
    let next = words.first(second);
    let budget = BUDGET - second_cost;
    // Neither symbol continues the word. The second one continues that of the first one, or not.
    let (neither, others) = row.split_at_mut(cost);
    neither.fill(match BUDGET.checked_sub(cost + second_cost) {
        Some(left) => {
            let next = words.first(first) + 1 + second_before[BUDGET - cost];
            Step::new(0, next, left, 1)
        }
        None => Step::new(u32::from(words.first(first)) << 16, next, budget, 2),
    });
    let (one, two) = others.split_at_mut(second_cost.min(others.len()));
    for (step, before) in one.iter_mut().zip(&before[cost..]) {
        *step = Step::new(u32::from(*before) + 1, next, budget, 1);
    }
    let both = before.iter().skip(cost + second_cost).zip(&second_before[second_cost..]);
    for ((left, step), (a, b)) in two.iter_mut().enumerate().zip(both) {
        *step = Step::new(u32::from(a + b) + 2, 0, left, 0);
    }
}

/// The word that is under way in one run.
#[derive(Clone, Copy)]
struct Walk {
    number: u32,
    /// The bytes of the words before it, and in the low byte what is left of its budget: together, to
    /// need few registers.
    place: u32,
}

impl Walk {
    /// Before the first symbol: the number of a word of one symbol is one less than what it adds.
    const START: Walk = Walk { number: u32::MAX, place: BUDGET as u32 };

    fn at(self) -> usize {
        (self.place >> BUDGET_BITS) as usize
    }

    /// Without branches: where words end is as random as the symbols.
    #[inline(always)]
    fn step(self, steps: &[Step; STEPS], pair: u16, numbers: &mut Numbers) -> Walk {
        let step = &steps[usize::from(pair | u16::from(self.place as u8))];
        let number = self.number.wrapping_add(step.add);
        numbers[self.at()..self.at() + 4].copy_from_slice(&number.to_le_bytes());
        let ends = step.place >> BUDGET_BITS > 0;
        Walk {
            number: select_unpredictable(ends, step.next.into(), number),
            place: (self.place >> BUDGET_BITS << BUDGET_BITS) + u32::from(step.place),
        }
    }

    /// Writes the last word and answers how many there are.
    fn finish(self, numbers: &mut Numbers) -> usize {
        numbers[self.at()..self.at() + 4].copy_from_slice(&self.number.to_le_bytes());
        self.at() / 2 + 1
    }
}

/// Writes the numbers of the words of `lens` pairs of each run, and answers how many they are. Runs
/// get no longer from one to the next. Not inlined: it needs all registers.
#[inline(never)]
pub(super) fn walk_runs(
    steps: &WordSteps,
    runs: &[[u16; RUN_PAIRS]; LANES],
    lens: [usize; LANES],
    numbers: &mut [Numbers; LANES],
) -> [usize; LANES] {
    let steps = &*steps.steps;
    // Variables and no arrays: the compiler keeps them in registers.
    let [mut a, mut b, mut c, mut d] = [Walk::START; LANES];
    let [numbers_a, numbers_b, numbers_c, numbers_d] = &mut *numbers;
    let common = lens[LANES - 1].min(RUN_PAIRS);
    // One index and no iterators: four of those need more registers.
    #[expect(clippy::needless_range_loop)]
    for at in 0..common {
        a = a.step(steps, runs[0][at], numbers_a);
        b = b.step(steps, runs[1][at], numbers_b);
        c = c.step(steps, runs[2][at], numbers_c);
        d = d.step(steps, runs[3][at], numbers_d);
    }
    let mut words = [0; LANES];
    for (nth, walk) in [a, b, c, d].into_iter().enumerate().filter(|(nth, _)| lens[*nth] > 0) {
        let numbers = &mut numbers[nth];
        let others = runs[nth][common..lens[nth]].iter();
        let walk = others.fold(walk, |walk, pair| walk.step(steps, *pair, numbers));
        words[nth] = walk.finish(numbers);
    }
    words
}
