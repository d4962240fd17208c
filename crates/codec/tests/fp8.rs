//! LMCache's fp8 cast: its own results, and every value against the nearest of all 256.
#![allow(clippy::unwrap_used)]

use kvtier_codec::{ErrorKind, FloatType, Fp8, Fp8Kind};
use serde_json::Value;

#[path = "../../testkit/tests/vectors/load.rs"]
mod load;

const FLOATS: [FloatType; 3] = [FloatType::Bf16, FloatType::Fp16, FloatType::Fp32];

fn hex(value: &Value) -> Vec<u8> {
    let text = value.as_str().unwrap();
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}

fn encoded(fp8: Fp8, raw: &[u8]) -> Vec<u8> {
    let mut out = vec![0; fp8.bound(raw.len()).unwrap()];
    assert_eq!(fp8.encode(raw, &mut out).unwrap(), out.len());
    out
}

fn decoded(fp8: Fp8, stored: &[u8], raw_len: usize) -> Vec<u8> {
    let mut raw = vec![0xee; raw_len];
    fp8.decode(stored, &mut raw).unwrap();
    raw
}

#[test]
fn casts_are_those_of_lmcache() {
    let cases = load::cases("serde_fp8.json");
    assert!(!load::is_committed() || cases.len() == 7);
    for (index, case) in cases.iter().enumerate() {
        let (input, expected) = (&case["in"], &case["out"]["ok"]);
        let dtype = FLOATS.into_iter().find(|float| input["dtype"] == float.torch_name()).unwrap();
        let kind = Fp8Kind::by_torch_name(input["fp8_dtype"].as_str().unwrap()).unwrap();
        let fp8 = Fp8::new(kind, dtype);
        let raw = hex(&input["data_hex"]);
        let stored = hex(&expected["serialized_hex"]);
        assert_eq!(encoded(fp8, &raw), stored, "case {index}");
        assert_eq!(decoded(fp8, &stored, raw.len()), hex(&expected["back_hex"]), "case {index}");
        for size in ["estimate", "written"] {
            let size = &expected[size];
            assert!(size.is_null() || *size == fp8.bound(raw.len()).unwrap(), "case {index}");
        }
    }
}

/// The values of all 128 bytes without a sign.
fn values(kind: Fp8Kind) -> Vec<f32> {
    let bytes: Vec<u8> = (0..128).collect();
    let raw = decoded(Fp8::new(kind, FloatType::Fp32), &bytes, 512);
    raw.chunks_exact(4).map(|x| f32::from_le_bytes(x.try_into().unwrap())).collect()
}

#[test]
fn every_value_rounds_to_the_nearest_half_to_even() {
    for (kind, finite) in [(Fp8Kind::E4M3Fn, 0x7e), (Fp8Kind::E5M2, 0x7b)] {
        let values = values(kind);
        assert!(values[..=finite].windows(2).all(|pair| pair[0] < pair[1]));
        let mut inputs = vec![];
        for (byte, pair) in (0u8..).zip(values[..=finite].windows(2)) {
            // Exact in 32 bits.
            let middle = (pair[0] + pair[1]) / 2.0;
            let even = byte + (byte & 1);
            inputs.extend([(pair[0], byte), (middle, even), (-middle, even | 0x80)]);
            inputs.push((f32::from_bits(middle.to_bits() - 1), byte));
            inputs.push((f32::from_bits(middle.to_bits() + 1), byte + 1));
        }
        let raw: Vec<u8> = inputs.iter().flat_map(|(x, _)| x.to_le_bytes()).collect();
        let expected: Vec<u8> = inputs.iter().map(|(_, byte)| *byte).collect();
        assert_eq!(encoded(Fp8::new(kind, FloatType::Fp32), &raw), expected, "{kind:?}");
    }
}

#[test]
fn all_halves_cast_as_their_floats_do() {
    for kind in [Fp8Kind::E4M3Fn, Fp8Kind::E5M2] {
        let bits: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        let wide: Vec<u8> =
            (0..=u16::MAX).flat_map(|bits| (u32::from(bits) << 16).to_le_bytes()).collect();
        assert_eq!(
            encoded(Fp8::new(kind, FloatType::Bf16), &bits),
            encoded(Fp8::new(kind, FloatType::Fp32), &wide)
        );
        // What is cast already stays as it is, in every type.
        let all: Vec<u8> = (0..=255).collect();
        for dtype in FLOATS {
            let fp8 = Fp8::new(kind, dtype);
            let raw = decoded(fp8, &all, 256 * dtype.bytes());
            for (byte, again) in all.iter().zip(encoded(fp8, &raw)) {
                let nan = byte & 0x7f > if kind == Fp8Kind::E5M2 { 0x7c } else { 0x7e };
                assert!(
                    *byte == again || nan && again & 0x7f == 0x7f,
                    "{kind:?} {dtype:?} {byte:#x}"
                );
            }
        }
    }
}

#[test]
fn other_lengths_are_errors() {
    let fp8 = Fp8::new(Fp8Kind::E4M3Fn, FloatType::Bf16);
    assert_eq!(fp8.bound(3).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(fp8.encode(&[0; 4], &mut [0; 1]).unwrap_err().kind(), ErrorKind::Invalid);
    for (stored, raw) in [(1, 4), (3, 4), (2, 5), (0, 2)] {
        let error = fp8.decode(&vec![0; stored], &mut vec![0; raw]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
    }
    fp8.decode(&[], &mut []).unwrap();
    assert!(Fp8Kind::by_torch_name("float8_e4m3fnuz").is_err());
}
