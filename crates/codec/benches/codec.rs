//! What stages cost: raw bytes a second on one core, both ways, for chunks of 16 MiB. The cipher of
//! the library alone stands beside our stage.
#![allow(clippy::unwrap_used, missing_docs)]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use kvtier_codec::{
    Aes256Gcm, Bf16Split, Chunk, ElementType, Keyring, Lz4, MasterKey, Scratch, Stage, Zstd,
};

#[path = "../tests/support/mod.rs"]
mod support;

const CHUNK_LEN: usize = 16 << 20;

fn both_ways(c: &mut Criterion, name: &str, stage: &dyn Stage, element: ElementType, raw: &[u8]) {
    let chunk = Chunk::default().with_element_type(element).with_tenant(b"tenant");
    let mut scratch = Scratch::new();
    let mut out = vec![0; stage.bound(raw.len()).unwrap()];
    let mut back = vec![0; raw.len()];
    let mut group = c.benchmark_group(name);
    group.throughput(Throughput::Bytes(raw.len() as u64));
    group.bench_function("encode", |b| {
        b.iter(|| stage.encode(&chunk, &[black_box(raw)], &mut out, &mut scratch).unwrap());
    });
    if let Some(len) = stage.encode(&chunk, &[raw], &mut out, &mut scratch).unwrap() {
        group.bench_function("decode", |b| {
            b.iter(|| {
                stage.decode(&chunk, &out[..len], &mut [&mut back], &mut scratch).unwrap();
            });
        });
    }
    group.finish();
}

fn split(c: &mut Criterion) {
    for element in ElementType::ALL {
        let raw = support::kv_like(element, CHUNK_LEN, 1);
        both_ways(c, &format!("bf16-split {element:?}"), &Bf16Split, element, &raw);
    }
}

fn general(c: &mut Criterion) {
    let element = ElementType::Bf16;
    let raw = support::kv_like(element, CHUNK_LEN, 1);
    both_ways(c, "lz4", &Lz4, element, &raw);
    both_ways(c, "zstd:1", &Zstd::default(), element, &raw);
    both_ways(c, "zstd:3", &Zstd::with_level(3).unwrap(), element, &raw);
}

fn encryption(c: &mut Criterion) {
    let raw = support::noise(CHUNK_LEN, 1);
    let keys = Arc::new(Keyring::new());
    keys.insert(MasterKey::new(1, &[7; 32]).unwrap());
    both_ways(c, "aes-256-gcm", &Aes256Gcm::new(keys, 1), ElementType::Bf16, &raw);

    let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &[7; 32]).unwrap());
    let nonce = || Nonce::assume_unique_for_key([1; 12]);
    let (mut ciphertext, mut tag) = (vec![0; raw.len()], [0; 16]);
    let mut group = c.benchmark_group("aes-256-gcm of the library alone");
    group.throughput(Throughput::Bytes(raw.len() as u64));
    group.bench_function("encode", |b| {
        b.iter(|| {
            let to = (&mut ciphertext, &mut tag);
            let raw = black_box(&raw);
            key.seal_out_of_place_scatter(nonce(), Aad::empty(), raw, to.0, &[], to.1).unwrap();
        });
    });
    let mut back = vec![0; raw.len()];
    group.bench_function("decode", |b| {
        b.iter(|| {
            let from = black_box(&ciphertext);
            key.open_separate_gather(nonce(), Aad::empty(), from, &tag, &mut back).unwrap();
        });
    });
    group.finish();
}

fn quick() -> Criterion {
    Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
}

criterion_group! { name = benches; config = quick(); targets = split, general, encryption }
criterion_main!(benches);
