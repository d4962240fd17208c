//! What keys cost: names both ways, digests, hash chains in tokens a second, facts records,
//! checksums in bytes a second.
#![allow(clippy::unwrap_used, missing_docs)]

use std::hint::black_box;
use std::num::NonZeroUsize;
use std::sync::Arc;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use kvtier_key::hash::{Algorithm, Chunking, HashChain};
use kvtier_key::names::NameForm;
use kvtier_key::{
    BlockSums, CacheEngineKey, DType, Digest, EngineHash, Facts, Key, KeyId, Namespace, ObjectKey,
    PyInt,
};

const MODEL: &str = "meta-llama/Llama-3.1-8B-Instruct";

fn object() -> ObjectKey {
    let name = format!("{MODEL}@08050401@0@{}", "a5".repeat(32));
    ObjectKey::from_native_name(&name).unwrap()
}

fn engine() -> CacheEngineKey {
    CacheEngineKey::new(
        MODEL,
        8,
        5,
        EngineHash::Int(PyInt::from(-0x1a2b_3c4d_5e6f_7788i64)),
        DType::BFloat16,
    )
    .unwrap()
}

fn names(c: &mut Criterion) {
    let object = object();
    let engine = engine();
    let mut group = c.benchmark_group("name");
    let native = object.native_name().unwrap();
    group.bench_function("native/format", |b| b.iter(|| black_box(&object).native_name()));
    group.bench_function("native/parse", |b| {
        b.iter(|| ObjectKey::from_native_name(black_box(&native)))
    });
    let fs = object.fs_name().unwrap();
    group.bench_function("fs/format", |b| b.iter(|| black_box(&object).fs_name()));
    group.bench_function("fs/parse", |b| b.iter(|| ObjectKey::from_fs_name(black_box(&fs))));
    let text = engine.text();
    group.bench_function("text/format", |b| b.iter(|| black_box(&engine).text()));
    group.bench_function("text/parse", |b| b.iter(|| KeyId::from_engine_text(black_box(&text))));
    let gds = NameForm::Gds { weka: false, sidecar: false };
    let id = KeyId::Engine(engine);
    group.bench_function("gds/format", |b| b.iter(|| gds.format_lossy(black_box(&id))));
    group.bench_function("gds/format strictly", |b| b.iter(|| gds.format(black_box(&id))));
    group.finish();
}

fn digests(c: &mut Criterion) {
    let namespace = Arc::new(Namespace::new("tenant", Digest([7; 32])));
    let id = KeyId::Object(object());
    c.bench_function("key/new", |b| b.iter(|| Key::new(namespace.clone(), black_box(&id).clone())));
}

fn chains(c: &mut Criterion) {
    let tokens: Vec<u32> = (0..16_384u32).map(|i| i.wrapping_mul(0x9e37_79b9) % 150_000).collect();
    let cut = Chunking::full(NonZeroUsize::new(256).unwrap());
    let mut group = c.benchmark_group("chain");
    group.throughput(Throughput::Elements(tokens.len() as u64));
    for algorithm in
        [Algorithm::Blake3, Algorithm::Sha256Cbor, Algorithm::Sha256Cbor64, Algorithm::Builtin]
    {
        group.bench_function(algorithm.name(), |b| {
            b.iter(|| {
                HashChain::start(algorithm, Some("0"))
                    .unwrap()
                    .chunks(black_box(&tokens), cut)
                    .unwrap()
            });
        });
    }
    group.finish();
}

fn facts(c: &mut Criterion) {
    let payload: Vec<u8> =
        (0..4u32 << 20).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 24) as u8).collect();
    let facts = Facts::plain(Digest([1; 32]), Digest([2; 32]), BlockSums::from_bytes(&payload))
        .with_parent(Digest([3; 32]), 9);
    let bytes = facts.encode();
    c.bench_function("facts/encode", |b| b.iter(|| black_box(&facts).encode()));
    c.bench_function("facts/decode", |b| b.iter(|| Facts::decode(black_box(&bytes))));
    let mut group = c.benchmark_group("sums");
    group.throughput(Throughput::Bytes(payload.len() as u64));
    group.bench_function("4 MiB", |b| b.iter(|| BlockSums::from_bytes(black_box(&payload))));
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20).warm_up_time(std::time::Duration::from_millis(300))
        .measurement_time(std::time::Duration::from_secs(1));
    targets = names, digests, chains, facts
}
criterion_main!(benches);
