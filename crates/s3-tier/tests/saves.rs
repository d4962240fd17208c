//! Saves that the bucket refuses, answers late or answers oddly, and saves that race.
#![allow(clippy::unwrap_used)]

mod support;

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use kvtier_core::{Ctx, ErrorKind, Loaded, MissReason, Saved, ShedReason};
use kvtier_testkit::s3::{Fault, Rule};
use support::tier::{World, says, timed, within};

const LEN: usize = 300_000;
/// What must not hang; no measure of speed.
const LONG: Duration = Duration::from_secs(600);
/// So little time that a save waits for no more than that.
const LITTLE: Duration = Duration::from_millis(800);

/// The targets of GETs without an answer.
fn stalled_gets(world: &World) -> Vec<String> {
    let stalled = world.server.stalled_requests().into_iter();
    stalled.filter(|one| one.method == "GET").map(|one| one.target).collect()
}

fn hit(len: usize) -> Loaded {
    Loaded::Hit { len: len as u64 }
}

#[test]
fn a_save_that_is_given_up_in_the_middle_leaves_index_and_bucket_of_one_mind() {
    let world = World::new();
    let key = world.suite.key(1);
    // Carried out, but the answer comes too late.
    let name = world.name(&key).leak();
    world.server.script(Rule::next(Fault::Hang).method("PUT").containing(name).times(u32::MAX));
    // Only its deadline ends it: a short one, and longer ones where this machine has sent nothing.
    let arrived = [1, 10, 60, 300].into_iter().any(|seconds| {
        let ctx = Ctx::within(Duration::from_secs(seconds));
        let save = world.suite.tier.save(&ctx, vec![world.suite.save_op(&key, LEN)]);
        let error = save.wait().pop().unwrap().result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout);
        world.server.stalled() > 0
    });
    assert!(arrived);
    assert!(world.server.object(&world.name(&key)).is_none());
    world.server.heal();
    world.server.release();
    within(Duration::from_secs(180), "it was carried out", || {
        world.server.object(&world.name(&key)).is_some()
    });
    world.suite.eventually("it is known to be there", || world.lookup(&key).is_hit());
    world.suite.eventually("stored objects are counted", || world.used() == world.in_bucket());
    assert_ne!(world.save(&key, LEN), Saved::Shed(ShedReason::Full));
    assert_eq!(world.load(&key, LEN), hit(LEN));
}

#[test]
fn saves_that_fail_hold_no_space_and_the_status_says_why_one_did() {
    let world = World::with(|mut config| {
        config.space_wait_max = Duration::from_millis(100);
        config.with_capacity(10 * LEN as u64)
    });
    for n in 0..20 {
        let key = world.suite.key(n);
        let name = world.name(&key).leak();
        let refused = Fault::Error(403, "AccessDenied");
        // However often it is tried.
        world.server.script(Rule::next(refused).method("PUT").containing(name).times(1_000_000));
        let done = world.suite.save_with(world.suite.save_op(&key, LEN));
        assert_eq!(done.result.unwrap_err().kind(), ErrorKind::Denied, "number {n}");
    }
    assert!(says(&world, "last fault: "), "{:?}", world.status());
    assert_eq!(world.save(&world.suite.key(100), LEN), Saved::Stored);
}

#[test]
fn a_save_that_succeeded_unheard_is_found() {
    let world = World::with(|mut config| {
        config.client.retries_max = 0;
        config
    });
    let key = world.suite.key(1);
    // The tier itself writes other things meanwhile.
    let name = world.name(&key).leak();
    world.server.script(
        Rule::next(Fault::DoneThenError(500, "InternalError")).method("PUT").containing(name),
    );
    let done = world.suite.save_with(world.suite.save_op(&key, LEN));
    assert_eq!(done.result.unwrap_err().kind(), ErrorKind::Io);
    world.suite.eventually("it is looked for and counted", || world.used() == LEN as u64);
    assert_eq!(world.load(&key, LEN), hit(LEN));
}

#[test]
fn a_precondition_that_fails_is_present_unless_the_key_is_suspect() {
    let world = World::with(|mut config| {
        config.if_absent = true;
        config
    });
    world.suite.eventually("the probe found that it is honoured", || {
        world.asked(|| world.save(&world.suite.key(fastrand::u64(100..)), 100)).1[0]
            .header("if-none-match")
            .is_some()
    });
    let key = world.suite.key(1);
    let other = World::over(Arc::clone(&world.server), |config| config);
    other.save(&key, LEN);
    let (saved, asked) = world.asked(|| world.save(&key, LEN));
    assert_eq!((saved, asked[0].status), (Saved::Present, 412));
    assert_eq!(world.load(&key, LEN), hit(LEN));
    world.spoil(&world.name(&key), |bytes| bytes[7] ^= 1);
    assert_eq!(world.load(&key, LEN), Loaded::Miss(MissReason::Corrupt));
    assert_eq!(world.save(&key, LEN), Saved::Stored, "a suspect is written over");
    assert_eq!(world.load(&key, LEN), hit(LEN));
}

#[test]
fn what_keeps_a_save_from_writing_is_looked_at_before_it_counts_as_the_chunk() {
    let world = World::with(|mut config| {
        config.if_absent = true;
        config
    });
    world.suite.eventually("the probe found that it is honoured", || {
        world.asked(|| world.save(&world.suite.key(fastrand::u64(100..)), 100)).1[0]
            .header("if-none-match")
            .is_some()
    });
    let [shorter, foreign, whole] = [1, 2, 3].map(|n| world.suite.key(n));
    let other = World::over(Arc::clone(&world.server), |config| config);
    other.save(&shorter, LEN / 2);
    other.save(&whole, LEN);
    world.server.put_object(&world.name(&foreign), vec![7; LEN]);
    for key in [&shorter, &foreign] {
        let (saved, asked) = world.asked(|| world.save(key, LEN));
        let methods: Vec<_> =
            asked.iter().map(|seen| (seen.method.as_str(), seen.status)).collect();
        assert_eq!(
            (saved, methods),
            (Saved::Stored, vec![("PUT", 412), ("HEAD", 200), ("PUT", 200)])
        );
        assert!(asked[2].header("if-none-match").is_none(), "written over");
        assert_eq!(world.load(key, LEN), hit(LEN));
    }
    let (saved, asked) = world.asked(|| world.save(&whole, LEN));
    assert_eq!((saved, asked.len()), (Saved::Present, 2));
    assert_eq!(world.used(), world.in_bucket());
}

#[test]
fn where_conditions_are_not_honoured_none_are_sent() {
    let world = World::on(
        |setup| setup.overwrites = true,
        |mut config| {
            config.if_absent = true;
            config
        },
    );
    world.suite.eventually("the probe is over", || {
        world
            .server
            .seen()
            .iter()
            .any(|seen| seen.method == "DELETE" && seen.target.contains("probe-"))
    });
    let (_, asked) = world.asked(|| world.save(&world.suite.key(1), LEN));
    assert!(asked.iter().all(|seen| seen.header("if-none-match").is_none()));
    assert!(world.objects().len() == 1, "the probe leaves nothing behind");
}

#[test]
fn saves_and_removes_of_one_key_that_race_leave_index_and_bucket_of_one_mind() {
    let world = World::new();
    let keys: Vec<_> = (0..4).map(|n| world.suite.key(n)).collect();
    for round in 0..15 {
        std::thread::scope(|scope| {
            for (n, key) in keys.iter().cycle().take(12).enumerate() {
                let world = &world;
                scope.spawn(move || match (n + round) % 3 {
                    0 => drop(world.suite.remove(&Arc::from([key.clone()]))),
                    1 => drop(world.load(key, 5000)),
                    _ => drop(world.save(key, 5000)),
                });
            }
        });
        assert_eq!(world.used(), world.in_bucket(), "round {round}");
        for key in &keys {
            let there = world.server.object(&world.name(key)).is_some();
            let known = world.lookup(key).is_hit();
            assert_eq!(known, there, "round {round}");
        }
    }
}

#[test]
fn saves_that_the_store_slows_down_leave_loads_their_pace() {
    let world = World::with(|mut config| {
        config.client.requests_max = 16;
        config.client.stall_max = Duration::from_secs(3600);
        config
    });
    let stored: Vec<_> = (0..12).map(|n| world.suite.key(n)).collect();
    world.suite.store(&stored, 1000);
    let put = |fault| Rule::next(fault).method("PUT").times(1_000_000);
    let save = |from: u64, count: u64, time| {
        let ops = (from..from + count).map(|n| world.suite.save_op(&world.suite.key(n), 1000));
        world.suite.tier.save(&Ctx::within(time), ops.collect())
    };
    // 16 is cut to 1.
    world.server.script(put(Fault::Error(503, "SlowDown")));
    within(Duration::from_secs(120), "the pace of writes is cut", || {
        let _ = save(100, 4, Duration::from_millis(300)).wait();
        world.tier().client().writes_limit() == 1
    });
    world.server.heal();
    let hangs = Duration::from_secs(3600);
    world.server.script(put(Fault::Hang));
    let _saves = save(200, 40, hangs);
    within(LONG, "a save hangs", || world.server.stalled() > 0);
    world.server.script(Rule::next(Fault::Hang).method("GET").times(1_000_000));
    let ops = stored.iter().map(|key| world.suite.load_op(key, 1000)).collect();
    let _loads = world.suite.tier.load(&Ctx::within(hangs), ops);
    // The saves would leave them one.
    let names: Vec<_> = stored.iter().map(|key| world.name(key)).collect();
    let hang = |name: &String| stalled_gets(&world).iter().any(|target| target.contains(name));
    within(LONG, "the loads are under way", || names.iter().all(hang));
    let puts = world.server.stalled() - stalled_gets(&world).len();
    assert!(puts < 8, "saves have {puts} of 16 places");
    world.server.heal();
    world.server.release();
}

#[test]
fn a_save_with_little_time_learns_that_the_bucket_is_full() {
    let world = World::with(|mut config| {
        config.space_wait_max = Duration::from_secs(600);
        config.with_capacity(10 * LEN as u64)
    });
    // Nothing is deleted, so no space becomes free.
    let hangs = Fault::Stall(Duration::from_secs(3600));
    world.server.script(Rule::next(hangs).method("POST").times(1_000_000));
    let numbers = Cell::new(0);
    let is_shed_in_time = || {
        let op = world.suite.save_op(&world.suite.key(numbers.replace(numbers.get() + 1)), LEN);
        let save = || world.suite.tier.save(&Ctx::within(LITTLE), vec![op]).wait().remove(0);
        let (save, took) = timed(save);
        took < LITTLE && matches!(save.result, Ok(Saved::Shed(ShedReason::Full)))
    };
    // Each waits for space only while it has time to say so. Where this machine stands still just
    // then, it is too late.
    for _ in 0..8 {
        within(LONG, "a full bucket is a reason, and no timeout", is_shed_in_time);
    }
    assert!(numbers.get() < 160, "{} tries", numbers.get());
    world.server.heal();
}

/// Without a cap no request of the background finds those that hang.
#[test]
fn requests_that_hang_keep_no_others_from_a_store_that_works_again() {
    for capacity in [Some(64 << 20), None] {
        hung_requests_keep_no_others(capacity);
    }
}

fn hung_requests_keep_no_others(capacity: Option<u64>) {
    let world = World::with(|mut config| {
        config.client.requests_max = 8;
        config.client.stall_max = Duration::from_secs(3600);
        config.capacity_bytes = capacity;
        config
    });
    let keys: Vec<_> = (0..60).map(|n| world.suite.key(n)).collect();
    world.suite.store(&keys, 1000);
    let hangs = Duration::from_secs(3600);
    world.server.script(Rule::next(Fault::Stall(hangs)).times(1_000_000));
    let ops = keys.iter().map(|key| world.suite.load_op(key, 1000)).collect();
    // They take every place, and more of them wait.
    let _hung = world.suite.tier.load(&Ctx::within(hangs), ops);
    within(LONG, "they hang", || world.server.stalled() >= 8);
    world.server.heal();
    // They go on hanging. Those that waited are sent, and others too.
    let far = Ctx::within(LONG);
    let load = world.suite.tier.load(&far, vec![world.suite.load_op(&keys[0], 1000)]);
    assert_eq!(load.wait().pop().unwrap().result.unwrap(), hit(1000));
    let save = world.suite.tier.save(&far, vec![world.suite.save_op(&world.suite.key(99), 1000)]);
    assert_eq!(save.wait().pop().unwrap().result.unwrap(), Saved::Stored);
    let hang = stalled_gets(&world).len();
    assert!(hang <= 8 + 16, "no more than that are beyond the limit: {hang}");
}
