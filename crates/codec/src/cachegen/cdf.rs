//! The table of one channel: how often each symbol occurs over the tokens of a chunk, summed up and
//! scaled to 16 bits as LMCache's `calculate_cdf` does.

/// Writes the table of `symbols` to `out`: one entry for each bin, and a last one that no coder
/// reads. Entries rise strictly, so each symbol has a share.
pub(super) fn write_cdf(symbols: &[u8], out: &mut [u16]) {
    let bins = out.len() - 1;
    let mut counts = [0u32; 256];
    for symbol in symbols {
        counts[usize::from(*symbol)] += 1;
    }
    let total = (symbols.len() as u64).max(1);
    let scale = 0xffff - bins as u64;
    let mut below = 0u64;
    for (bin, entry) in out.iter_mut().enumerate() {
        *entry = (scale * below / total + bin as u64) as u16;
        below += u64::from(counts[bin]);
    }
}

/// Whether `table` can be one of [`write_cdf`]: it begins with 0 and rises strictly.
pub(super) fn is_cdf(table: &[u16]) -> bool {
    table.first() == Some(&0) && table.windows(2).all(|pair| pair[0] < pair[1])
}
