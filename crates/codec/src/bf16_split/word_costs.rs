//! Chooses the costs of a block's symbols: nearly the logarithms of their shares, so that all words
//! are about equally frequent. Whole numbers only: every processor chooses the same.

use super::fp8_planes::{Fp8, SYMBOLS_MAX};
use super::word_list::{BUDGET, COST_MIN, Costs, NUMBER_BITS, WORDS_MAX, WordList};

/// How often each symbol occurs in a sample.
pub(super) type SymbolCounts = [u32; SYMBOLS_MAX];

/// The bits of a fraction in numbers of bits.
const FRACTION: u32 = 16;

/// Trials to find the scale of costs.
const TRIALS: usize = 9;

/// Rounds in which each symbol may cost less by one.
const ROUNDS: usize = 2;

/// The costs that give the most words, of all scales that are tried, and then less where still more
/// words fit. Nothing where no scale gives few enough, or the sample has one symbol alone.
pub(super) fn choose(fp8: Fp8, counts: &SymbolCounts) -> Option<Costs> {
    let all = counts.iter().sum();
    if counts.contains(&all) {
        return None;
    }
    let bits = counts.map(|count| information(count, all));
    let at = |scale: u64| -> Costs {
        std::array::from_fn(|symbol| {
            let cost = (bits[symbol] * scale + (1 << (2 * FRACTION - 1))) >> (2 * FRACTION);
            let cost = (cost as usize).clamp(COST_MIN, BUDGET) as u8;
            if symbol < fp8.symbols() { cost } else { 0 }
        })
    };
    // A word of `NUMBER_BITS` bits would spend its budget at this scale, if words were as good as
    // they can be.
    let ideal = ((BUDGET as u64) << FRACTION) / NUMBER_BITS as u64;
    let (mut low, mut high) = (ideal * 3 / 4, ideal * 3 / 2);
    let mut best = (0, None);
    for _ in 0..TRIALS {
        let scale = u64::midpoint(low, high);
        let costs = at(scale);
        let words = WordList::len(&costs);
        if words > WORDS_MAX {
            low = scale;
            continue;
        }
        high = scale;
        if words > best.0 {
            best = (words, Some(costs));
        }
    }
    best.1.map(|costs| spend(costs, counts))
}

/// Makes symbols cheaper while the words are not too many: the rarest first, because few words begin
/// with them, so that they leave least unused.
fn spend(costs: Costs, counts: &SymbolCounts) -> Costs {
    let mut order: [usize; SYMBOLS_MAX] = std::array::from_fn(|symbol| symbol);
    order.sort_unstable_by_key(|symbol| (counts[*symbol], *symbol));
    let mut costs = costs;
    let used = order.into_iter().filter(|symbol| counts[*symbol] > 0);
    for symbol in std::iter::repeat_n(used, ROUNDS).flatten() {
        let mut cheaper = costs;
        cheaper[symbol] -= 1;
        let allowed = usize::from(cheaper[symbol]) >= COST_MIN;
        if allowed && WordList::len(&cheaper) <= WORDS_MAX {
            costs = cheaper;
        }
    }
    costs
}

/// The entropy of the sample in bits for each symbol, with `FRACTION` bits after the point.
pub(super) fn entropy(counts: &SymbolCounts) -> u64 {
    let all = counts.iter().sum();
    let each = counts.iter().map(|count| u64::from(*count) * information(*count, all));
    each.sum::<u64>() / u64::from(all).max(1)
}

/// The bits that `bits` of each of `count` symbols are.
pub(super) fn total_bits(bits: u64, count: usize) -> u64 {
    (bits * count as u64) >> FRACTION
}

/// The bits of information in a symbol that occurs `count` times among `all`. One that does not
/// occur has more than any other.
fn information(count: u32, all: u32) -> u64 {
    if count == 0 {
        return 64 << FRACTION;
    }
    log2(all).saturating_sub(log2(count))
}

/// The logarithm to the base of two of a number that is not 0.
fn log2(number: u32) -> u64 {
    let whole = number.ilog2();
    // From 1 to 2, with 31 bits after the point. Each square doubles the logarithm.
    let mut rest = u64::from(number) << (31 - whole);
    let mut log = u64::from(whole);
    for _ in 0..FRACTION {
        rest = (rest * rest) >> 31;
        let bit = rest >> 32;
        rest >>= bit;
        log = log << 1 | bit;
    }
    log
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithms_are_exact_to_a_few_units() {
        for number in (1..5000).chain([1 << 18, 1 << 19, u32::MAX]) {
            let exact = f64::from(number).log2() * f64::from(1 << FRACTION);
            assert!((log2(number) as f64 - exact).abs() < 4.0, "{number}");
        }
    }

    #[test]
    fn every_choice_is_a_list_of_words() {
        let mut random = fastrand::Rng::with_seed(1);
        for fp8 in [Fp8::E4M3, Fp8::E5M2] {
            for round in 0..2000 {
                let mut counts: SymbolCounts = [0; SYMBOLS_MAX];
                for count in &mut counts[..fp8.symbols()] {
                    let bits = random.u32(0..20);
                    *count = random.u32(..1 << bits) * u32::from(random.bool());
                }
                counts[round % fp8.symbols()] += 1;
                let Some(costs) = choose(fp8, &counts) else {
                    let used = counts.iter().filter(|count| **count > 0).count();
                    assert_eq!(used, 1, "{fp8:?}: {counts:?}");
                    continue;
                };
                let words = WordList::len(&costs);
                assert!((fp8.symbols()..=WORDS_MAX).contains(&words), "{words}: {counts:?}");
                let list = WordList::new(&costs).unwrap();
                assert_eq!(list.alphabet().len(), fp8.symbols());
            }
        }
    }
}
