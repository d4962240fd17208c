//! Takes floating-point elements apart into symbols (mostly exponents) and rest bits (signs and
//! mantissas), and puts them together again. Plain loops that the compiler vectorises.

use crate::ElementType;

/// Raw bytes are taken apart in multiples of this; fewer at the end are stored unchanged.
pub(super) const GRANULE: usize = 16;

impl ElementType {
    /// The raw bytes of one symbol.
    pub(super) fn bytes_per_symbol(self) -> usize {
        match self {
            ElementType::Bf16 | ElementType::Fp16 | ElementType::Fp8E4M3 => 2,
            ElementType::Fp8E5M2 => 1,
        }
    }

    /// The bytes that the rest bits of `symbols` symbols take, which are a multiple of eight.
    pub(super) fn rest_len(self, symbols: usize) -> usize {
        match self {
            ElementType::Bf16 | ElementType::Fp8E4M3 => symbols,
            ElementType::Fp16 => symbols + symbols / 4 + symbols / 8,
            ElementType::Fp8E5M2 => symbols / 4 + symbols / 8,
        }
    }

    /// Splits one run of `raw` elements into `symbols` and rest bits.
    pub(super) fn split(self, raw: &[u8], symbols: &mut [u8], rest: &mut [u8]) {
        match self {
            ElementType::Bf16 => split_words(raw, symbols, rest, |word| {
                let rest = (word & 0x7f) | (word >> 8 & 0x80);
                ((word >> 7) as u8, rest as u8)
            }),
            ElementType::Fp16 => split_fp16(raw, symbols, rest),
            // Two elements: both exponents; both signs and mantissas.
            ElementType::Fp8E4M3 => split_words(raw, symbols, rest, |word| {
                let exponents = (word >> 3 & 0x0f) | (word >> 7 & 0xf0);
                let rest = (word & 0x07) | (word >> 4 & 0x78) | (word >> 8 & 0x80);
                (exponents as u8, rest as u8)
            }),
            ElementType::Fp8E5M2 => split_e5m2(raw, symbols, rest),
        }
    }

    /// Puts one run of `symbols` and rest bits together again.
    pub(super) fn merge(self, symbols: &[u8], rest: &[u8], raw: &mut [u8]) {
        match self {
            ElementType::Bf16 => merge_words(symbols, rest, raw, |symbol, rest| {
                symbol << 7 | (rest & 0x7f) | (rest & 0x80) << 8
            }),
            ElementType::Fp16 => merge_fp16(symbols, rest, raw),
            ElementType::Fp8E4M3 => merge_e4m3(symbols, rest, raw),
            ElementType::Fp8E5M2 => merge_e5m2(symbols, rest, raw),
        }
    }
}

fn split_words(
    raw: &[u8],
    symbols: &mut [u8],
    rest: &mut [u8],
    take_apart: impl Fn(u16) -> (u8, u8),
) {
    let words = raw.as_chunks().0;
    for ((word, symbol), rest) in words.iter().zip(symbols).zip(rest) {
        (*symbol, *rest) = take_apart(u16::from_le_bytes(*word));
    }
}

fn merge_words(symbols: &[u8], rest: &[u8], raw: &mut [u8], put: impl Fn(u16, u16) -> u16) {
    let words = raw.as_chunks_mut().0;
    for ((word, symbol), rest) in words.iter_mut().zip(symbols).zip(rest) {
        *word = put((*symbol).into(), (*rest).into()).to_le_bytes();
    }
}

/// Byte by byte: twice as many fit a vector.
fn merge_e4m3(symbols: &[u8], rest: &[u8], raw: &mut [u8]) {
    let pairs = raw.as_chunks_mut().0;
    for (([low, high], symbol), rest) in pairs.iter_mut().zip(symbols).zip(rest) {
        *low = (symbol & 0x0f) << 3 | (rest & 0x07) | (rest & 0x08) << 4;
        *high = (symbol & 0xf0) >> 1 | (rest >> 4 & 0x07) | (rest & 0x80);
    }
}

/// The low bytes, and then what an e5m2 element has, of the high bytes.
fn split_fp16(raw: &[u8], symbols: &mut [u8], rest: &mut [u8]) {
    let elements = raw.as_chunks::<2>().0;
    let (low_bytes, packed) = rest.split_at_mut(elements.len());
    for (([low, high], symbol), to) in elements.iter().zip(symbols).zip(low_bytes) {
        (*symbol, *to) = (high >> 2 & 0x1f, *low);
    }
    pack_mantissas_and_signs(elements, |[_, high]| *high, packed);
}

fn merge_fp16(symbols: &[u8], rest: &[u8], raw: &mut [u8]) {
    let elements = raw.as_chunks_mut::<2>().0;
    let (low_bytes, packed) = rest.split_at(elements.len());
    let (mantissas, signs) = packed.split_at(elements.len() / 4);
    let quarter = (elements.len() / 4).max(1);
    let from = symbols.chunks_exact(quarter).zip(low_bytes.chunks_exact(quarter));
    for (nth, (elements, from)) in elements.chunks_exact_mut(quarter).zip(from).enumerate() {
        let from = from.0.iter().zip(from.1).zip(mantissas);
        for (element, ((symbol, low), packed)) in elements.iter_mut().zip(from) {
            let mantissa = u16::from(packed >> (2 * nth) & 3);
            let word = u16::from(*symbol) << 10 | mantissa << 8 | u16::from(*low);
            *element = word.to_le_bytes();
        }
    }
    let eighth = (elements.len() / 8).max(1);
    for (nth, elements) in elements.chunks_exact_mut(eighth).enumerate() {
        for (element, packed) in elements.iter_mut().zip(signs) {
            let sign = u16::from(packed >> nth) << 15;
            *element = (u16::from_le_bytes(*element) | sign).to_le_bytes();
        }
    }
}

fn split_e5m2(raw: &[u8], symbols: &mut [u8], rest: &mut [u8]) {
    for (symbol, byte) in symbols.iter_mut().zip(raw) {
        *symbol = byte >> 2 & 0x1f;
    }
    pack_mantissas_and_signs(raw, |byte| *byte, rest);
}

/// Of bytes with a sign, five bits of exponent and two of mantissa: the mantissas of the four
/// quarters of a run share bytes, and the signs of its eight eighths.
fn pack_mantissas_and_signs<T>(elements: &[T], byte: impl Fn(&T) -> u8, packed: &mut [u8]) {
    packed.fill(0);
    let (mantissas, signs) = packed.split_at_mut(elements.len() / 4);
    for (nth, quarter) in elements.chunks_exact((elements.len() / 4).max(1)).enumerate() {
        for (packed, element) in mantissas.iter_mut().zip(quarter) {
            *packed |= (byte(element) & 3) << (2 * nth);
        }
    }
    for (nth, eighth) in elements.chunks_exact((elements.len() / 8).max(1)).enumerate() {
        for (packed, element) in signs.iter_mut().zip(eighth) {
            *packed |= byte(element) >> 7 << nth;
        }
    }
}

fn merge_e5m2(symbols: &[u8], rest: &[u8], raw: &mut [u8]) {
    let (mantissas, signs) = rest.split_at(raw.len() / 4);
    let quarter = (raw.len() / 4).max(1);
    let quarters = raw.chunks_exact_mut(quarter).zip(symbols.chunks_exact(quarter));
    for (nth, (raw, symbols)) in quarters.enumerate() {
        for ((byte, symbol), packed) in raw.iter_mut().zip(symbols).zip(mantissas) {
            *byte = symbol << 2 | (packed >> (2 * nth) & 3);
        }
    }
    let eighth = (raw.len() / 8).max(1);
    for (nth, raw) in raw.chunks_exact_mut(eighth).enumerate() {
        for (byte, packed) in raw.iter_mut().zip(signs) {
            *byte |= packed >> nth << 7;
        }
    }
}
