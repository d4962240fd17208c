//! What rules make of a stack: write-back, spilling, admission, deadlines, and loads that are
//! slower than computing.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::*;
use kvtier::core::{Chain, Clock, ManualClock};
use kvtier::prelude::*;
use kvtier::{Admit, StackConfig, TierRule, Write};

struct Two {
    top: Arc<HostTier>,
    low: Arc<Probe>,
    stack: Stack,
    arena: Arena,
}

fn two(top_bytes: u64, rule: TierRule, config: impl Fn(StackConfig) -> StackConfig) -> Two {
    two_on(&Clock::real(), top_bytes, rule, config)
}

fn two_on(
    clock: &Clock,
    top_bytes: u64,
    rule: TierRule,
    config: impl Fn(StackConfig) -> StackConfig,
) -> Two {
    let top = host(top_bytes);
    let low = Probe::over_on(clock.clone(), host(32 << 20));
    let config = config(StackConfig::new("two").with_clock(clock.clone()))
        .with(top.clone())
        .with_rule(low.clone(), rule);
    Two { top, low, stack: Stack::open(config).unwrap(), arena: arena() }
}

fn back() -> TierRule {
    TierRule::new().with_write(Write::Back)
}

fn spill() -> TierRule {
    TierRule::new().with_write(Write::Spill)
}

#[test]
fn a_save_does_not_wait_for_a_tier_of_write_back_which_gets_it_all_the_same() {
    let t = two(4 << 20, back(), |c| c);
    t.low.open_saves(false);
    let free = t.arena.stats().free;
    assert_eq!(save(&t.stack, &t.arena, 1, LEN), Saved::Stored);
    assert_eq!(t.arena.stats().free, free, "the caller's memory is its own again");
    assert_eq!(load(&*t.low.below, &t.arena, 1, LEN), ABSENT);
    t.low.open_saves(true);
    eventually("the chunk is below", || load(&*t.low.below, &t.arena, 1, LEN) == hit(LEN));
    eventually("it is counted", || t.stack.status().counter("written_behind") == 1);
    assert_eq!(
        t.top.status().counter("copied_save_bytes"),
        LEN as u64,
        "and was copied once, into memory"
    );
}

#[test]
fn what_waits_to_be_written_is_bounded_and_beyond_it_a_save_waits() {
    let t = two(4 << 20, back(), |c| c.with_dirty_bytes_max(2 * LEN as u64));
    t.low.open_saves(false);
    (0..2).for_each(|n| assert_eq!(save(&t.stack, &t.arena, n, LEN), Saved::Stored));
    let op = Save { key: key(2), from: vec![view(&t.arena, 2, LEN)] };
    let third = t.stack.save(&ctx(), vec![op]);
    eventually("the third is found to be too much", || t.stack.status().counter("dirty_full") == 1);
    std::thread::sleep(Duration::from_millis(20));
    assert!(!third.is_done());
    t.low.open_saves(true);
    assert_eq!(third.wait().remove(0).result.unwrap(), Saved::Stored);
    t.stack.close().wait().unwrap();
    assert_eq!(t.low.below.usage().chunks, 3);
}

#[test]
fn closing_waits_for_what_is_to_be_written_and_a_remove_takes_it_too() {
    let t = two(4 << 20, back(), |c| c);
    t.low.open_saves(false);
    (0..2).for_each(|n| assert_eq!(save(&t.stack, &t.arena, n, LEN), Saved::Stored));
    let removed = t.stack.remove(&ctx(), [key(0)].into());
    std::thread::sleep(Duration::from_millis(20));
    assert!(!removed.is_done());
    t.low.open_saves(true);
    assert_eq!(removed.wait().unwrap().removed, 1);
    let gone = t.low.below.lookup(&ctx(), [key(0)].into(), Mode::Each, Hold::None).wait().unwrap();
    assert_eq!(gone.found, [Presence::Miss], "it came after its remove");
    t.stack.close().wait().unwrap();
    assert_eq!(t.low.below.usage().chunks, 1);
}

#[test]
fn what_memory_gives_up_is_spilled_and_comes_back() {
    let t = two(4 * 102_400, spill(), |c| c);
    for n in 0..20 {
        assert_eq!(save(&t.stack, &t.arena, n, LEN), Saved::Stored);
    }
    eventually("all evicted chunks are below", || t.low.below.usage().chunks == 16);
    assert_eq!(t.top.usage().chunks, 4);
    for n in 0..20 {
        assert_eq!(load(&t.stack, &t.arena, n, LEN), hit(LEN), "chunk {n}");
    }
    assert_eq!(t.stack.status().counter("writeback_dropped"), 0);
    assert!(t.stack.status().counter("spilled") >= 16);
}

#[test]
fn usage_is_that_of_the_tier_that_has_all_or_of_those_that_share_it() {
    let through = two(4 * 102_400, TierRule::new(), |c| c);
    let spilled = two(4 * 102_400, spill(), |c| c);
    for t in [&through, &spilled] {
        for n in 0..10 {
            assert_eq!(save(&t.stack, &t.arena, n, LEN), Saved::Stored);
            t.stack.flush(&ctx()).wait().unwrap();
        }
    }
    let low = 32u64 << 20;
    let facts = |t: &Two| {
        let usage = t.stack.usage();
        (
            usage.used_bytes,
            usage.capacity_bytes,
            usage.chunks,
            usage.tenants[0].chunks,
            usage.tenants.len(),
        )
    };
    assert_eq!(facts(&through), (Some(10 * 102_400), Some(low), 10, 10, 1));
    assert_eq!(facts(&spilled), (Some(10 * 102_400), Some(low + 4 * 102_400), 10, 10, 1));
    assert_eq!(through.stack.usage().fraction(), Some(10.0 * 102_400.0 / low as f64));
}

#[test]
fn what_no_tier_above_keeps_goes_straight_to_where_spills_go() {
    let t = two(4 * 102_400, spill(), |c| c);
    assert_eq!(save(&t.stack, &t.arena, 1, 600_000), Saved::Stored, "it is larger than memory");
    assert_eq!(load(&*t.low.below, &t.arena, 1, 600_000), hit(600_000));
}

#[test]
fn a_spill_beyond_the_bound_is_lost_and_counted() {
    let t = two(2 * 102_400, spill(), |c| c.with_dirty_bytes_max(102_400));
    t.low.open_saves(false);
    (0..6).for_each(|n| assert_eq!(save(&t.stack, &t.arena, n, LEN), Saved::Stored));
    assert_eq!(
        (t.stack.status().counter("spilled"), t.stack.status().counter("writeback_dropped")),
        (1, 3)
    );
    t.low.open_saves(true);
    eventually("the first evicted chunk is below", || t.low.below.usage().chunks == 1);
}

#[test]
fn a_chunk_comes_up_when_it_was_found_often_enough() {
    let top = host(4 << 20);
    let low = host(8 << 20);
    let arena = arena();
    let rule = TierRule::new().with_admit(Admit::AfterHits(3));
    let stack =
        Stack::open(StackConfig::new("s").with_rule(top.clone(), rule).with(low.clone())).unwrap();
    save(&*low, &arena, 1, LEN);
    for (round, here) in [0, 0, 1, 1].into_iter().enumerate() {
        assert_eq!(load(&stack, &arena, 1, LEN), hit(LEN));
        assert_eq!(top.usage().chunks, here, "round {round}");
    }
    assert_eq!(
        (stack.status().counter("promoted"), stack.status().counter("not_admitted")),
        (1, 2)
    );
    let rule = TierRule::new().with_admit(Admit::Never);
    let top = host(4 << 20);
    let low = low;
    let stack = Stack::open(StackConfig::new("s").with_rule(top.clone(), rule).with(low)).unwrap();
    (0..3).for_each(|_| assert_eq!(load(&stack, &arena, 1, LEN), hit(LEN)));
    assert_eq!(top.usage().chunks, 0);
}

#[test]
fn at_its_deadline_a_load_has_the_prefix_that_fast_tiers_hold() {
    let own = TierRule::new().with_deadline(Duration::from_millis(50));
    // By its own deadline, or a little before the stack's.
    for (rule, ends_ms) in [(own, 50), (TierRule::new(), 30_000 - 20)] {
        let time = ManualClock::new();
        let t = two_on(&time.clock(), 4 << 20, rule, |c| c);
        (0..3).for_each(|n| {
            save(&*t.top, &t.arena, n, LEN);
        });
        (3..5).for_each(|n| {
            save(&*t.low.below, &t.arena, n, LEN);
        });
        t.low.open_gate(false);
        let load = |n| Load { key: key(n), into: vec![t.arena.lease(LEN).unwrap()] };
        let ctx = Ctx::within_on(&time.clock(), Duration::from_secs(30));
        let ticket = t
            .stack
            .load(&ctx.with_chain(Chain { parent: None, depth: 0 }), (0..5).map(load).collect());
        eventually("the slow tier is asked", || t.low.loads.load(Ordering::SeqCst) > 0);
        time.advance(Duration::from_millis(ends_ms));
        let done = ticket.wait();
        let hits =
            done.iter().take_while(|done| matches!(done.result, Ok(Loaded::Hit { .. }))).count();
        assert_eq!(hits, 3);
        assert!(
            done[3..].iter().all(|d| d.result.as_ref().unwrap_err().kind() == ErrorKind::Timeout)
        );
        (0..3).for_each(|n| assert!(done[n].op.into[0].as_host().unwrap() == bytes(n as u64, LEN)));
        t.low.open_gate(true);
        drop(done);
        t.stack.close().wait().unwrap();
        eventually("all memory is home", || t.arena.stats().free == t.arena.stats().capacity);
    }
}

#[test]
fn a_load_slower_than_computing_is_a_miss_and_the_break_even_is_reported() {
    // Below, 100 kB take 20 ms; computing them takes 10 ms, or with the other rate 10 s.
    for (rate, slow) in [(1e7, true), (1e4, false)] {
        let time = ManualClock::new();
        let t =
            two_on(&time.clock(), 102_400, TierRule::new(), |c| c.with_computed_bytes_per_s(rate));
        t.low.delay_loads(&time, Duration::from_millis(20));
        (0..30).for_each(|n| {
            save(&*t.low.below, &t.arena, n, LEN);
        });
        let loads: Vec<Loaded> = (0..30).map(|n| load(&t.stack, &t.arena, n, LEN)).collect();
        let missed =
            loads.iter().filter(|loaded| **loaded == Loaded::Miss(MissReason::Slow)).count();
        assert_eq!(missed > 10, slow, "{missed} of 30");
        let reasons = t.stack.status().reasons.join("\n");
        assert!(
            reasons.contains(if slow {
                "computing is faster"
            } else {
                "faster than computing from"
            }),
            "{reasons}"
        );
        let found = t
            .stack
            .lookup(&ctx(), [key(0)].into(), Mode::Each, Hold::For(Duration::from_secs(60)))
            .wait();
        let found = found.unwrap();
        if slow && found.found == [Presence::Miss] {
            let removed = t.low.below.remove(&ctx(), [key(0)].into()).wait().unwrap();
            assert_eq!(
                (removed.removed, found.hold),
                (1, None),
                "a hold on what is not worth loading"
            );
        }
        // No caller waits for a prefetch.
        let op = Load { key: key(1), into: vec![t.arena.lease(LEN).unwrap()] };
        let done = t.stack.load(&ctx().with_class(Class::Prefetch), vec![op]).wait().remove(0);
        assert_eq!(done.result.unwrap(), hit(LEN));
        assert!(t.low.loads.load(Ordering::SeqCst) > 0);
    }
}

#[test]
fn rules_that_cannot_be_are_refused_by_name() {
    let arena_less = Probe::over(host(1 << 20));
    let refused = |config: StackConfig| Stack::open(config).unwrap_err().to_string();
    assert!(refused(StackConfig::new("s")).contains("at least one tier"));
    assert!(
        refused(StackConfig::new("s").with_rule(host(4096), back())).contains("written through")
    );
    let spilled = StackConfig::new("s").with(arena_less).with_rule(host(1 << 20), spill());
    assert!(refused(spilled).contains("cannot pass evicted chunks"));
    let many = (0..17).fold(StackConfig::new("s"), |config, _| config.with(host(4096)));
    assert!(refused(many).contains("at most 16"));
    let zero =
        StackConfig::new("s").with_rule(host(4096), TierRule::new().with_deadline(Duration::ZERO));
    assert!(refused(zero).contains("deadline of 0"));
}

#[test]
fn a_tier_that_takes_longer_than_its_own_deadline_is_a_miss_there_and_the_one_below_is_asked() {
    let top = host(4 << 20);
    let mid = Probe::over(host(4 << 20));
    let low = host(4 << 20);
    let arena = arena();
    let own = TierRule::new().with_deadline(Duration::from_millis(30)).with_admit(Admit::Never);
    let config = StackConfig::new("s").with(top).with_rule(mid.clone(), own).with(low.clone());
    let stack = Stack::open(config).unwrap();
    save(&*low, &arena, 1, LEN);
    mid.time_out();
    assert_eq!(load(&stack, &arena, 1, LEN), hit(LEN), "the tier below has it");
    assert_eq!(load(&stack, &arena, 2, LEN), ABSENT, "only the middle tier had no time");
    assert_eq!(stack.status().counter("tier_errors"), 2);
}

#[test]
fn a_promotion_ends_at_the_deadline_of_the_tier_that_it_goes_to() {
    let top = host(4 << 20);
    let mid = Probe::over(host(4 << 20));
    let low = host(4 << 20);
    let arena = arena();
    let own = TierRule::new().with_deadline(Duration::from_secs(30));
    let time = ManualClock::new();
    let config = StackConfig::new("s").with(top).with_rule(mid.clone(), own).with(low.clone());
    let stack = Stack::open(config.with_clock(time.clock())).unwrap();
    save(&*low, &arena, 1, LEN);
    assert_eq!(load(&stack, &arena, 1, LEN), hit(LEN));
    let (ctx, _) = mid.batches().pop().unwrap();
    assert_eq!(ctx.deadline, time.now() + Duration::from_secs(30));
}

#[test]
fn a_lower_tier_receives_the_chain_and_the_set_with_a_later_write() {
    let t = two(4 << 20, back(), |c| c);
    let chain = Chain { parent: None, depth: 5 };
    let ops = |numbers: [u64; 2]| {
        numbers.map(|n| Save { key: key(n), from: vec![view(&t.arena, n, LEN)] }).into()
    };
    t.stack
        .save(&ctx().with_chain(chain).with_atomic(), ops([1, 2]))
        .wait()
        .into_iter()
        .for_each(drop);
    t.stack.flush(&ctx()).wait().unwrap();
    let (got, keys) = t.low.batches().remove(0);
    assert_eq!((got.chain, keys), (Some(chain), vec![key(1), key(2)]));
    let whole = [1, 2].map(|n| *key(n).digest());
    assert!(got.atomic && got.atomic_set.is_none_or(|got| *got == whole));
    // One goes below, and the other is not seen there either.
    assert_eq!(t.low.below.remove(&ctx(), [key(1)].into()).wait().unwrap().removed, 1);
    assert_eq!(load(&*t.low.below, &t.arena, 2, LEN), ABSENT);
}

#[test]
fn what_is_spilled_is_no_chain_and_a_set_stays_one() {
    let t = two(4 * 102_400, spill(), |c| c);
    let save_together = |numbers: &[u64]| {
        let ops = numbers
            .iter()
            .map(|n| Save { key: key(*n), from: vec![view(&t.arena, *n, LEN)] })
            .collect();
        t.stack
            .save(&ctx().with_atomic(), ops)
            .wait()
            .into_iter()
            .for_each(|done| assert!(done.result.is_ok()));
    };
    save_together(&[1, 2]);
    (10..13).for_each(|n| assert_eq!(save(&t.stack, &t.arena, n, LEN), Saved::Stored));
    t.stack.flush(&ctx()).wait().unwrap();
    // One of the two had to go: the other is a miss above, and so is the one below without it.
    let seen: Vec<_> = [1, 2].map(|n| load(&t.stack, &t.arena, n, LEN)).into();
    assert_eq!(seen, [ABSENT; 2]);
    (13..30).for_each(|n| assert_eq!(save(&t.stack, &t.arena, n, LEN), Saved::Stored));
    t.stack.flush(&ctx()).wait().unwrap();
    assert_eq!(
        [1, 2].map(|n| load(&*t.low.below, &t.arena, n, LEN)),
        [hit(LEN); 2],
        "both are below"
    );
    for (got, keys) in t.low.batches() {
        assert!(
            got.chain.is_none() && (keys.len() == 1 || got.atomic_set.is_some()),
            "{} are no chain",
            keys.len()
        );
    }
}

#[test]
fn what_is_spilled_is_of_the_set_that_it_is_in_when_it_goes() {
    let t = two(4 * 102_400, spill(), |c| c);
    let save_together = |numbers: &[u64]| {
        let ops = numbers
            .iter()
            .map(|n| Save { key: key(*n), from: vec![view(&t.arena, *n, LEN)] })
            .collect();
        t.stack
            .save(&ctx().with_atomic(), ops)
            .wait()
            .into_iter()
            .for_each(|done| assert!(done.result.is_ok()));
    };
    // Saved on its own and held, 1 stays as it is when it becomes a part of a set; 3 was a part of
    // a set that ended with another's beginning.
    assert_eq!(save(&t.stack, &t.arena, 1, LEN), Saved::Stored);
    let held = t
        .top
        .lookup(&ctx(), [key(1)].into(), Mode::Each, Hold::For(Duration::from_secs(600)))
        .wait()
        .unwrap();
    save_together(&[1, 2]);
    save_together(&[3, 4]);
    t.top.release(held.hold.unwrap());
    save_together(&[4, 5]);
    (10..20).for_each(|n| assert_eq!(save(&t.stack, &t.arena, n, LEN), Saved::Stored));
    t.stack.flush(&ctx()).wait().unwrap();
    let batches = t.low.batches();
    let returned = |n: u64| {
        let (got, _) = batches.iter().find(|(_, keys)| keys.contains(&key(n))).unwrap();
        assert_eq!(got.atomic, got.atomic_set.is_some());
        got.atomic_set
            .as_ref()
            .map(|whole| (1..6).filter(|n| whole.contains(key(*n).digest())).collect::<Vec<_>>())
    };
    let expected = [Some(vec![1, 2]), Some(vec![1, 2]), None, Some(vec![4, 5]), Some(vec![4, 5])];
    assert_eq!([1, 2, 3, 4, 5].map(returned), expected);
}

#[test]
fn what_waits_to_be_spilled_does_not_take_the_memory_of_saves() {
    let t = two(4 * 102_400, spill(), |c| c);
    t.low.open_saves(false);
    for n in 0..40 {
        assert_eq!(save(&t.stack, &t.arena, n, LEN), Saved::Stored, "chunk {n}");
    }
    let counter = |name| t.stack.tiers()[0].status().counter(name);
    assert_eq!((counter("evicted"), counter("spill_dropped") > 20), (36, true));
    t.low.open_saves(true);
    t.stack.flush(&ctx()).wait().unwrap();
    assert_eq!(t.low.below.usage().chunks + counter("spill_dropped"), 36);
}

/// Keeps the thread that calls it until it may go on.
#[derive(Debug, Default)]
struct Blocks(std::sync::Mutex<()>);

impl kvtier::core::Listener for Blocks {
    fn on_events(&self, _events: &[kvtier::core::Event]) {
        drop(self.0.lock());
    }
}

#[test]
fn what_a_stack_refuses_does_not_wait_for_its_thread() {
    let top = host(4 << 20);
    let blocks = Arc::new(Blocks::default());
    let arena = arena();
    assert_eq!(save(&*top, &arena, 1, LEN), Saved::Stored);
    top.listen(blocks.clone());
    let stack = Stack::new("one", vec![top]).unwrap();
    let held = blocks.0.lock().unwrap();
    let loads = |n: usize| -> Vec<_> {
        let op = |n: u64| Load { key: key(n), into: vec![] };
        (0..n).map(|_| stack.load(&ctx(), vec![op(2)])).collect()
    };
    let lease = arena.lease(LEN).unwrap();
    let first = stack.load(&ctx(), vec![Load { key: key(1), into: vec![lease] }]);
    let open = || -> u64 {
        let text = format!("{stack:?}");
        text.split_once("Executor(").unwrap().1.split_once(' ').unwrap().0.parse().unwrap()
    };
    let waiting = loads(1024);
    let refused = loads(5000);
    assert!(refused.iter().all(|ticket| ticket.is_done()) && open() <= 1025, "{}", open());
    drop(held);
    drop((first.wait(), waiting.into_iter().map(|ticket| ticket.wait()).collect::<Vec<_>>()));
}
