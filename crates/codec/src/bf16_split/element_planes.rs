//! Takes floating-point elements apart into symbols (mostly exponents) and rest bits (signs and
//! mantissas), and puts them together again. Plain loops that the compiler vectorises.

use crate::ElementType;

/// Raw bytes are taken apart in multiples of this; fewer at the end are stored unchanged.
pub(super) const GRANULE: usize = 16;

/// The most symbols of a run.
pub(super) const RUN_SYMBOLS: usize = 1 << 13;

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
            ElementType::Fp8E5M2 => merge_high_bytes::<2>(symbols, rest, raw),
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

/// The low bytes, and then the rest bits of the high bytes.
fn split_fp16(raw: &[u8], symbols: &mut [u8], rest: &mut [u8]) {
    let (low_bytes, packed) = rest.split_at_mut(symbols.len());
    split_words(raw, symbols, low_bytes, |word| ((word >> 8) as u8, word as u8));
    split_high_bytes(symbols, packed);
}

fn merge_fp16(symbols: &[u8], rest: &[u8], raw: &mut [u8]) {
    let (low_bytes, packed) = rest.split_at(symbols.len());
    let mut high_bytes = [0; RUN_SYMBOLS];
    let high_bytes = &mut high_bytes[..symbols.len()];
    merge_high_bytes::<2>(symbols, packed, high_bytes);
    let elements = raw.as_chunks_mut::<2>().0;
    for ((element, low), high) in elements.iter_mut().zip(low_bytes).zip(high_bytes) {
        *element = [*low, *high];
    }
}

fn split_e5m2(raw: &[u8], symbols: &mut [u8], rest: &mut [u8]) {
    symbols.copy_from_slice(raw);
    split_high_bytes(symbols, rest);
}

/// Bytes with a sign, five bits of exponent and two of mantissa become exponents.
fn split_high_bytes(bytes: &mut [u8], packed: &mut [u8]) {
    pack_high_bytes(bytes, packed);
    for byte in bytes {
        *byte = *byte >> 2 & 0x1f;
    }
}

/// The mantissas of the four quarters of a run of high bytes share bytes in `packed`, and then the
/// signs of its eight eighths.
pub(super) fn pack_high_bytes(bytes: &[u8], packed: &mut [u8]) {
    let (mantissas, signs) = packed.split_at_mut(bytes.len() / 4);
    let (first, second) = bytes.split_at(bytes.len() / 2);
    let ((a, b), (c, d)) = (first.split_at(first.len() / 2), second.split_at(second.len() / 2));
    for ((((to, a), b), c), d) in mantissas.iter_mut().zip(a).zip(b).zip(c).zip(d) {
        *to = (a & 3) | (b & 3) << 2 | (c & 3) << 4 | (d & 3) << 6;
    }
    // All shifts are constant: others are slow on vectors of bytes.
    let eighth = signs.len();
    let eighths: [&[u8]; 8] = std::array::from_fn(|nth| &bytes[nth * eighth..][..eighth]);
    for (at, to) in signs.iter_mut().enumerate() {
        let sign = |nth: usize| eighths[nth][at] >> 7 << nth;
        *to = sign(0) | sign(1) | sign(2) | sign(3) | sign(4) | sign(5) | sign(6) | sign(7);
    }
}

/// Puts a run of high bytes together again. `SHIFT` moves a symbol to where it stands in them.
pub(super) fn merge_high_bytes<const SHIFT: u32>(symbols: &[u8], packed: &[u8], bytes: &mut [u8]) {
    let eighth = symbols.len() / 8;
    if eighth == 0 {
        return;
    }
    let (mantissas, signs) = packed.split_at(2 * eighth);
    let mantissas = mantissas.chunks_exact(eighth).cycle();
    let parts = bytes.chunks_exact_mut(eighth).zip(symbols.chunks_exact(eighth)).zip(mantissas);
    for (nth, ((bytes, symbols), mantissas)) in parts.enumerate() {
        let eighth = Eighth { symbols, mantissas, signs };
        match nth {
            0 => eighth.merge::<0, SHIFT>(bytes),
            1 => eighth.merge::<1, SHIFT>(bytes),
            2 => eighth.merge::<2, SHIFT>(bytes),
            3 => eighth.merge::<3, SHIFT>(bytes),
            4 => eighth.merge::<4, SHIFT>(bytes),
            5 => eighth.merge::<5, SHIFT>(bytes),
            6 => eighth.merge::<6, SHIFT>(bytes),
            _ => eighth.merge::<7, SHIFT>(bytes),
        }
    }
}

/// What one eighth of a run of high bytes is made of.
struct Eighth<'a> {
    symbols: &'a [u8],
    mantissas: &'a [u8],
    signs: &'a [u8],
}

impl Eighth<'_> {
    fn merge<const NTH: usize, const SHIFT: u32>(&self, bytes: &mut [u8]) {
        let from = self.symbols.iter().zip(self.mantissas).zip(self.signs);
        for (byte, ((symbol, mantissas), signs)) in bytes.iter_mut().zip(from) {
            let mantissa = mantissas >> (NTH / 2 * 2) & 3;
            *byte = symbol << SHIFT | mantissa | signs >> NTH << 7;
        }
    }
}
