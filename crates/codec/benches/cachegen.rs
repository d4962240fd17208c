//! What CacheGen and the fp8 cast cost on one core, in bytes of raw data a second: one chunk of 256
//! tokens of 4 layers of 8 heads of 128, of a bell curve whose width differs by channel.
#![allow(clippy::unwrap_used, missing_docs)]

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use kvtier_codec::cachegen::{Bins, CacheGen, KvOrder, KvShape};
use kvtier_codec::{FloatType, Fp8, Fp8Kind};

const SHAPE: KvShape = KvShape { layers: 4, heads: 8, head_size: 128 };
const TOKENS: usize = 256;

/// bfloat16.
fn payload() -> Vec<u8> {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    let channels = SHAPE.heads * SHAPE.head_size;
    let widths: Vec<f32> = (0..channels).map(|_| 0.2 + (next() + 0.5) * 2.0).collect();
    (0..2 * SHAPE.layers * TOKENS)
        .flat_map(|_| widths.clone())
        .map(|width| (0..8).map(|_| next()).sum::<f32>() * width)
        .flat_map(|x| ((x.to_bits() >> 16) as u16).to_le_bytes())
        .collect()
}

fn cachegen(c: &mut Criterion) {
    let raw = payload();
    let bins = Bins::for_layers(SHAPE.layers);
    let codec = CacheGen::new(SHAPE, KvOrder::KeysThenValues, FloatType::Bf16, bins).unwrap();
    let mut stored = vec![0; codec.bound(raw.len()).unwrap()];
    let len = codec.encode(&raw, &mut stored).unwrap();
    let mut group = c.benchmark_group("cachegen");
    group.sample_size(20).throughput(Throughput::Bytes(raw.len() as u64));
    let mut out = stored.clone();
    group.bench_function("encode", |b| b.iter(|| codec.encode(black_box(&raw), &mut out)));
    let mut loaded = vec![0; raw.len()];
    group.bench_function("decode", |b| {
        b.iter(|| codec.decode(black_box(&stored[..len]), &mut loaded))
    });
    group.finish();
}

fn fp8(c: &mut Criterion) {
    let raw = payload();
    let mut group = c.benchmark_group("fp8");
    group.sample_size(20).throughput(Throughput::Bytes(raw.len() as u64));
    for (name, kind) in [("e4m3fn", Fp8Kind::E4M3Fn), ("e5m2", Fp8Kind::E5M2)] {
        let fp8 = Fp8::new(kind, FloatType::Bf16);
        let mut stored = vec![0; fp8.bound(raw.len()).unwrap()];
        group.bench_function(format!("{name}/encode"), |b| {
            b.iter(|| fp8.encode(black_box(&raw), &mut stored))
        });
        let mut loaded = vec![0; raw.len()];
        group.bench_function(format!("{name}/decode"), |b| {
            b.iter(|| fp8.decode(black_box(&stored), &mut loaded))
        });
    }
    group.finish();
}

criterion_group!(benches, cachegen, fp8);
criterion_main!(benches);
