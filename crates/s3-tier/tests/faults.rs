//! Every script of faults that the client is tried with, run through the tier: loads, saves,
//! lookups and removes meanwhile. No byte is wrong, service is back within two seconds of its end as
//! this machine has them, and index and bucket are of one mind after it. In virtual time
//! `kvtier-faultsim` has the two seconds exactly (`service`).
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvtier_core::{Ctx, Done, ErrorKind, Hold, Key, Load, Loaded, Mode, Observe, Presence, Saved};
use kvtier_s3::BucketAddress;
use kvtier_s3_tier::{S3Tier, TierConfig};
use kvtier_testkit::Content;
use kvtier_testkit::conformance::Fixture;
use kvtier_testkit::s3::{Fault, Rule};
use support::pace::{BEATS_PER_S, Pace};
use support::tier::World;
use support::{config_of, dead};

const LEN: usize = 150_000;
/// How long it lasts.
const SCRIPT_TIME: Duration = Duration::from_millis(400);
/// How soon service must be back, as a tier without faults serves meanwhile.
const BACK: u64 = 2 * BEATS_PER_S;
/// What must not hang; no measure of speed.
const BACK_LATE: Duration = Duration::from_secs(600);
const TRIES: usize = 5;
/// Worlds at a time: mostly they wait.
const AT_ONCE: usize = 8;

/// What goes wrong for a while.
#[derive(Clone, Debug)]
enum Script {
    /// This, with every request.
    Every(Fault),
    /// This, with every request of that method.
    On(&'static str, Fault),
    /// Connections close, again and again.
    Disconnects,
    /// The server's clock is an hour ahead.
    Clock,
}

fn scripts() -> Vec<Script> {
    let slow = Duration::from_secs(5);
    let every = [
        Fault::Error(500, "InternalError"),
        Fault::Error(503, "SlowDown"),
        Fault::SlowDown(1),
        Fault::Error(400, "RequestTimeout"),
        Fault::Error(403, "AccessDenied"),
        Fault::Error(403, "ExpiredToken"),
        Fault::Error(403, "RequestTimeTooSkewed"),
        Fault::Error(404, "NoSuchKey"),
        Fault::Error(404, "NoSuchBucket"),
        Fault::Error(409, "OperationAborted"),
        Fault::Html(404),
        Fault::Html(502),
        Fault::Html(504),
        Fault::Early(403, "AccessDenied"),
        Fault::Early(503, "SlowDown"),
        Fault::Hangup,
        Fault::Stall(slow),
        Fault::Clog,
        Fault::CloseAfter,
        Fault::OkThenError("InternalError"),
        Fault::DoneThenError(500, "InternalError"),
        Fault::DoneThenError(503, "SlowDown"),
    ];
    let bodies = [
        Fault::Cut(0),
        Fault::Cut(1),
        Fault::Cut(LEN / 2),
        Fault::Cut(LEN - 1),
        Fault::Drip(1000, Duration::from_millis(20)),
        Fault::OverLong(5000),
        Fault::Shorter(1),
        Fault::Longer(1),
        Fault::Flip,
        Fault::WrongRange,
        Fault::IgnoreRange,
        Fault::Chunked,
    ];
    let every = every.map(Script::Every).into_iter();
    let bodies = bodies.map(|fault| Script::On("GET", fault)).into_iter();
    every.chain(bodies).chain([Script::Disconnects, Script::Clock]).collect()
}

/// Whether it was a hit, whose bytes are then right.
fn is_right(done: &Done<Load, Loaded>, script: &Script) -> bool {
    let Ok(Loaded::Hit { len }) = done.result else { return false };
    assert_eq!(len, LEN as u64, "{script:?}");
    assert_eq!(
        Content::of(&done.op.key).check(0, done.op.into[0].as_host().unwrap()),
        Ok(()),
        "{script:?}: wrong bytes"
    );
    true
}

/// Whatever a tier is asked for, while nothing is right.
fn run_script(world: &World, script: &Script) -> u64 {
    let begun = Instant::now();
    let mut next = 100;
    let key = |n| world.suite.key(n);
    while begun.elapsed() < SCRIPT_TIME {
        if matches!(script, Script::Disconnects) {
            world.server.disconnect();
        }
        let ctx = Ctx::within(Duration::from_millis(120));
        let loads = (0..6).map(|n| world.suite.load_op(&key(n), LEN)).collect();
        let loads = world.suite.tier.load(&ctx, loads);
        let saves = (0..4).map(|n| world.suite.save_op(&key(next + n), LEN)).collect();
        let saves = world.suite.tier.save(&ctx, saves);
        let asked: Arc<[Key]> = (next - 50..next + 2).map(key).collect();
        let lookup = world.suite.tier.lookup(&ctx, asked, Mode::Each, Hold::None);
        let remove = world.suite.tier.remove(&ctx, Arc::from([key(next - 1), key(7)]));
        for done in loads.wait() {
            let _ = is_right(&done, script);
        }
        drop((saves.wait(), lookup.wait().is_ok(), remove.wait().is_ok()));
        next += 4;
    }
    next
}

/// Answers how many beats service took to be back.
fn run(script: &Script, pace: &Pace) -> u64 {
    let world = World::with(|mut config| {
        config.client.stall_max = Duration::from_millis(300);
        config.sync.sweep_every = Duration::from_millis(100);
        config.sync.listings_per_second_max = 1000;
        config
    });
    let keys: Vec<Key> = (0..8).map(|n| world.suite.key(n)).collect();
    // An attempt may take longer than the client allows, where the machine stands still.
    for key in &keys {
        world.suite.eventually("it is stored", || {
            let saved =
                world.suite.tier.save(&world.suite.ctx(), vec![world.suite.save_op(key, LEN)]);
            matches!(saved.wait().remove(0).result, Ok(Saved::Stored | Saved::Present))
        });
    }
    let rule = match script {
        Script::Every(fault) => Some(Rule::next(fault.clone())),
        Script::On(method, fault) => Some(Rule::next(fault.clone()).method(method)),
        Script::Clock | Script::Disconnects => None,
    };
    if let Some(rule) = rule {
        world.server.script(rule.times(u32::MAX));
    }
    if matches!(script, Script::Clock) {
        world.server.step_clock(3600);
    }
    let met = run_script(&world, script);
    world.server.heal();
    world.server.step_clock(0);
    let (begun, beats) = (Instant::now(), pace.beats());
    let fresh = world.suite.key(10_000);
    let left =
        || Ctx::within(BACK_LATE.saturating_sub(begun.elapsed()).max(Duration::from_millis(1)));
    let saved = || {
        world
            .suite
            .tier
            .save(&left(), vec![world.suite.save_op(&fresh, LEN)])
            .wait()
            .remove(0)
            .result
    };
    let loaded =
        || world.suite.tier.load(&left(), vec![world.suite.load_op(&fresh, LEN)]).wait().remove(0);
    while !(matches!(saved(), Ok(Saved::Stored | Saved::Present)) && is_right(&loaded(), script)) {
        assert!(
            begun.elapsed() < BACK_LATE,
            "{script:?}: service is not back after {:?}: {:?}",
            begun.elapsed(),
            world.status()
        );
    }
    let back = pace.beats() - beats;
    for n in (0..8).chain(100..met) {
        let mut done = world.try_load(&world.suite.key(n), LEN);
        while done.result.is_err() && begun.elapsed() < BACK_LATE {
            done = world.try_load(&world.suite.key(n), LEN);
        }
        assert!(
            is_right(&done, script) || matches!(done.result, Ok(Loaded::Miss(_))),
            "{script:?}: {:?}",
            done.result
        );
    }
    world.suite.eventually(&format!("{script:?}: index and bucket agree"), || {
        world.used() == world.in_bucket()
    });
    back
}

#[test]
fn every_script_of_faults_costs_no_byte_and_service_is_back_within_two_seconds() {
    let pace = Pace::start();
    let soon = |script: &Script| {
        let backs: Vec<_> =
            (0..TRIES).map(|_| run(script, &pace)).take_while(|back| *back > BACK).collect();
        assert!(backs.len() < TRIES, "{script:?}: service is back after {backs:?} beats");
    };
    for some in scripts().chunks(AT_ONCE) {
        std::thread::scope(|scope| {
            some.iter().for_each(|script| drop(scope.spawn(move || soon(script))))
        });
    }
}

#[test]
fn why_the_endpoint_is_not_asked_is_in_the_error_of_a_load_and_in_the_status() {
    let (address, _kept) = dead();
    let endpoint = BucketAddress::new(format!("http://{address}"))
        .bucket("bucket")
        .region("us-east-1")
        .resolve()
        .unwrap();
    let config = TierConfig::new(config_of(endpoint)).with_capacity(64 << 20);
    let tier = Arc::new(S3Tier::open(config).unwrap());
    let mut suite = Fixture::new(kvtier_testkit::ModelTier::open(Default::default()).unwrap());
    suite.tier = Arc::clone(&tier) as Arc<_>;
    let mut refused = 0;
    for n in 0..200 {
        let done = suite.load_with(suite.load_op(&suite.key(n), LEN));
        let error = done.result.unwrap_err();
        let causes = std::iter::successors(Some(&error as &dyn std::error::Error), |e| e.source());
        let causes: Vec<String> = causes.map(ToString::to_string).collect();
        assert!(causes.last().unwrap().contains("Connection refused"), "{causes:?}");
        assert!(causes.iter().any(|cause| cause.contains("attempt")), "{causes:?}");
        refused +=
            u32::from(causes.iter().any(|cause| cause.contains("none is sent for a moment")));
        let reasons = tier.status().reasons;
        assert!(reasons.iter().any(|reason| reason.contains("Connection refused")), "{reasons:?}");
        if refused > 3 {
            return;
        }
    }
    panic!("the breaker refused no load");
}

#[test]
fn a_lookup_answers_for_the_keys_that_the_store_answers_for() {
    let world = World::with(|config| config.with_capacity(0));
    let writer = World::over(Arc::clone(&world.server), |config| config);
    writer.suite.store(&[writer.suite.key(0)], LEN);
    let keys: Arc<[_]> = (0..3).map(|n| world.suite.key(n)).collect();
    let fails = |n: u64| {
        let name = world.name(&world.suite.key(n)).leak();
        let rule = Rule::next(Fault::Error(403, "AccessDenied")).method("HEAD").containing(name);
        world.server.script(rule.times(u32::MAX));
    };
    fails(1);
    let lookup = |keys: &Arc<[_]>| {
        let ctx = world.suite.ctx();
        world.suite.tier.lookup(&ctx, Arc::clone(keys), Mode::Each, Hold::None).wait()
    };
    let found = lookup(&keys).unwrap().found;
    assert!(found[0].is_hit(), "{found:?}");
    assert_eq!(found[1..], [Presence::Unknown, Presence::Miss]);
    // Without any answer it is an error, and so is a remove of what may be there.
    assert_eq!(lookup(&Arc::from([world.suite.key(1)])).unwrap_err().kind(), ErrorKind::Denied);
    let removed = world.suite.tier.remove(&world.suite.ctx(), Arc::clone(&keys)).wait();
    assert_eq!(removed.unwrap_err().kind(), ErrorKind::Denied);
    world.server.heal();
    assert_eq!(lookup(&keys).unwrap().found[1], Presence::Miss);
}
