//! Takes fp8 elements apart into pairs of exponents and rest bits (signs and mantissas), and puts
//! them together again. Plain loops that the compiler vectorises.

use super::element_planes::{merge_high_bytes, pack_high_bytes};
use crate::ElementType;

/// A type of fp8 elements. Their symbols are exponents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fp8 {
    E4M3,
    E5M2,
}

/// The most symbols that a type has.
pub(super) const SYMBOLS_MAX: usize = 1 << 5;

/// The bits below a pair of symbols: what is left of a word's budget fits them.
pub(super) const PAIR_SHIFT: u32 = 6;

impl Fp8 {
    pub(super) fn from_element(element: ElementType) -> Option<Self> {
        match element {
            ElementType::Fp8E4M3 => Some(Fp8::E4M3),
            ElementType::Fp8E5M2 => Some(Fp8::E5M2),
            ElementType::Bf16 | ElementType::Fp16 => None,
        }
    }

    pub(super) fn exponent_bits(self) -> u32 {
        match self {
            Fp8::E4M3 => 4,
            Fp8::E5M2 => 5,
        }
    }

    /// How far an exponent stands above the lowest bit of its element.
    pub(super) fn mantissa_bits(self) -> u32 {
        7 - self.exponent_bits()
    }

    pub(super) fn symbols(self) -> usize {
        1 << self.exponent_bits()
    }

    /// The bytes that the rest bits of `elements` elements take, which are a multiple of eight.
    pub(super) fn rest_len(self, elements: usize) -> usize {
        match self {
            Fp8::E4M3 => elements / 2,
            Fp8::E5M2 => elements / 4 + elements / 8,
        }
    }

    /// Splits one run of `raw` elements into `pairs` and rest bits. A pair has the exponent of the
    /// second element above that of the first one, and `PAIR_SHIFT` zeros below both.
    pub(super) fn split(self, raw: &[u8], pairs: &mut [u16], rest: &mut [u8]) {
        let words = raw.as_chunks().0.iter().map(|word| u16::from_le_bytes(*word));
        let words = words.zip(pairs);
        match self {
            Fp8::E4M3 => {
                words.for_each(|(word, pair)| *pair = (word << 3 & 0x3c0) | (word >> 1 & 0x3c00));
                pack_e4m3(raw, rest);
            }
            Fp8::E5M2 => {
                words.for_each(|(word, pair)| *pair = (word << 4 & 0x7c0) | (word << 1 & 0xf800));
                pack_high_bytes(raw, rest);
            }
        }
    }

    /// Puts one run together again. The exponents stand where they do in elements.
    pub(super) fn merge(self, exponents: &[u8], rest: &[u8], raw: &mut [u8]) {
        match self {
            Fp8::E4M3 => merge_e4m3(exponents, rest, raw),
            Fp8::E5M2 => merge_high_bytes::<0>(exponents, rest, raw),
        }
    }
}

/// Each byte has the bits of an element of the first half where they are, and those of an element
/// of the second half turned by four bits.
fn pack_e4m3(raw: &[u8], rest: &mut [u8]) {
    let (first, second) = raw.split_at(raw.len() / 2);
    for ((to, a), b) in rest.iter_mut().zip(first).zip(second) {
        *to = (a & 0x87) | (b << 4 & 0x70) | (b >> 4 & 0x08);
    }
}

fn merge_e4m3(exponents: &[u8], rest: &[u8], raw: &mut [u8]) {
    let (first, second) = raw.split_at_mut(exponents.len() / 2);
    let (low, high) = exponents.split_at(first.len());
    let halves = first.iter_mut().zip(second).zip(low).zip(high);
    for ((((a, b), low), high), rest) in halves.zip(rest) {
        *a = low | (rest & 0x87);
        *b = high | (rest >> 4 & 0x07) | (rest << 4 & 0x80);
    }
}
