//! How small `bf16-split` makes chunks: within 5 % of what the exponents' entropy allows.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod support;

use kvtier_codec::{Bf16Split, Chunk, ElementType};
use support::{encoded, kv_like, noise};

/// The exponents of all elements.
fn exponents(element: ElementType, raw: &[u8]) -> Vec<u8> {
    let words = raw.as_chunks::<2>().0.iter().map(|word| u16::from_le_bytes(*word));
    match element {
        ElementType::Bf16 => words.map(|word| (word >> 7) as u8).collect(),
        ElementType::Fp16 => words.map(|word| (word >> 10 & 0x1f) as u8).collect(),
        ElementType::Fp8E4M3 => raw.iter().map(|byte| byte >> 3 & 0x0f).collect(),
        _ => raw.iter().map(|byte| byte >> 2 & 0x1f).collect(),
    }
}

/// Bits of entropy of order 0 for each exponent.
fn entropy(exponents: &[u8]) -> f64 {
    let mut counts = [0u32; 256];
    exponents.iter().for_each(|exponent| counts[usize::from(*exponent)] += 1);
    let all = exponents.len() as f64;
    let share = counts.iter().filter(|count| **count > 0).map(|count| f64::from(*count) / all);
    share.map(|share| -share * share.log2()).sum()
}

/// The stored length by the length that the entropy of the exponents and all other bits give.
fn excess(element: ElementType, raw: &[u8]) -> Option<f64> {
    let chunk = Chunk::default().with_element_type(element);
    let stored = encoded(&Bf16Split, &chunk, raw)?;
    let exponents = exponents(element, raw);
    let (exponent_bits, bits) = match element {
        ElementType::Bf16 => (8.0, 16.0),
        ElementType::Fp16 => (5.0, 16.0),
        ElementType::Fp8E4M3 => (4.0, 8.0),
        _ => (5.0, 8.0),
    };
    let ideal = exponents.len() as f64 * (entropy(&exponents) + bits - exponent_bits) / 8.0;
    let ratio = stored.len() as f64 / raw.len() as f64;
    println!(
        "{element:?}: {ratio:.4} of the raw bytes, {:.4} of the ideal",
        stored.len() as f64 / ideal
    );
    Some(stored.len() as f64 / ideal)
}

#[test]
fn kv_like_data_comes_within_five_percent() {
    for element in ElementType::ALL {
        for len in [1 << 16, 1 << 20, 4 << 20] {
            let excess = excess(element, &kv_like(element, len, 5)).unwrap();
            assert!(excess < 1.05, "{element:?} of {len}: {excess}");
        }
    }
}

#[test]
fn one_scale_for_all_channels_comes_within_five_percent() {
    for element in ElementType::ALL {
        let mut raw = Vec::new();
        // Every 1,024th element has the same channel.
        let channel = element_of_one_channel(element);
        while raw.len() < 1 << 20 {
            raw.extend_from_slice(&channel);
        }
        let excess = excess(element, &raw).unwrap();
        assert!(excess < 1.05, "{element:?}: {excess}");
    }
}

/// Keys and values of a model, where `cargo xtask bench kv` has written some.
#[test]
fn keys_and_values_of_a_model_come_within_five_percent() {
    let Some(dump) = std::env::var_os("KVTIER_KV_DUMP") else {
        return println!("skipped: `cargo xtask bench kv` makes keys and values of a model");
    };
    let dump = std::path::PathBuf::from(dump);
    let types = ["bf16", "fp16", "e4m3", "e5m2"];
    for (name, element) in types.into_iter().zip(ElementType::ALL) {
        let raw = std::fs::read(dump.join(name).with_extension("bin")).unwrap();
        let excess = excess(element, &raw).unwrap();
        assert!(excess < 1.05, "{element:?}: {excess}");
    }
}

/// The elements of the first channel.
fn element_of_one_channel(element: ElementType) -> Vec<u8> {
    let size = match element {
        ElementType::Bf16 | ElementType::Fp16 => 2,
        _ => 1,
    };
    let raw = kv_like(element, 16 << 20, 6);
    raw.chunks(size).step_by(1024).flatten().copied().collect()
}

#[test]
fn chunks_that_gain_less_than_five_percent_are_refused() {
    for element in ElementType::ALL {
        let chunk = Chunk::default().with_element_type(element);
        for len in [0, 1, 16, 1000, 100_000, 1 << 20] {
            assert_eq!(encoded(&Bf16Split, &chunk, &noise(len, 1)), None, "{element:?} of {len}");
        }
        for len in [16, 64, 256, 1024, 4096, 16_384] {
            let raw = kv_like(element, len, 2);
            if let Some(stored) = encoded(&Bf16Split, &chunk, &raw) {
                assert!(stored.len() * 20 <= len * 19, "{element:?}: {} of {len}", stored.len());
            }
        }
    }
}
