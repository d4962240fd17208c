//! The stack: falling through, promotion, write-through, single flight, and tiers that fail.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use common::*;
use kvtier::StackConfig;
use kvtier::core::ManualClock;
use kvtier::prelude::*;

struct Two {
    top: Arc<HostTier>,
    low: Arc<Probe>,
    stack: Stack,
    arena: Arena,
}

fn two() -> Two {
    let top = host(4 << 20);
    let low = Probe::over(host(16 << 20));
    let stack = Stack::new("two", vec![top.clone(), low.clone()]).unwrap();
    Two { top, low, stack, arena: arena() }
}

fn lookup(tier: &dyn Tier, numbers: &[u64], mode: Mode, hold: Hold) -> LookedUp {
    let keys = numbers.iter().map(|n| key(*n)).collect();
    tier.lookup(&ctx(), keys, mode, hold).wait().unwrap()
}

fn remove(tier: &dyn Tier, n: u64) -> kvtier::core::Removed {
    tier.remove(&ctx(), [key(n)].into()).wait().unwrap()
}

#[test]
fn a_save_is_written_through() {
    let t = two();
    assert_eq!(save(&t.stack, &t.arena, 1, LEN), Saved::Stored);
    assert_eq!(load(&*t.top, &t.arena, 1, LEN), hit(LEN));
    assert_eq!(load(&*t.low.below, &t.arena, 1, LEN), hit(LEN));
    assert_eq!(save(&t.stack, &t.arena, 1, LEN), Saved::Present);
    remove(&*t.top, 1);
    assert_eq!(save(&t.stack, &t.arena, 1, LEN), Saved::Stored, "one tier lacked it");
}

#[test]
fn a_hit_below_is_promoted_and_the_leases_come_back_writable() {
    let t = two();
    assert_eq!(save(&*t.low, &t.arena, 1, LEN), Saved::Stored);
    // A lease behind the end of the chunk, and one larger than it needs to be.
    let into = vec![
        t.arena.lease(60_000).unwrap(),
        t.arena.lease(50_000).unwrap(),
        t.arena.lease(4096).unwrap(),
    ];
    let mut done = t.stack.load(&ctx(), vec![Load { key: key(1), into }]).wait().remove(0);
    assert_eq!(done.result.unwrap(), hit(LEN));
    let lens: Vec<_> = done.op.into.iter().map(|l| (l.len(), l.init_len())).collect();
    assert_eq!(lens, [(60_000, 60_000), (50_000, 40_000), (4096, 0)]);
    let arrived: Vec<_> = done.op.into.iter().flat_map(|l| l.as_host().unwrap().to_vec()).collect();
    assert!(arrived == bytes(1, LEN));
    // The memory is the caller's again: what is written to it now is not in the tier.
    done.op.into.iter_mut().for_each(|l| l.as_host_mut().unwrap().fill(0));
    assert_eq!(load(&*t.top, &t.arena, 1, LEN), hit(LEN));
    assert_eq!(load(&t.stack, &t.arena, 1, LEN), hit(LEN));
    assert_eq!(t.low.loads.load(Ordering::SeqCst), 1, "the second load went below");
    assert_eq!(t.stack.status().counter("promoted"), 1);
}

#[test]
fn a_set_comes_up_as_a_set_in_one_load_or_in_parts() {
    for parts in [vec![vec![1, 2, 3]], vec![vec![1, 2], vec![3]]] {
        let t = two();
        let op = |n: u64| Save { key: key(n), from: vec![view(&t.arena, n, LEN)] };
        t.low
            .save(&ctx().with_atomic(), [1, 2, 3].map(op).into())
            .wait()
            .into_iter()
            .for_each(drop);
        assert_eq!(save(&*t.low, &t.arena, 4, LEN), Saved::Stored);
        let above = || [1, 2, 3, 4].map(|n| load(&*t.top, &t.arena, n, LEN) == hit(LEN));
        for part in &parts {
            assert_eq!(above()[..3], [false; 3], "not before all of it is up");
            // And one on its own.
            let into = part
                .iter()
                .chain(&[4])
                .map(|n| Load { key: key(*n), into: vec![t.arena.lease(LEN).unwrap()] });
            for (n, done) in
                part.iter().chain(&[4]).zip(t.stack.load(&ctx(), into.collect()).wait())
            {
                assert_eq!(done.result.unwrap(), hit(LEN));
                assert!(done.op.into[0].as_host().unwrap() == bytes(*n, LEN));
            }
            assert!(above()[3]);
        }
        assert_eq!(above(), [true; 4], "{parts:?}");
        assert_eq!(t.stack.atomic_set_of(&key(1)).map(|set| set.len()), Some(3));
        assert_eq!(remove(&*t.top, 2).removed, 1);
        assert_eq!(above(), [false, false, false, true], "and when one goes, all of it is gone");
    }
}

#[test]
fn a_part_of_a_set_that_the_stack_did_not_let_in_is_missing_all_the_same() {
    let top = host(8 << 20);
    let low = Probe::over(host(16 << 20));
    let arena = arena();
    let stack = Stack::new("two", vec![top, low.clone()]).unwrap();
    let op = |n: u64| Save { key: key(n), from: vec![view(&arena, n, 64)] };
    low.open_saves(false);
    // All that a stack lets in but one.
    let others = stack.save(&ctx(), (100..1123).map(op).collect());
    let two_of_one = stack.save(&ctx().with_atomic(), vec![op(1), op(2)]);
    low.open_saves(true);
    let results: Vec<_> = two_of_one.wait().into_iter().map(|done| done.result.unwrap()).collect();
    assert_eq!(results, [Saved::Stored, Saved::Shed(ShedReason::Throttled)]);
    others.wait().into_iter().for_each(|done| assert_eq!(done.result.unwrap(), Saved::Stored));
    let found = || [1, 2].map(|n| load(&stack, &arena, n, 64) == hit(64));
    assert_eq!(found(), [false; 2], "one is there without the other");
    let whole = [1, 2].map(|n| *key(n).digest()).into();
    let rest = stack.save(&ctx().with_atomic_set(whole), vec![op(2)]).wait().remove(0);
    assert_eq!((rest.result.unwrap(), found()), (Saved::Stored, [true; 2]));
}

#[test]
fn a_load_into_the_fast_tiers_own_arena_is_promoted_and_comes_back_too() {
    let t = two();
    assert_eq!(save(&*t.low, &t.arena, 1, LEN), Saved::Stored);
    // Whatever class the caller chose.
    let write = ctx().with_class(Class::Write);
    let into = vec![t.top.arena().lease(LEN).unwrap()];
    let mut done = t.stack.load(&write, vec![Load { key: key(1), into }]).wait().remove(0);
    assert_eq!((done.result.unwrap(), done.op.into.len()), (hit(LEN), 1));
    done.op.into[0].as_host_mut().unwrap().fill(0);
    assert_eq!(load(&*t.top, &t.arena, 1, LEN), hit(LEN));
}

#[test]
fn loads_of_one_key_go_below_once() {
    let t = two();
    (1..4).for_each(|n| assert_eq!(save(&*t.low, &t.arena, n, LEN), Saved::Stored));
    t.low.open_gate(false);
    let load = |n| Load { key: key(n), into: vec![t.arena.lease(LEN).unwrap()] };
    // Twice in one batch, and in batches that cross each other.
    let tickets: Vec<_> = [vec![1, 1, 2], vec![2, 1, 3], vec![3, 1, 9], vec![9, 1, 2]]
        .map(|batch| t.stack.load(&ctx(), batch.into_iter().map(load).collect()))
        .into();
    // All of them have begun: those that go below, and those that wait for them.
    while t.low.loads.load(Ordering::SeqCst) < 4 || t.stack.status().counter("coalesced") < 8 {
        std::thread::yield_now();
    }
    t.low.open_gate(true);
    for done in tickets.into_iter().flat_map(|ticket| ticket.wait()) {
        let expected = if done.op.key == key(9) { ABSENT } else { hit(LEN) };
        assert_eq!(done.result.unwrap(), expected);
        let n = (1..4).find(|n| key(*n) == done.op.key);
        assert!(n.is_none_or(|n| done.op.into[0].as_host().unwrap() == bytes(n, LEN)));
    }
    // Each of three keys once; the one that is nowhere once for each that asked.
    assert_eq!(t.low.loads.load(Ordering::SeqCst), 5);
    assert_eq!(t.stack.status().counter("coalesced"), 8);
    assert_eq!(t.stack.status().counter("promoted"), 3);
}

#[test]
fn a_lower_tier_that_fails_does_not_fail_the_stack() {
    let t = two();
    assert_eq!(save(&t.stack, &t.arena, 1, LEN), Saved::Stored);
    t.low.break_it();
    assert_eq!(load(&t.stack, &t.arena, 1, LEN), hit(LEN));
    assert_eq!(save(&t.stack, &t.arena, 2, LEN), Saved::Stored);
    assert_eq!(load(&t.stack, &t.arena, 2, LEN), hit(LEN));
    assert_eq!(load(&t.stack, &t.arena, 3, LEN), ABSENT);
    let found = lookup(&t.stack, &[1, 3], Mode::Each, Hold::None).found;
    assert_eq!(
        found,
        [Presence::Hit { len: LEN as u64 }, Presence::Unknown],
        "no tier can say that 3 is absent"
    );
    // A remove that may have left something says so, and has removed what it could.
    assert_eq!(t.stack.remove(&ctx(), [key(1)].into()).wait().unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(load(&*t.top, &t.arena, 1, LEN), ABSENT);
    assert_eq!(t.stack.status().counter("tier_errors"), 4);
    assert!(t.stack.status().healthy);
}

#[test]
fn a_fast_tier_that_fails_is_passed_over_and_when_all_fail_it_is_said() {
    let top = Probe::over(host(4 << 20));
    let low = Probe::over(host(4 << 20));
    let arena = arena();
    let stack = Stack::new("two", vec![top.clone(), low.clone()]).unwrap();
    top.break_it();
    assert_eq!(save(&stack, &arena, 1, LEN), Saved::Stored);
    assert_eq!(load(&stack, &arena, 1, LEN), hit(LEN));
    low.break_it();
    let op = Load { key: key(1), into: vec![arena.lease(LEN).unwrap()] };
    let done = stack.load(&ctx(), vec![op]).wait().remove(0);
    assert_eq!((done.result.unwrap_err().kind(), done.op.into.len()), (ErrorKind::Io, 1));
    let op = Save { key: key(2), from: vec![view(&arena, 2, LEN)] };
    assert_eq!(
        stack.save(&ctx(), vec![op]).wait().remove(0).result.unwrap_err().kind(),
        ErrorKind::Io
    );
    let found = stack.lookup(&ctx(), [key(1)].into(), Mode::Each, Hold::None).wait();
    assert_eq!(found.unwrap_err().kind(), ErrorKind::Io);
}

#[test]
fn holds_that_were_released_key_by_key_leave_their_places() {
    let t = two();
    save(&*t.top, &t.arena, 0, LEN);
    save(&*t.low, &t.arena, 1, LEN);
    // One more than a stack can have at a time.
    for _ in 0..=65_536 {
        let held = lookup(&t.stack, &[0, 1], Mode::Each, Hold::For(Duration::from_secs(600)))
            .hold
            .unwrap();
        t.stack.release_keys(held, &[*key(1).digest()]);
        t.stack.release_keys(held, &[*key(0).digest()]);
    }
    assert_eq!((remove(&t.stack, 0).removed, remove(&t.stack, 1).removed), (1, 1));
}

#[test]
fn a_prefix_may_lie_in_several_tiers_and_a_hold_is_kept_where_the_bytes_are() {
    let t = two();
    save(&*t.top, &t.arena, 0, LEN);
    for n in [1, 3] {
        assert_eq!(save(&*t.low, &t.arena, n, LEN), Saved::Stored);
    }
    let looked = lookup(&t.stack, &[0, 1, 2, 3], Mode::Prefix, Hold::For(Duration::from_secs(600)));
    assert_eq!(looked.prefix_len(), 2);
    let hold = looked.hold.unwrap();
    assert_eq!((remove(&*t.top, 0).held, remove(&*t.low, 1).held), (1, 1));
    assert_eq!(remove(&t.stack, 1).held, 1);
    t.stack.release(hold);
    t.stack.release(hold);
    assert_eq!((remove(&t.stack, 0).removed, remove(&t.stack, 1).removed), (1, 1));
}

#[test]
fn a_lookup_says_which_tier_answers_for_which_key() {
    let top = host(4 << 20);
    let low = Probe::over(host(4 << 20));
    let last = host(4 << 20);
    let arena = arena();
    let stack = Stack::new("three", vec![top.clone(), low.clone(), last.clone()]).unwrap();
    let all: [(&dyn Tier, &[u64]); 3] =
        [(&*top, &[0, 65]), (&*low, &[0, 1, 66]), (&*last, &[1, 2])];
    for (tier, has) in all {
        has.iter().for_each(|n| assert_eq!(save(tier, &arena, *n, LEN), Saved::Stored));
    }
    let numbers: Vec<u64> = (0..70).collect();
    let tiers = |looked: &LookedUp| {
        looked.tiers.iter().map(|keys| keys.iter().collect::<Vec<_>>()).collect::<Vec<_>>()
    };
    for mode in [Mode::Each, Mode::Prefix] {
        let looked = lookup(&stack, &numbers, mode, Hold::None);
        assert_eq!(
            tiers(&looked),
            [vec![0, 65], vec![1, 66], vec![2]],
            "each key is with the fastest that has it"
        );
        let of: Vec<_> = (0..4).map(|n| looked.tier_of(n)).collect();
        assert_eq!((of, looked.prefix_len()), (vec![Some(0), Some(1), Some(2), None], 3));
    }
    low.break_it();
    let looked = lookup(&stack, &numbers, Mode::Each, Hold::None);
    assert_eq!(
        tiers(&looked),
        [vec![0, 65], vec![], vec![1, 2]],
        "another tier has one of them too"
    );
    assert!(
        lookup(&*top, &numbers, Mode::Each, Hold::None).tiers.is_empty(),
        "one medium has no tiers"
    );
}

#[test]
fn a_key_of_which_a_tier_cannot_say_is_a_miss_in_no_stack() {
    let unsure = Probe::over(host(4 << 20));
    [1, 2].into_iter().for_each(|n| unsure.cannot_say(key(n)));
    let sure = host(4 << 20);
    let arena = arena();
    assert_eq!(save(&*sure, &arena, 2, LEN), Saved::Stored);
    let has = Presence::Hit { len: LEN as u64 };
    let orders: [Vec<Arc<dyn Tier>>; 2] =
        [vec![unsure.clone(), sure.clone()], vec![sure.clone(), unsure.clone()]];
    for tiers in orders {
        let stack = Stack::new("two", tiers).unwrap();
        let looked = lookup(&stack, &[1, 2, 3], Mode::Each, Hold::None);
        assert_eq!(looked.found, [Presence::Unknown, has, Presence::Miss]);
        let looked = lookup(&stack, &[2, 1, 3], Mode::Prefix, Hold::None);
        assert_eq!((looked.prefix_len(), looked.found[1]), (1, Presence::Unknown));
    }
}

#[test]
fn a_deadline_is_kept_while_a_tier_hangs_and_the_memory_is_returned() {
    let t = two();
    let time = ManualClock::new();
    let config =
        StackConfig::new("two").with_clock(time.clock()).with(t.top.clone()).with(t.low.clone());
    let stack = Stack::open(config).unwrap();
    save(&*t.low, &t.arena, 1, LEN);
    t.low.open_gate(false);
    let free = t.arena.stats().free;
    let op = Load { key: key(1), into: vec![t.arena.lease(LEN).unwrap()] };
    let ticket = stack.load(&Ctx::within_on(&time.clock(), Duration::from_secs(600)), vec![op]);
    time.advance(Duration::from_millis(599_999));
    assert!(!ticket.is_done());
    time.advance(Duration::from_millis(1));
    assert!(ticket.is_done());
    let done = ticket.wait().remove(0);
    assert_eq!(done.result.as_ref().unwrap_err().kind(), ErrorKind::Timeout);
    let has_begun = t.low.loads.load(Ordering::SeqCst) > 0;
    assert!(done.op.into.is_empty() || !has_begun, "the tier that hangs has it");
    drop(done);
    t.low.open_gate(true);
    stack.close().wait().unwrap();
    // The tier releases the memory when it wakes up; no caller waits for that.
    eventually("all memory is home", || t.arena.stats().free == free);
}

#[test]
fn what_is_canceled_before_it_begins_does_not_begin() {
    let t = two();
    save(&*t.low, &t.arena, 1, LEN);
    t.low.open_gate(false);
    let load = || Load { key: key(1), into: vec![t.arena.lease(LEN).unwrap()] };
    let first = t.stack.load(&ctx(), vec![load()]);
    let second = t.stack.load(&ctx(), vec![load()]);
    second.cancel();
    t.low.open_gate(true);
    assert_eq!(first.wait().remove(0).result.unwrap(), hit(LEN));
    let done = second.wait().remove(0);
    assert_eq!((done.result.unwrap_err().kind(), done.op.into.len()), (ErrorKind::Canceled, 1));
}

#[test]
fn closed_is_closed_and_closes_the_tiers() {
    let t = two();
    save(&t.stack, &t.arena, 1, LEN);
    t.stack.close().wait().unwrap();
    let op = Load { key: key(1), into: vec![t.arena.lease(LEN).unwrap()] };
    let done = t.stack.load(&ctx(), vec![op]).wait().remove(0);
    assert_eq!((done.result.unwrap_err().kind(), done.op.into.len()), (ErrorKind::Closed, 1));
    let found = t.stack.lookup(&ctx(), [key(1)].into(), Mode::Each, Hold::None).wait();
    assert_eq!(found.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(t.top.ready(&ctx()).wait().unwrap_err().kind(), ErrorKind::Closed);
    assert!(!t.stack.status().healthy);
}

#[test]
fn dropped_with_work_in_flight_it_answers_and_loses_no_memory() {
    let t = two();
    (0..8).for_each(|n| assert_eq!(save(&*t.low, &t.arena, n, LEN), Saved::Stored));
    let free = t.arena.stats().free;
    t.low.open_gate(false);
    let ops = |from| {
        (from..from + 4)
            .map(|n| Load { key: key(n), into: vec![t.arena.lease(LEN).unwrap()] })
            .collect()
    };
    let waited_for = t.stack.load(&ctx(), ops(0));
    drop(t.stack.load(&ctx(), ops(4)));
    let low = Arc::clone(&t.low);
    let opener = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(30));
        low.open_gate(true);
    });
    drop(t.stack);
    for done in waited_for.wait() {
        assert_eq!(done.result.unwrap(), hit(LEN));
    }
    opener.join().unwrap();
    assert_eq!(t.arena.stats().free, free);
}

#[test]
fn a_limit_is_one_in_each_tier_that_has_any() {
    const COST: u64 = 102_400;
    let top = host(4 << 20);
    let low = host(16 << 20);
    let arena = arena();
    let stack =
        Stack::new("two", vec![top.clone(), Probe::over(host(4 << 20)), low.clone()]).unwrap();
    (0..5).for_each(|n| assert_eq!(save(&stack, &arena, n, LEN), Saved::Stored));
    assert!(stack.set_quota("tests", Some(2 * COST)));
    assert_eq!(save(&stack, &arena, 5, LEN), Saved::Stored);
    assert_eq!((top.usage().chunks, low.usage().chunks), (2, 2));
    assert!(
        !Stack::new("one", vec![Probe::over(host(4096))]).unwrap().set_quota("tests", Some(1)),
        "it limits no load"
    );
}

#[test]
fn a_stack_of_stacks_is_a_stack() {
    let a = host(4 << 20);
    let b = host(4 << 20);
    let c = host(4 << 20);
    let arena = arena();
    let below = Arc::new(Stack::new("below", vec![b.clone(), c.clone()]).unwrap());
    let stack = Stack::new("all", vec![a.clone(), below]).unwrap();
    assert_eq!(save(&*c, &arena, 1, LEN), Saved::Stored);
    assert_eq!(load(&stack, &arena, 1, LEN), hit(LEN));
    for tier in [a, b] {
        assert_eq!(load(&*tier, &arena, 1, LEN), hit(LEN));
    }
    assert!(Stack::new("none", vec![]).is_err());
}

#[test]
fn what_is_removed_is_not_brought_up_again_by_a_load_that_is_under_way() {
    let t = two();
    assert_eq!(save(&*t.low, &t.arena, 1, LEN), Saved::Stored);
    // The first load has read its bytes below, and comes up when the gate opens; the second waits
    // for the first.
    t.low.open_answers(false);
    let op = || Load { key: key(1), into: vec![t.arena.lease(LEN).unwrap()] };
    let loads = [t.stack.load(&ctx(), vec![op()]), t.stack.load(&ctx(), vec![op()])];
    while t.low.below.status().counter("hits") == 0 {
        std::thread::yield_now();
    }
    let removed = t.stack.remove(&ctx(), [key(1)].into());
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(100) && !removed.is_done() {
        std::thread::sleep(Duration::from_millis(1));
    }
    t.low.open_answers(true);
    loads.into_iter().for_each(|load| drop(load.wait()));
    assert_eq!(removed.wait().unwrap().removed, 1);
    assert_eq!(load(&*t.top, &t.arena, 1, LEN), ABSENT, "it came up after its remove");
    assert_eq!(load(&t.stack, &t.arena, 1, LEN), ABSENT);
}
