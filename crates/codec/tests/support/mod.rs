//! Chunks to encode: elements of every type, with the exponents of KV data or of other data.
#![allow(dead_code)]

use kvtier_codec::{Chunk, ElementType, Error, Scratch, Stage};

/// Every length that means something to a stage: nothing, parts of elements, runs, segments, blocks
/// and their neighbouring lengths.
pub const LENGTHS: [usize; 20] = [
    0, 1, 2, 15, 16, 17, 31, 32, 127, 128, 1000, 4096, 65_535, 65_536, 65_538, 70_001, 262_144,
    524_288, 524_304, 1_200_003,
];

/// A number of the normal distribution.
pub fn gaussian(random: &mut fastrand::Rng) -> f32 {
    let radius = (-2.0 * random.f32().max(1e-9).ln()).sqrt();
    radius * (std::f32::consts::TAU * random.f32()).cos()
}

/// Elements of a normal distribution, each of 1,024 channels with a scale of its own, as KV data has.
pub fn kv_like(element: ElementType, len: usize, seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let scales: Vec<f32> = (0..1024).map(|_| (0.8 * gaussian(&mut random)).exp()).collect();
    let mut bytes = Vec::with_capacity(len + 2);
    for channel in scales.iter().cycle() {
        if bytes.len() >= len {
            break;
        }
        push(element, channel * gaussian(&mut random), &mut bytes);
    }
    bytes.truncate(len);
    bytes
}

/// Appends `value` as an element: cut and not rounded, subnormal numbers as they come.
fn push(element: ElementType, value: f32, bytes: &mut Vec<u8>) {
    let bits = value.to_bits();
    let (sign, exponent) = (bits >> 31, (bits >> 23 & 0xff) as i32);
    let rebias = |bias: i32, max: i32| (exponent - 127 + bias).clamp(0, max) as u32;
    match element {
        ElementType::Bf16 => bytes.extend(((bits >> 16) as u16).to_le_bytes()),
        ElementType::Fp16 => {
            let half = sign << 15 | rebias(15, 30) << 10 | (bits >> 13 & 0x3ff);
            bytes.extend((half as u16).to_le_bytes());
        }
        ElementType::Fp8E4M3 => {
            bytes.push((sign << 7 | rebias(7, 15) << 3 | (bits >> 20 & 7)) as u8);
        }
        _ => bytes.push((sign << 7 | rebias(15, 30) << 2 | (bits >> 21 & 3)) as u8),
    }
}

/// Random bytes.
pub fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

/// What `stage` makes of `raw`; nothing where it refuses.
pub fn encoded(stage: &dyn Stage, chunk: &Chunk<'_>, raw: &[u8]) -> Option<Vec<u8>> {
    let mut out = vec![0; stage.bound(raw.len()).unwrap()];
    let len = stage.encode(chunk, &[raw], &mut out, &mut Scratch::new()).unwrap()?;
    out.truncate(len);
    Some(out)
}

/// What `stage` makes of `stored` for `raw_len` raw bytes, and that it writes no others.
pub fn decoded(
    stage: &dyn Stage,
    chunk: &Chunk<'_>,
    stored: &[u8],
    raw_len: usize,
) -> Result<Vec<u8>, Error> {
    let mut memory = vec![0xee; raw_len + 64];
    let outcome = {
        let raw = &mut memory[32..32 + raw_len];
        stage.decode(chunk, stored, &mut [raw], &mut Scratch::new())
    };
    let around = memory[..32].iter().chain(&memory[32 + raw_len..]);
    assert!(around.copied().all(|byte| byte == 0xee), "bytes beside the buffer were written");
    outcome.map(|()| memory[32..32 + raw_len].to_vec())
}
