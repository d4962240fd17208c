//! One token's channels as symbols and back, with the arithmetic of LMCache's `torch` operations.

use crate::FloatType;
use crate::float_type::{Bf16, Element, Fp16, Fp32};

/// Writes the symbols of one token's channels and answers the bits of the greatest magnitude.
/// `bins` is at least 4.
pub(super) fn quantize_token<E: Element>(raw: &[u8], bins: u8, symbols: &mut [u8]) -> E::Bits {
    let elements = || raw.chunks_exact(E::BYTES).map(E::read);
    let max_bits = elements().map(E::magnitude).max().unwrap_or_default();
    let max = E::to_f32(max_bits);
    let zero = f32::from(bins / 2 - 1);
    let factor = zero / max;
    if !max.is_finite() || !factor.is_finite() {
        return quantize_irregular::<E>(raw, max_bits, zero, symbols);
    }
    // Adding 1.5 * 2^23 rounds to an integer, half to even, and leaves it in the low bits. The
    // values are from 0 to 126, up to a rounding error.
    const ROUND: f32 = 12_582_912.0;
    for (symbol, bits) in symbols.iter_mut().zip(elements()) {
        *symbol = ((E::to_f32(bits) * factor + zero) + ROUND).to_bits() as u8;
    }
    max_bits
}

/// A token with NaN or infinities, or whose maximum is zero or almost: `torch` gives 0 for what is
/// no number, and where the conversion to `int8` has no result.
#[cold]
fn quantize_irregular<E: Element>(
    raw: &[u8],
    max_bits: E::Bits,
    zero: f32,
    symbols: &mut [u8],
) -> E::Bits {
    let max = E::to_f32(max_bits);
    let factor = zero / max;
    for (symbol, bytes) in symbols.iter_mut().zip(raw.chunks_exact(E::BYTES)) {
        let scaled = (E::to_f32(E::read(bytes)) * factor + zero).round_ties_even();
        *symbol = if scaled.is_finite() { scaled as u8 } else { 0 };
    }
    if max.is_nan() { E::from_f32(f32::NAN) } else { max_bits }
}

/// The values of one layer's symbols for a maximum of 1: `(symbol - M) / M`.
pub(super) struct Steps {
    values: Vec<f32>,
}

impl Steps {
    /// For symbols below `symbols`, in a layer of `bins` bins.
    pub(super) fn new(bins: u8, symbols: usize) -> Steps {
        let zero = f32::from(bins / 2 - 1);
        Steps { values: (0..symbols).map(|symbol| (symbol as f32 - zero) / zero).collect() }
    }

    /// Writes the values of all tokens of one layer's keys or values to `raw`. `maxima` has the
    /// maximum of each token as a `max_type`.
    pub(super) fn dequantize_plane<E: Element>(
        &self,
        symbols: &[u8],
        maxima: &[u8],
        max_type: FloatType,
        raw: &mut [u8],
    ) {
        let mut table = [E::Bits::default(); 256];
        let maxima = maxima.chunks_exact(max_type.bytes());
        let channels = symbols.len() / maxima.len().max(1);
        let rows = raw.chunks_exact_mut(channels * E::BYTES);
        for ((row, symbols), max) in rows.zip(symbols.chunks_exact(channels)).zip(maxima) {
            self.dequantize_token::<E>(symbols, read_float(max, max_type), &mut table, row);
        }
    }

    /// Writes the values of one token with the maximum `max`. `table` is scratch space.
    fn dequantize_token<E: Element>(
        &self,
        symbols: &[u8],
        max: f32,
        table: &mut [E::Bits; 256],
        raw: &mut [u8],
    ) {
        for (entry, step) in table.iter_mut().zip(&self.values) {
            *entry = E::from_f32(step * max);
        }
        for (symbol, bytes) in symbols.iter().zip(raw.chunks_exact_mut(E::BYTES)) {
            E::write(table[usize::from(*symbol)], bytes);
        }
    }
}

fn read_float(bytes: &[u8], float: FloatType) -> f32 {
    match float {
        FloatType::Bf16 => Bf16::to_f32(Bf16::read(bytes)),
        FloatType::Fp16 => Fp16::to_f32(Fp16::read(bytes)),
        FloatType::Fp32 => Fp32::to_f32(Fp32::read(bytes)),
    }
}

/// Whether no token has NaN or an infinity.
pub(super) fn are_finite(maxima: &[u8], float: FloatType) -> bool {
    maxima.chunks_exact(float.bytes()).all(|max| read_float(max, float).is_finite())
}
