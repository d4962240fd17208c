//! The table of one channel: how often each symbol occurs over the tokens of a chunk, summed up and
//! scaled to 16 bits as LMCache's `calculate_cdf` does.

/// The most symbols of one channel whose counts [`counts_of_cdf`] gives.
pub(super) const TOTAL_MAX: usize = 1 << 15;

/// Writes the table of `symbols` to `out`: one entry for each bin, and a last one that no coder
/// reads. Entries rise strictly, so each symbol has a share.
pub(super) fn write_cdf(symbols: &[u8], out: &mut [u16]) {
    let bins = out.len() - 1;
    let mut counts = [0u32; 256];
    for symbol in symbols {
        counts[usize::from(*symbol)] += 1;
    }
    let total = (symbols.len() as u64).max(1);
    write_cdf_of_counts(&counts[..bins], total, out);
}

/// As [`write_cdf`], where symbol `n` occurs `counts[n]` times, of `total` in all. Symbols after the
/// last count do not occur.
pub(super) fn write_cdf_of_counts(counts: &[u32], total: u64, out: &mut [u16]) {
    let scale = scale(out.len());
    let mut below = 0u64;
    for (bin, entry) in out.iter_mut().enumerate() {
        *entry = (scale * below / total + bin as u64) as u16;
        below += u64::from(counts.get(bin).copied().unwrap_or_default());
    }
}

/// How often the first `symbols` symbols occur that `cdf` is the table of, of `total` in all, which
/// are at most [`TOTAL_MAX`]: then an entry has not lost what it was made of.
pub(super) fn counts_of_cdf(
    cdf: &[u16],
    symbols: usize,
    total: u64,
) -> impl Iterator<Item = u32> + '_ {
    let scale = scale(cdf.len());
    let below = move |bin: usize| {
        let scaled = u64::from(cdf[bin]) - bin as u64;
        (scaled * total).div_ceil(scale)
    };
    (0..symbols).map(move |symbol| (below(symbol + 1) - below(symbol)) as u32)
}

fn scale(entries: usize) -> u64 {
    0xffff - (entries as u64 - 1)
}

/// Whether `table` can be one of [`write_cdf`]: it begins with 0 and rises strictly.
pub(super) fn is_cdf(table: &[u16]) -> bool {
    table.first() == Some(&0) && table.windows(2).all(|pair| pair[0] < pair[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_gives_back_the_counts_that_it_was_made_of() {
        let mut random = fastrand::Rng::with_seed(1);
        for total in [1, 2, 255, 256, 257, 4096, TOTAL_MAX] {
            for bins in [4, 16, 32, 129] {
                // Most symbols are near to one another, and some do not occur.
                let symbols: Vec<u8> = (0..total)
                    .map(|_| (random.usize(..bins - 1) * random.usize(..bins - 1) / bins) as u8)
                    .collect();
                let mut cdf = vec![0; bins + 1];
                write_cdf(&symbols, &mut cdf);
                let found: Vec<u32> = counts_of_cdf(&cdf, bins, total as u64).collect();
                let count = |bin: usize| symbols.iter().filter(|s| usize::from(**s) == bin).count();
                let expected: Vec<u32> = (0..bins).map(|bin| count(bin) as u32).collect();
                assert_eq!(found, expected, "{total} symbols of {bins} bins");
                let mut again = vec![0; bins + 1];
                write_cdf_of_counts(&found, total as u64, &mut again);
                assert_eq!(again, cdf);
            }
        }
    }
}
