//! Nodes on one bucket find what the others save, whatever they saved themselves, and ask for no
//! key more often than they have to.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvtier_core::{Ctx, Hold, Key, Loaded, Mode, Namespace, Presence, Saved, Tier};
use kvtier_key::KeyId;
use kvtier_s3_tier::{Evictor, Layout, TierConfig};
use kvtier_testkit::conformance::Fixture;
use kvtier_testkit::s3::{Fault, Rule, Server};
use support::tier::{World, close, plain_server, within};

const LEN: usize = 10_000;
/// What must not hang; no measure of speed.
const PATIENCE: Duration = Duration::from_secs(180);
const MISS_MAX: Duration = Duration::from_millis(500);

/// As it is by default, but for the layout and whether there is a cap.
fn node(server: &Arc<Server>, layout: Layout, capped: bool) -> World {
    World::over(Arc::clone(server), |mut config| {
        let fresh =
            TierConfig::new(support::config_of(support::endpoint(server, "bucket"))).fresh_miss_max;
        assert_eq!(fresh, MISS_MAX, "the default");
        config.fresh_miss_max = fresh;
        config.layout = layout;
        config.namespace = Some(Arc::new(space()));
        config.capacity_bytes = config.capacity_bytes.filter(|_| capped);
        config
    })
}

fn space() -> Namespace {
    Namespace::new("", Default::default()).with_chunk_bytes(0, LEN as u64)
}

/// Key number `n` as the layout has it.
fn key(layout: Layout, n: u64) -> Key {
    if layout != Layout::Lmcache {
        return Fixture::key_in(space(), n);
    }
    let id = KeyId::from_engine_text(&format!(
        "org/model@1@0@{:x}@bfloat16",
        0x1234_5678_9abc_0000_u64 + n
    ));
    Key::new(Arc::new(space()), id.unwrap())
}

fn heads(server: &Server) -> usize {
    server.seen().iter().filter(|seen| seen.method == "HEAD").count()
}

#[test]
fn a_node_that_never_writes_finds_what_another_saves_in_a_bucket_that_was_empty() {
    for (layout, capped) in
        Layout::ALL.into_iter().flat_map(|layout| [(layout, true), (layout, false)])
    {
        let server = plain_server();
        let reader = node(&server, layout, capped);
        let writer = node(&server, layout, capped);
        let hit = Presence::Hit { len: LEN as u64 };
        for n in 0..48 {
            assert_eq!(writer.save(&key(layout, n), LEN), Saved::Stored);
            // At once: it was not asked for before.
            assert_eq!(reader.lookup(&key(layout, n)), hit, "{layout}, capped: {capped}, {n}");
            assert_eq!(reader.load(&key(layout, n), LEN), Loaded::Hit { len: LEN as u64 });
        }
        assert_eq!(
            server
                .seen()
                .iter()
                .filter(|seen| seen.method == "PUT" && is_chunk(&seen.target))
                .count(),
            48
        );
        for n in 100..104 {
            assert_eq!(reader.lookup(&key(layout, n)), Presence::Miss, "{layout}");
            assert_eq!(writer.save(&key(layout, n), LEN), Saved::Stored);
            let saved = Instant::now();
            let before = heads(&server);
            within(PATIENCE, "the reader finds it", || reader.lookup(&key(layout, n)) == hit);
            let took = saved.elapsed();
            let asked = heads(&server) - before;
            // The miss is believed for its time and no longer, and then one question finds the
            // chunk.
            assert_eq!(asked, 1, "{layout}, capped: {capped}: found after {took:?}");
        }
        close(reader);
        close(writer);
    }
}

/// Whether a request is for a chunk, and not for what tiers write themselves.
fn is_chunk(target: &str) -> bool {
    !target.contains(".kvtier")
}

#[test]
fn a_reader_by_its_settings_finds_what_others_save() {
    let server = plain_server();
    let reader = World::over(Arc::clone(&server), |mut config| {
        config.sync.evictor = Evictor::Never;
        config
    });
    let writer = World::over(Arc::clone(&server), |config| config);
    for n in 0..20 {
        let key = reader.suite.key(n);
        assert_eq!(reader.lookup(&key), Presence::Miss);
        assert_eq!(writer.save(&key, LEN), Saved::Stored);
        assert_eq!(reader.lookup(&key), Presence::Hit { len: LEN as u64 }, "{n}");
    }
}

#[test]
fn a_key_that_is_not_there_is_asked_for_once_in_the_time_that_a_miss_is_believed() {
    let server = plain_server();
    let world = World::over(Arc::clone(&server), |mut config| {
        config.fresh_miss_max = PATIENCE;
        config
    });
    let eight = |keys: &Arc<[Key]>| {
        let ctx = Ctx::within(PATIENCE);
        let lookup = |_| world.tier.lookup(&ctx, Arc::clone(keys), Mode::Each, Hold::None);
        for lookup in (0..8).map(lookup).collect::<Vec<_>>() {
            assert!(lookup.wait().unwrap().found.iter().all(|found| *found == Presence::Miss));
        }
    };
    let few: Arc<[Key]> = (0..6).map(|n| world.suite.key(n)).collect();
    // The first answers are held back, so that the other lookups come meanwhile.
    server.script(Rule::next(Fault::Stall(Duration::from_millis(300))).method("HEAD").times(6));
    eight(&few);
    eight(&few);
    assert_eq!((heads(&server), world.count("heads"), world.count("listed_lookups")), (6, 6, 0));
    // Many keys in a small bucket are looked up by one listing.
    let many: Arc<[Key]> = (100..300).map(|n| world.suite.key(n)).collect();
    server.script(
        Rule::next(Fault::Stall(Duration::from_millis(300)))
            .method("GET")
            .containing("list-type=2")
            .times(1),
    );
    eight(&many);
    eight(&many);
    assert_eq!((heads(&server), world.count("heads"), world.count("listed_lookups")), (6, 6, 1));
}

#[test]
fn of_two_lookups_the_second_asks_itself_when_the_first_got_no_answer() {
    let server = plain_server();
    let world = World::over(Arc::clone(&server), |mut config| {
        config.fresh_miss_max = PATIENCE;
        config
    });
    let keys: Arc<[Key]> = Arc::from([world.suite.key(1)]);
    // A HEAD, and the GET that asks why it was refused.
    let denied = || Rule::next(Fault::Error(403, "AccessDenied")).times(1);
    server.script(denied().method("HEAD"));
    server.script(denied().with("range", "bytes=0-0"));
    let ctx = Ctx::within(PATIENCE);
    let lookup = || world.tier.lookup(&ctx, Arc::clone(&keys), Mode::Each, Hold::None);
    let first = lookup();
    let second = lookup();
    let failed = [first.wait().is_err(), second.wait().is_err()]
        .into_iter()
        .filter(|failed| *failed)
        .count();
    assert_eq!(failed, 1, "one was refused, and the other asked");
}
