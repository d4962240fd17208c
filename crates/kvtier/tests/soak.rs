//! Hours of work in little: memory over files under load from several threads, with tiers that die
//! and return. What a process has in memory stays what it was. Ten minutes with KVTIER_NIGHTLY=1,
//! two seconds without.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::*;
use kvtier::prelude::*;
use kvtier::{StackConfig, TierRule, Write};
use kvtier_testkit::Seed;

const LEN: usize = 40_000;
const KEYS: u64 = 2000;

/// The resident memory of this process in bytes.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// One request: a prefix of a conversation is looked up, held and loaded, the rest is saved.
fn request(stack: &Stack, arena: &Arena, seed: &mut Seed) -> u64 {
    let from = seed.below(KEYS / 20) * 20;
    let keys: Vec<u64> = (from..from + 2 + seed.below(8)).collect();
    let asked: Arc<[Key]> = keys.iter().map(|n| key(*n)).collect();
    let Ok(found) =
        stack.lookup(&ctx(), asked, Mode::Prefix, Hold::For(Duration::from_secs(5))).wait()
    else {
        return 0;
    };
    let prefix = found.prefix_len();
    let into = |n: &u64| Load { key: key(*n), into: vec![arena.lease(LEN).unwrap()] };
    let done = stack.load(&ctx(), keys[..prefix].iter().map(into).collect()).wait();
    let mut hits = 0;
    for (n, done) in keys.iter().zip(done) {
        if let Ok(Loaded::Hit { .. }) = done.result {
            assert!(
                done.op.into[0].as_host().unwrap() == bytes(*n, LEN),
                "a wrong byte in chunk {n}"
            );
            hits += 1;
        }
    }
    let ops = keys[prefix..]
        .iter()
        .map(|n| Save { key: key(*n), from: vec![view(arena, *n, LEN)] })
        .collect();
    stack.save(&ctx(), ops).wait().into_iter().for_each(drop);
    found.hold.into_iter().for_each(|hold| stack.release(hold));
    hits
}

#[test]
fn memory_stays_flat_while_tiers_die_and_return() {
    let long = if std::env::var_os("KVTIER_NIGHTLY").is_some() { 600 } else { 2 };
    let top = host(8 << 20);
    let low = Probe::over(host(32 << 20));
    let config = StackConfig::new("soak").with_dirty_bytes_max(4 << 20).with(top.clone());
    let stack = Stack::open(config.with_rule(low.clone(), TierRule::new().with_write(Write::Back)))
        .unwrap();
    let arena = arena();
    let over = AtomicBool::new(false);
    let hits = AtomicU64::new(0);
    let began = Instant::now();
    let end = Duration::from_secs(long);
    let mut after_start = 0;
    let mut most = 0;
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let stack = &stack;
            let arena = &arena;
            let over = &over;
            let hits = &hits;
            scope.spawn(move || {
                let mut seed = Seed::new(worker);
                while !over.load(Ordering::Relaxed) {
                    hits.fetch_add(request(stack, arena, &mut seed), Ordering::Relaxed);
                }
            });
        }
        let mut round = 0;
        let late = end + Duration::from_secs(120);
        let is_full = |tier: &HostTier| tier.status().counter("evicted") > 0;
        // A busy machine needs longer for as much.
        let proves_something = |after_start| after_start > 0 && hits.load(Ordering::Relaxed) > 100;
        while began.elapsed() < end || (!proves_something(after_start) && began.elapsed() < late) {
            std::thread::sleep(end / 40);
            round += 1;
            if round % 8 == 5 {
                low.break_it()
            } else {
                low.mend()
            }
            if began.elapsed() > end / 4 && after_start == 0 && is_full(&top) && is_full(&low.below)
            {
                after_start = resident();
            }
            most = most.max(resident());
        }
        over.store(true, Ordering::Relaxed);
    });
    low.mend();
    stack.flush(&ctx()).wait().unwrap();
    let before = hits.load(Ordering::Relaxed);
    for n in 0..50 {
        hits.fetch_add(request(&stack, &arena, &mut Seed::new(n)), Ordering::Relaxed);
    }
    assert!(
        before > 100 && hits.load(Ordering::Relaxed) > before,
        "no hits after the tier returned"
    );
    assert!(after_start > 0, "the caches were never full");
    let grown = most.saturating_sub(after_start);
    assert!(
        grown < (16 << 20) + after_start / 10,
        "{grown} bytes more than the {after_start} after a quarter of the time"
    );
    stack.close().wait().unwrap();
    assert_eq!(arena.stats().free, arena.stats().capacity, "memory lost");
}
