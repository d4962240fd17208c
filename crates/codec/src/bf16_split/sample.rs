//! Whether a chunk is worth coding, judged by a few samples of it.

use super::element_planes::GRANULE;
use super::symbol_counts::{self, Counts};
use crate::ElementType;
use crate::pieces::total_len;

/// The least gain is the raw length by this: 5 %.
pub(super) const GAIN_PARTS: usize = 20;

const SAMPLES: usize = 16;

/// The bytes of one sample.
const SAMPLE_LEN: usize = 2048;

/// Whether samples of `raw` say that coding may gain. Only a clear no counts: blocks have codes of
/// their own, which fit them better than one code fits all samples.
pub(super) fn promises_gain(element: ElementType, raw: &[&[u8]]) -> bool {
    let len = total_len(raw);
    if len < SAMPLES * SAMPLE_LEN {
        return true;
    }
    let mut counts: Counts = [0; 256];
    let (mut symbols, mut rest) = ([0; SAMPLE_LEN], [0; SAMPLE_LEN]);
    for nth in 0..SAMPLES {
        let at = len / SAMPLES * nth / GRANULE * GRANULE;
        let sample = piece_at(raw, at);
        let sample = &sample[..sample.len().min(SAMPLE_LEN) / GRANULE * GRANULE];
        let symbols = &mut symbols[..sample.len() / element.bytes_per_symbol()];
        element.split(sample, symbols, &mut rest[..element.rest_len(symbols.len())]);
        for (sum, count) in counts.iter_mut().zip(symbol_counts::count(symbols)) {
            *sum += count;
        }
    }
    let symbols: u32 = counts.iter().sum();
    let rest_bits = element.rest_len(8) as f64;
    let raw_bits = 8.0 * element.bytes_per_symbol() as f64;
    symbols == 0 || entropy(&counts) + rest_bits < 0.99 * raw_bits
}

/// Bits a symbol.
fn entropy(counts: &Counts) -> f64 {
    let all = f64::from(counts.iter().sum::<u32>());
    let share = counts.iter().filter(|count| **count > 0).map(|count| f64::from(*count) / all);
    share.map(|share| -share * share.log2()).sum()
}

/// What is left of the piece that has the byte at `at`.
fn piece_at<'a>(pieces: &[&'a [u8]], at: usize) -> &'a [u8] {
    let mut at = at;
    for piece in pieces {
        match piece.get(at..) {
            Some(here) if !here.is_empty() => return here,
            _ => at -= piece.len(),
        }
    }
    &[]
}
