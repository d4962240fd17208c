//! Taking memory and giving it back: slots, any size, and the global allocator; alone and beside
//! another thread.
#![allow(clippy::unwrap_used, missing_docs)]

use std::alloc::{Layout, alloc, dealloc};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};

use criterion::{Criterion, criterion_group, criterion_main};
use kvtier_mem::{Arena, ArenaConfig, Lease};

const CHUNK: usize = 4 << 20;
const CHUNKS: usize = 64;

/// Keeps half of the memory in use and replaces one lease a step, in an order that mixes ages.
fn churn(arena: &Arena, kept: &mut [Option<Lease>], step: &mut usize, len: usize) {
    let at = step.wrapping_mul(0x9e37_79b9) >> 8;
    *step += 1;
    let at = at % kept.len();
    kept[at] = None;
    kept[at] = Some(black_box(arena.lease(len).unwrap()));
}

fn alone(c: &mut Criterion) {
    let mut group = c.benchmark_group("lease and drop");
    let slots = Arena::new(ArenaConfig::heap(CHUNKS * CHUNK).with_slots(CHUNK)).unwrap();
    let general = Arena::new(ArenaConfig::heap(CHUNKS * CHUNK)).unwrap();
    for (name, arena) in [("slots", &slots), ("general", &general)] {
        let mut kept: Vec<_> = (0..CHUNKS / 2).map(|_| None).collect();
        let mut step: usize = 0;
        group.bench_function(name, |b| b.iter(|| churn(arena, &mut kept, &mut step, CHUNK)));
    }
    let mut kept: Vec<_> = (0..CHUNKS / 2).map(|_| None).collect();
    let mut step: usize = 0;
    group.bench_function("general, mixed sizes", |b| {
        b.iter(|| {
            let len = 4096 << (step % 10);
            churn(&general, &mut kept, &mut step, len);
        });
    });
    let layout = Layout::from_size_align(CHUNK, 4096).unwrap();
    group.bench_function("global allocator, aligned", |b| {
        b.iter(|| {
            // SAFETY: a layout of non-zero size, freed with the same.
            unsafe {
                let at = alloc(layout);
                black_box(at);
                dealloc(at, layout);
            }
        });
    });
    group.finish();
}

fn beside_another(c: &mut Criterion) {
    let mut group = c.benchmark_group("lease and drop beside another thread");
    let slots = Arena::new(ArenaConfig::heap(CHUNKS * CHUNK).with_slots(CHUNK)).unwrap();
    let general = Arena::new(ArenaConfig::heap(CHUNKS * CHUNK)).unwrap();
    for (name, arena) in [("slots", &slots), ("general", &general)] {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    black_box(arena.lease(CHUNK).unwrap());
                }
            });
            group.bench_function(name, |b| b.iter(|| black_box(arena.lease(CHUNK).unwrap())));
            stop.store(true, Ordering::Relaxed);
        });
    }
    group.finish();
}

criterion_group!(benches, alone, beside_another);
criterion_main!(benches);
