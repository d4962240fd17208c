//! A tier with a cap: who goes, when, and who waits for it.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use kvtier_core::{Ctx, Key, Loaded, Mode, Observe, Presence, Saved, ShedReason, TierExt};
use kvtier_s3_tier::Compat;
use kvtier_testkit::s3::{Fault, Rule, SeenRequest};
use support::pace::{BEATS_PER_S, Pace};
use support::tier::{World, timed};

const LEN: usize = 10_000;
const SPACE_WAIT_MAX: Duration = Duration::from_secs(600);
/// What does not wait for space takes no longer.
const AT_ONCE: Duration = Duration::from_secs(300);

/// Threads that save at a time.
const WRITERS: u64 = 8;

/// A tier for a hundred chunks.
fn small() -> World {
    World::with(|mut config| {
        // Nothing is shed because this machine is slow.
        config.space_wait_max = SPACE_WAIT_MAX;
        config.with_capacity(100 * LEN as u64)
    })
}

fn deletes(asked: &[SeenRequest]) -> usize {
    asked.iter().filter(|seen| seen.method == "POST" && seen.target.contains("delete")).count()
}

#[test]
fn a_writer_at_full_speed_over_a_full_tier_never_stands_still_for_a_second() {
    let world = small();
    // Every delete takes its time.
    world.server.script(
        Rule::next(Fault::Stall(Duration::from_millis(30))).method("POST").times(1_000_000),
    );
    let pace = Pace::start();
    let mut slow = 0;
    let mut longest = Duration::ZERO;
    let (_, asked) = world.asked(|| {
        for n in 0..600 {
            let key = world.suite.key(n);
            let before = pace.beats();
            let (saved, took) = timed(|| world.save(&key, LEN));
            assert_eq!(saved, Saved::Stored, "number {n}");
            let is_slow = pace.beats() - before > BEATS_PER_S;
            (slow, longest) = (slow + u32::from(is_slow), longest.max(took));
            assert!(world.used() <= 100 * LEN as u64, "the cap holds");
        }
    });
    // A thread that stands still alone holds up one or two of six hundred.
    assert!(slow <= 3 && longest < AT_ONCE, "{slow} saves took a second or more, one {longest:?}");
    let evicted = world.count("evicted");
    assert!(evicted >= 490, "{evicted} evicted");
    assert!(deletes(&asked) as u64 <= evicted, "{} requests for {evicted} keys", deletes(&asked));
    world.suite.eventually("below the high mark", || world.used() <= 98 * LEN as u64);
    world.suite.eventually("index and bucket agree", || world.used() == world.in_bucket());
    assert_eq!(world.load(&world.suite.key(599), LEN), Loaded::Hit { len: LEN as u64 });
}

#[test]
fn many_writers_over_a_full_tier_share_the_deletes() {
    let world = small();
    world.server.script(Rule::next(Fault::Hang).method("POST").times(1_000_000));
    let [begun, writing] = [0, WRITERS].map(AtomicU64::new);
    // Saves that were sent, without what the tier itself writes.
    let sent = || {
        let is_own = |seen: &&SeenRequest| seen.method == "PUT" && seen.target.contains("/.kvtier");
        let own = world.server.seen().iter().filter(is_own).count() as u64;
        world.count("requests_put").saturating_sub(own + world.count("retries"))
    };
    let all_wait = || begun.load(SeqCst).saturating_sub(sent()) >= writing.load(SeqCst);
    let (_, asked) = world.asked(|| {
        std::thread::scope(|scope| {
            let write = |writer| {
                let (world, begun, writing) = (&world, &begun, &writing);
                scope.spawn(move || {
                    for n in 0..60 {
                        let key = world.suite.key(writer * 1000 + n);
                        begun.fetch_add(1, SeqCst);
                        let (saved, took) = timed(|| world.save(&key, LEN));
                        assert_eq!(saved, Saved::Stored);
                        assert!(took < AT_ONCE, "a save took {took:?}");
                    }
                    writing.fetch_sub(1, SeqCst);
                })
            };
            let writers: Vec<_> = (0..WRITERS).map(write).collect();
            // A delete takes until all that still write wait for space.
            while !writers.iter().all(|writer| writer.is_finished()) {
                if all_wait() {
                    world.server.release();
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        world.server.heal();
        world.server.release();
    });
    let evicted = world.count("evicted") as usize;
    assert!(evicted > 2 * deletes(&asked), "{evicted} keys in {} requests", deletes(&asked));
    assert!(world.used() <= 100 * LEN as u64);
    world.suite.eventually("index and bucket agree", || world.used() == world.in_bucket());
}

#[test]
fn deleting_is_ten_times_as_fast_as_one_request_a_key() {
    let world = World::with(|mut config| {
        config.client.requests_max = 1;
        config
    });
    let keys: Vec<Key> = (0..1100).map(|n| world.suite.key(n)).collect();
    let ops = keys.iter().map(|key| world.suite.save_op(key, 10)).collect();
    let saved = world.runtime.block_on(world.suite.tier.save_waiting(&world.suite.ctx(), ops));
    assert!(saved.iter().all(|done| matches!(done.result, Ok(Saved::Stored))));
    drop(saved);
    let slow = |method| {
        Rule::next(Fault::Stall(Duration::from_millis(20))).method(method).times(1_000_000)
    };
    world.server.script(slow("POST")).script(slow("DELETE"));
    let singly: Vec<String> = keys[..100].iter().map(|key| world.name(key)).collect();
    let (_, each) = timed(|| singly.iter().for_each(|name| world.delete(name)));
    let rest: Arc<[Key]> = keys[100..].into();
    let ((removed, asked), many) = timed(|| world.asked(|| world.suite.remove(&rest)));
    assert_eq!((removed.removed, deletes(&asked)), (1000, 1), "a thousand keys, one request");
    // This machine may do something else for longer than a hundred of them take.
    assert!(many < each.max(AT_ONCE), "1000 keys in {many:?}, 100 singly in {each:?}");
}

#[test]
fn the_least_recently_used_go_and_the_held_stay() {
    let world = small();
    let keys: Vec<Key> = (0..90).map(|n| world.suite.key(n)).collect();
    world.suite.store(&keys, LEN);
    assert_eq!(world.load(&keys[0], LEN), Loaded::Hit { len: LEN as u64 });
    let hold = world.suite.hold(&Arc::from([keys[1].clone()]), Duration::from_secs(3600));
    (200..230).for_each(|n| assert_eq!(world.save(&world.suite.key(n), LEN), Saved::Stored));
    assert!(world.lookup(&keys[0]).is_hit(), "used since");
    assert!(
        world.lookup(&keys[1]).is_hit() && world.server.object(&world.name(&keys[1])).is_some(),
        "held"
    );
    assert!(!world.lookup(&keys[2]).is_hit());
    world.suite.tier.release(hold.hold.unwrap());
}

#[test]
fn a_tier_full_of_held_chunks_sheds_saves_at_once_and_serves_reads() {
    let world = small();
    let keys: Arc<[Key]> = (0..97).map(|n| world.suite.key(n)).collect();
    world.suite.store(&keys, LEN);
    let hold = world.suite.hold(&keys, Duration::from_secs(3600));
    (200..203).for_each(|n| assert_eq!(world.save(&world.suite.key(n), LEN), Saved::Stored));
    world.suite.eventually("what is not held went", || world.used() <= 98 * LEN as u64);
    let mut shed = 0;
    for n in 300..310 {
        let (saved, took) = timed(|| world.save(&world.suite.key(n), LEN));
        shed += usize::from(saved == Saved::Shed(ShedReason::Full));
        assert!(took < AT_ONCE, "{took:?}");
    }
    keys.iter().for_each(|key| assert_eq!(world.load(key, LEN), Loaded::Hit { len: LEN as u64 }));
    world.suite.tier.release(hold.hold.unwrap());
    assert_eq!(world.save(&world.suite.key(400), LEN), Saved::Stored);
    assert!(shed <= 10);
}

#[test]
fn above_the_reject_mark_saves_are_shed_and_reads_never() {
    let world = World::with(|mut config| {
        (config.high_mark, config.reject_mark) = (0.5, 0.6);
        config.space_wait_max = Duration::from_millis(100);
        config.with_capacity(100 * LEN as u64)
    });
    let keys: Vec<Key> = (0..48).map(|n| world.suite.key(n)).collect();
    world.suite.store(&keys, LEN);
    world
        .server
        .script(Rule::next(Fault::Error(403, "AccessDenied")).method("POST").times(1_000_000));
    let saves: Vec<_> =
        (100..130).map(|n| timed(|| world.save(&world.suite.key(n), LEN))).collect();
    assert!(
        saves.iter().any(|(saved, _)| *saved == Saved::Shed(ShedReason::Full)),
        "the store deletes nothing"
    );
    assert!(saves.iter().all(|(_, took)| *took < AT_ONCE));
    assert!(world.used() <= 60 * LEN as u64);
    assert_eq!(
        world.load(&keys[47], LEN),
        Loaded::Hit { len: LEN as u64 },
        "reads are served all the while"
    );
    world.server.heal();
    let end = std::time::Instant::now() + Duration::from_secs(600);
    while world.save(&world.suite.key(500), LEN) != Saved::Stored {
        assert!(
            std::time::Instant::now() < end,
            "the store deletes again, and no save goes through"
        );
    }
    assert_eq!(world.tier().usage().capacity_bytes, Some(100 * LEN as u64));
}

#[test]
fn what_others_write_over_the_cap_goes_in_the_order_of_use() {
    let writer = World::with(|config| config.with_capacity(0));
    let keys: Vec<Key> = (0..150).map(|n| writer.suite.key(n)).collect();
    writer.suite.store(&keys, LEN);
    let world =
        World::over(Arc::clone(&writer.server), |config| config.with_capacity(100 * LEN as u64));
    // More may be on its way out.
    world.suite.eventually("it is brought under the cap", || {
        world.used() <= 98 * LEN as u64 && world.used() == world.in_bucket()
    });
    let found = writer.suite.lookup(&keys.clone().into(), Mode::Each);
    assert!(found.iter().any(|presence| presence.is_hit()));
}

#[test]
fn without_a_cap_usage_is_unknown_and_nothing_goes() {
    let world = World::with(|config| config.with_capacity(0));
    let keys: Vec<Key> = (0..50).map(|n| world.suite.key(n)).collect();
    let (_, asked) = world.asked(|| world.suite.store(&keys, LEN));
    let usage = world.tier().usage();
    assert_eq!((usage.used_bytes, usage.capacity_bytes), (None, None));
    assert_eq!((world.objects().len(), deletes(&asked)), (50, 0));
}

#[test]
fn loads_overtake_saves_that_wait() {
    let world = World::with(|mut config| {
        config.client.requests_max = 1;
        config
    });
    let key = world.suite.key(1);
    world.save(&key, LEN);
    // No save is answered before the load is.
    let hang = |n| {
        let name = world.name(&world.suite.key(n)).leak();
        world.server.script(Rule::next(Fault::Hang).method("PUT").containing(name));
    };
    (100..140).for_each(hang);
    let save = |numbers: std::ops::Range<u64>| {
        let ops = numbers.map(|n| world.suite.save_op(&world.suite.key(n), LEN)).collect();
        world.suite.tier.save(&world.suite.ctx(), ops)
    };
    let (_, asked) = world.asked(|| {
        let first = world.name(&world.suite.key(100));
        let hangs = || {
            world.server.stalled_requests().iter().any(|stalled| stalled.target.contains(&first))
        };
        let one = save(100..101);
        world.suite.eventually("the first is on its way", hangs);
        let others = save(101..140);
        // It waits for none of the forty: one that hangs is abandoned for it.
        assert_eq!(world.load(&key, LEN), Loaded::Hit { len: LEN as u64 });
        assert!(!one.is_done() && !others.is_done());
        // Behind the forty it would have come after 39 that hang.
        let hung = world.server.stalled_requests().len();
        assert!(hung < 20, "{hung} hang");
        world.server.heal();
        world.server.release();
        for saving in [one, others] {
            assert!(saving.wait().iter().all(|done| matches!(done.result, Ok(Saved::Stored))));
        }
    });
    assert!(asked.len() > 40);
    assert_eq!(asked[0].method, "GET", "behind those that hang, not behind forty");
}

/// Where this machine stands still for a second, a request counts as one that hangs, and another one
/// is sent in its place.
#[test]
fn no_more_requests_are_in_flight_than_may_be() {
    let tries: Vec<usize> =
        (0..5).map(|_| connections_of_three_requests()).take_while(|count| *count > 3).collect();
    assert!(tries.len() < 5, "{tries:?} connections");
}

fn connections_of_three_requests() -> usize {
    let world = World::with(|mut config| {
        config.client.requests_max = 3;
        config
    });
    world.server.script(Rule::next(Fault::Stall(Duration::from_millis(5))).times(1000));
    let before = world.server.accepted();
    let ops = (0..60).map(|n| world.suite.save_op(&world.suite.key(n), LEN)).collect();
    let saving = world.suite.tier.save(&world.suite.ctx(), ops);
    let loads = (0..60).map(|n| world.suite.load_op(&world.suite.key(n), LEN)).collect();
    let loading = world.suite.tier.load(&world.suite.ctx(), loads);
    assert!(saving.wait().iter().all(|done| matches!(done.result, Ok(Saved::Stored))));
    assert!(loading.wait().iter().all(|done| done.result.is_ok()));
    world.server.accepted() - before
}

#[test]
fn too_many_bytes_in_flight_are_throttled_and_waited_for() {
    let world = World::with(|mut config| {
        config.inflight_bytes_max = 5 * LEN as u64;
        config
    });
    // They are still under way when the rest comes, however busy the machine is.
    world
        .server
        .script(Rule::next(Fault::Stall(Duration::from_millis(20))).method("PUT").times(1000));
    let ops: Vec<_> = (0..40).map(|n| world.suite.save_op(&world.suite.key(n), LEN)).collect();
    let saved = world
        .runtime
        .block_on(world.suite.tier.save_waiting(&Ctx::within(Duration::from_secs(600)), ops));
    assert!(saved.iter().all(|done| matches!(done.result, Ok(Saved::Stored))));
    assert!(world.count("throttled") > 0);
}

#[test]
fn a_remove_takes_victims_over_that_wait_to_be_deleted() {
    let world = World::with(|mut config| {
        (config.high_mark, config.batch_max, config.space_wait_max) = (1.0, 0.001, SPACE_WAIT_MAX);
        config.with_capacity(100 * LEN as u64)
    });
    let keys: Vec<Key> = (0..100).map(|n| world.suite.key(n)).collect();
    world.suite.store(&keys, LEN);
    world
        .server
        // The first delete is answered when the test has seen the rest.
        .script(Rule::next(Fault::Hang).method("POST"));
    let there = |key: &Key| world.server.object(&world.name(key)).is_some();
    let leaving = || {
        keys.iter()
            .filter(|key| world.lookup(key) == Presence::Miss && there(key))
            .collect::<Vec<_>>()
    };
    std::thread::scope(|scope| {
        let world = &world;
        let save = move |n, len| {
            drop(world.suite.save_with(world.suite.save_op(&world.suite.key(n), len)))
        };
        scope.spawn(move || save(200, LEN));
        world.suite.eventually("a victim is being deleted", || !leaving().is_empty());
        let first = leaving();
        // More space is needed: the next victim waits until the first is deleted.
        scope.spawn(move || save(201, 3 * LEN));
        world.suite.eventually("others wait", || leaving().iter().any(|key| !first.contains(key)));
        let key = leaving().into_iter().find(|key| !first.contains(key)).unwrap();
        world.suite.remove(&Arc::from([key.clone()]));
        assert!(!there(key), "what was removed is gone");
        assert_eq!(world.lookup(key), Presence::Miss, "and known to be");
        world.server.release();
    });
    world.suite.eventually("index and bucket agree", || world.used() == world.in_bucket());
}

#[test]
fn compat_evicts_by_the_second_at_the_watermark_and_a_share_of_all_chunks() {
    let world = World::with(|mut config| {
        config.compat = Some(Compat { watermark: 0.8, ratio: 0.25 });
        config.with_capacity(100 * LEN as u64)
    });
    let keys: Vec<Key> = (0..79).map(|n| world.suite.key(n)).collect();
    world.suite.store(&keys, LEN);
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(
        (world.objects().len(), world.count("evicted")),
        (79, 0),
        "nothing goes below the watermark"
    );
    assert_eq!(world.save(&world.suite.key(79), LEN), Saved::Stored);
    world.suite.eventually("a quarter of them went", || world.objects().len() == 60);
    world.suite.eventually("and are counted", || world.count("evicted") == 20);
    assert!(!world.lookup(&keys[0]).is_hit() && world.lookup(&keys[20]).is_hit(), "the oldest");
    // What does not fit below the cap waits for the next second, and not for long.
    let saves: Vec<_> =
        (100..160).map(|n| timed(|| world.save(&world.suite.key(n), LEN))).collect();
    assert!(saves.iter().all(|(_, took)| *took < AT_ONCE));
    assert!(world.used() <= 100 * LEN as u64);
    world.suite.eventually("below the watermark again", || world.used() < 80 * LEN as u64);
    world.suite.eventually("index and bucket agree", || world.used() == world.in_bucket());
}
