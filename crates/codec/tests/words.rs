//! fp8 elements as words: any distribution comes back, and words are used where they pay.
#![allow(clippy::unwrap_used)]

mod support;

use kvtier_codec::{Bf16Split, Chunk, ElementType};
use support::{decoded, encoded, kv_like};

const TYPES: [ElementType; 2] = [ElementType::Fp8E4M3, ElementType::Fp8E5M2];

/// The form of the first block, after a round trip. Nothing where the chunk is refused.
fn form(element: ElementType, raw: &[u8]) -> Option<u8> {
    let chunk = Chunk::default().with_element_type(element);
    let stored = encoded(&Bf16Split, &chunk, raw)?;
    assert_eq!(stored[1], 2);
    assert!(decoded(&Bf16Split, &chunk, &stored, raw.len()).unwrap() == raw, "other bytes");
    Some(stored[16])
}

/// An element with this exponent and random other bits.
fn with_exponent(element: ElementType, exponent: u8, random: &mut fastrand::Rng) -> u8 {
    match element {
        ElementType::Fp8E4M3 => random.u8(..) & 0x87 | exponent << 3 & 0x78,
        _ => random.u8(..) & 0x83 | exponent << 2 & 0x7c,
    }
}

#[test]
fn kv_data_becomes_words() {
    for element in TYPES {
        for len in [1504, 8192, 8208, 24_576, 24_592, 100_000, 524_288, 524_304, 1_100_007] {
            assert_eq!(form(element, &kv_like(element, len, 3)), Some(3), "{element:?} of {len}");
        }
    }
}

/// Only a part of a large block is counted. Symbols that occur in the others alone are words too,
/// also two in a sequence.
#[test]
fn symbols_beside_the_sample_come_back() {
    let mut random = fastrand::Rng::with_seed(1);
    for element in TYPES {
        let mut raw = kv_like(element, 300_000, 4);
        // After the first 128 elements of each 912, which are counted.
        for at in (500..300_000).step_by(4 * 912).flat_map(|from| from..from + 12) {
            raw[at] = with_exponent(element, random.u8(..), &mut random);
        }
        assert_eq!(form(element, &raw), Some(3), "{element:?}");
    }
}

#[test]
fn any_distribution_comes_back() {
    let mut random = fastrand::Rng::with_seed(2);
    let mut forms = [0; 4];
    for round in 0..200 {
        let element = TYPES[round % 2];
        // Exponents by the powers of random numbers: from even to nearly always the same.
        let power = random.f32() * 8.0;
        let symbols = random.u8(1..=32);
        let len = random.usize(16..40_000);
        let raw: Vec<u8> = (0..len)
            .map(|_| {
                let exponent = random.f32().powf(power) * f32::from(symbols);
                with_exponent(element, exponent as u8, &mut random)
            })
            .collect();
        if let Some(form) = form(element, &raw) {
            forms[usize::from(form)] += 1;
        }
    }
    assert!(forms[2] > 10 && forms[3] > 10, "{forms:?}");
}

/// A word has at most seven symbols: where exponents are nearly all equal, codes are shorter.
#[test]
fn nearly_equal_exponents_become_codes() {
    let mut random = fastrand::Rng::with_seed(3);
    for element in TYPES {
        let raw: Vec<u8> = (0..100_000)
            .map(|_| {
                let exponent = if random.u8(..) < 20 { 9 } else { 7 };
                with_exponent(element, exponent, &mut random)
            })
            .collect();
        assert_eq!(form(element, &raw), Some(2), "{element:?}");
    }
}

#[test]
fn equal_exponents_are_constant() {
    let mut random = fastrand::Rng::with_seed(4);
    for element in TYPES {
        let raw: Vec<u8> = (0..600_000).map(|_| with_exponent(element, 7, &mut random)).collect();
        assert_eq!(form(element, &raw), Some(1), "{element:?}");
    }
}
