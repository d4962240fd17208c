//! What the index costs at 1,000,000 entries: nanoseconds a call, at random keys, so mostly out of
//! the CPU's caches.
use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use kvtier_evict::{Policy, PolicyKind, SlotInfo};
use kvtier_index::{Chunk, Index, IndexConfig, InsertOutcome, Reserve};
use kvtier_key::Digest;

const ENTRIES: u64 = 1_000_000;
const BYTES: u64 = 1 << 20;

/// The `n`th key: as uniform as a real digest.
fn key(n: u64) -> Digest {
    let mut bytes = [0; 32];
    for (i, part) in bytes.chunks_exact_mut(8).enumerate() {
        part.copy_from_slice(&mix(n * 4 + i as u64).to_le_bytes());
    }
    Digest(bytes)
}

fn mix(n: u64) -> u64 {
    let z = n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn full() -> Index {
    let config = IndexConfig::new(ENTRIES * BYTES).with_high_mark(1.0);
    let mut index =
        Index::new(config, PolicyKind::Lru.build()).expect("the configuration is valid");
    for n in 0..ENTRIES {
        assert!(matches!(index.insert(Chunk::new(key(n), BYTES, BYTES)), InsertOutcome::New(_)));
    }
    index
}

fn save(index: &mut Index, digest: Digest) -> InsertOutcome {
    loop {
        match index.reserve(0, BYTES) {
            Reserve::Granted(reservation) => {
                return index.commit(reservation, Chunk::new(digest, BYTES, BYTES));
            }
            Reserve::Evict(victims) => {
                victims.iter().for_each(|v| assert!(index.finish_evict(&v.chunk.digest)))
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Times `each` on keys that were made beforehand, so that making them is not measured.
fn timed<T>(
    keys: impl Iterator<Item = u64>,
    calls: u64,
    mut each: impl FnMut(Digest) -> T,
) -> Duration {
    let keys: Vec<Digest> = keys.take(calls as usize).map(key).collect();
    let start = Instant::now();
    for key in keys {
        black_box(each(key));
    }
    start.elapsed()
}

fn random() -> impl Iterator<Item = u64> {
    (0u64..).map(|n| mix(!n) % ENTRIES)
}

fn index(c: &mut Criterion) {
    let mut index = full();
    eprint_bytes(&index);
    let mut group = c.benchmark_group("index");
    group.sample_size(20).throughput(Throughput::Elements(1));
    group.bench_function("get, hit", |b| b.iter_custom(|n| timed(random(), n, |k| index.get(&k))));
    group.bench_function("get, miss", |b| {
        b.iter_custom(|n| timed((0..).map(|k| k + (1 << 40)), n, |k| index.get(&k)))
    });
    group.bench_function("touch", |b| {
        b.iter_custom(|n| timed(random(), n, |k| index.touch_batch(&[k])))
    });
    group.bench_function("hold and release", |b| {
        b.iter_custom(|n| {
            timed(random(), n, |k| {
                let hold = index.hold(&[k], 1).expect("there is one hold at a time");
                index.release(hold);
            })
        })
    });
    for count in [1, 64, 4096] {
        let keys: Vec<Digest> = random().take(count).map(key).collect();
        group.throughput(Throughput::Elements(count as u64));
        group.bench_function(format!("hold {count}, give back by keys"), |b| {
            b.iter(|| {
                let hold = index.hold(&keys, 1).expect("there is one hold at a time");
                index.release_keys(hold, &keys);
            })
        });
    }
    group.throughput(Throughput::Elements(1));
    let mut fresh = ENTRIES..;
    group.bench_function("save that evicts", |b| {
        b.iter_custom(|n| timed(fresh.by_ref(), n, |k| save(&mut index, k)))
    });
    group.finish();
    c.bench_function("index/order of all", |b| b.iter(|| black_box(index.eviction_order().len())));
}

fn eprint_bytes(index: &Index) {
    use std::io::Write;
    let bytes = index.memory_bytes() as f64 / ENTRIES as f64;
    drop(writeln!(std::io::stderr(), "index and policy: {bytes:.1} bytes an entry"));
}

fn policies(c: &mut Criterion) {
    for kind in PolicyKind::ALL {
        let mut policy: Box<dyn Policy> = kind.build();
        (0..ENTRIES as u32).for_each(|slot| policy.insert(SlotInfo::new(slot, BYTES)));
        let mut slots = random().map(|n| n as u32);
        let name = format!("policy {kind}");
        let mut group = c.benchmark_group(&name);
        group.sample_size(20).throughput(Throughput::Elements(1));
        group
            .bench_function("touch", |b| b.iter(|| policy.touch(slots.next().unwrap_or_default())));
        group.bench_function("evict and insert", |b| {
            b.iter(|| {
                let slot = policy.victim().expect("nothing is pinned");
                policy.remove(slot);
                policy.insert(SlotInfo::new(slot, BYTES));
            })
        });
        group.finish();
    }
}

criterion_group!(benches, index, policies);
criterion_main!(benches);
