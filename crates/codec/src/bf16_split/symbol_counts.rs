//! How often the symbols of a block occur.

/// How often each symbol occurs.
pub(super) type Counts = [u32; 256];

/// Blocks of more than `SAMPLE_ALL` symbols are counted in part: the first `SAMPLE_SYMBOLS` of each
/// `SAMPLE_STRETCH`. A few stretches are no whole number of tokens, whatever these have of heads: the
/// same heads of all tokens are no sample.
const SAMPLE_SYMBOLS: usize = 64;
const SAMPLE_ALL: usize = 1 << 15;
const SAMPLE_STRETCH: usize = 344;

/// The most symbols from the least to the greatest one for a sample: each of them gets a code,
/// whether it occurs or not.
const SAMPLE_SPAN: u8 = 64;

/// Counts the symbols of a block, or a sample of them. What occurs is never 0.
pub(super) fn count_block(symbols: &[u8]) -> Counts {
    let range = Range::of(symbols);
    if symbols.len() <= SAMPLE_ALL || range.last.saturating_sub(range.first) >= SAMPLE_SPAN {
        return count(symbols);
    }
    let mut tables = Tables::default();
    for stretch in symbols.chunks(SAMPLE_STRETCH) {
        tables.add(&stretch[..stretch.len().min(SAMPLE_SYMBOLS)]);
    }
    let mut counts = tables.sum();
    counts[0] = counts[0].max(range.zeros.into());
    for symbol in range.first..=range.last {
        let count = &mut counts[usize::from(symbol)];
        *count = (*count).max(1);
    }
    counts
}

/// Which symbols may occur.
struct Range {
    zeros: bool,
    /// The least and the greatest one that is not 0. The first is greater than the last if all are 0.
    first: u8,
    last: u8,
}

impl Range {
    fn of(symbols: &[u8]) -> Self {
        // Each less one: 0 becomes the greatest.
        let (mut least, mut greatest, mut zeros) = (u8::MAX, 0, u8::MAX);
        for symbol in symbols {
            least = least.min(symbol.wrapping_sub(1));
            greatest = greatest.max(*symbol);
            zeros = zeros.min(*symbol);
        }
        Range { zeros: zeros == 0, first: least.saturating_add(1), last: greatest }
    }
}

/// Counts all symbols.
pub(super) fn count(symbols: &[u8]) -> Counts {
    let mut tables = Tables::default();
    tables.add(symbols);
    tables.sum()
}

/// Eight tables, because equal symbols in a sequence would wait for one another.
struct Tables([Counts; 8]);

impl Default for Tables {
    fn default() -> Self {
        Tables([[0; 256]; 8])
    }
}

impl Tables {
    fn add(&mut self, symbols: &[u8]) {
        let (groups, tail) = symbols.as_chunks::<8>();
        for group in groups {
            let word = u64::from_le_bytes(*group);
            for at in 0..8 {
                self.0[at][(word >> (8 * at) & 0xff) as usize] += 1;
            }
        }
        for symbol in tail {
            self.0[0][usize::from(*symbol)] += 1;
        }
    }

    fn sum(&self) -> Counts {
        std::array::from_fn(|symbol| self.0.iter().map(|table| table[symbol]).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The symbols that have a count.
    fn counted(symbols: &[u8]) -> Vec<u8> {
        let counts = count_block(symbols);
        (0..=u8::MAX).filter(|symbol| counts[usize::from(*symbol)] > 0).collect()
    }

    #[test]
    fn what_no_sample_has_seen_is_counted() {
        let mut symbols = vec![100; 2 * SAMPLE_ALL];
        assert_eq!(counted(&symbols), [100]);
        symbols[SAMPLE_SYMBOLS] = 103;
        assert_eq!(counted(&symbols), [100, 101, 102, 103]);
        symbols[SAMPLE_SYMBOLS + 1] = 0;
        assert_eq!(counted(&symbols), [0, 100, 101, 102, 103]);
        // Too far from the others: all are counted.
        symbols[SAMPLE_SYMBOLS + 2] = 103 + SAMPLE_SPAN;
        assert_eq!(counted(&symbols), [0, 100, 103, 103 + SAMPLE_SPAN]);
        assert_eq!(count_block(&symbols)[100], 2 * SAMPLE_ALL as u32 - 3);
        assert_eq!(counted(&vec![0; 2 * SAMPLE_ALL]), [0]);
        assert!(counted(&[]).is_empty());
    }

    #[test]
    fn the_greatest_symbols_and_none_but_zero_have_ranges() {
        let mut symbols = vec![u8::MAX; 2 * SAMPLE_ALL];
        assert_eq!(counted(&symbols), [u8::MAX]);
        symbols[SAMPLE_SYMBOLS] = u8::MAX - 1;
        assert_eq!(counted(&symbols), [u8::MAX - 1, u8::MAX]);
        symbols.fill(0);
        symbols[SAMPLE_SYMBOLS] = 1;
        assert_eq!(counted(&symbols), [0, 1]);
    }
}
