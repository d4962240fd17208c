//! Synchronisation with the bucket: its content whichever program wrote it, and the order of use
//! after a restart.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::time::Duration;

use kvtier_core::{Key, Loaded, Observe, Presence, Saved};
use kvtier_s3_tier::{Evictor, TierConfig};
use kvtier_testkit::s3::{Fault, Rule};
use support::tier::{PREFIX, World, close, plain_server, quick, says, within};
use support::{endpoint, server};

const LEN: usize = 10_000;

/// Sheds nothing because this machine is slow.
fn patient(mut config: TierConfig) -> TierConfig {
    config.space_wait_max = Duration::from_secs(600);
    config
}

/// Ends a tier that leaves a snapshot: who evicts does, and who started a moment ago may not yet.
fn close_with_snapshot(world: World) {
    world.suite.eventually("it evicts", || says(&world, "this node evicts"));
    close(world);
}

#[test]
fn foreign_writes_and_deletes_during_a_run_are_discovered() {
    let world = World::with(quick);
    let keys: Vec<Key> = (0..6).map(|n| world.suite.key(n)).collect();
    keys[..4].iter().for_each(|key| world.save_in_time(key, LEN));
    let writer = World::over(Arc::clone(&world.server), |mut config| {
        // Only a listing shows what it writes.
        config.sync.journal_every = Duration::from_secs(36_000);
        config
    });
    assert_eq!(writer.save(&keys[5], LEN), Saved::Stored);
    world.delete(&world.name(&keys[0]));
    world.write(&world.name(&keys[4]), &[7; 500], None);
    world.suite.eventually("usage is what is in the bucket", || world.used() == world.in_bucket());
    assert_eq!(world.tier.usage().chunks, 5);
    assert_eq!(world.load(&keys[0], LEN), Loaded::Miss(kvtier_core::MissReason::Absent));
    assert_eq!(world.load(&keys[5], LEN), Loaded::Hit { len: LEN as u64 });
    assert_eq!(world.lookup(&keys[1]), Presence::Hit { len: LEN as u64 });
    // Another length under the same name.
    world.write(&world.name(&keys[1]), &[1; 77], None);
    world.suite.eventually("the new length counts", || world.used() == world.in_bucket());
    assert!(
        world.count("deleted_externally") >= 1
            && world.count("added_externally") >= 2
            && world.count("sweeps") >= 2
    );
}

#[test]
fn objects_that_are_no_chunks_are_left_alone_and_not_counted() {
    let server = plain_server();
    for odd in
        ["kv/notes.txt", "kv/00/zz", "kv/.kvtier/lease/junk", "other/00/file", "kv/ab/.kvtier/x"]
    {
        server.put_object(odd, vec![1; 100]);
    }
    let world =
        World::over(Arc::clone(&server), |config| quick(config).with_capacity(20 * LEN as u64));
    for n in 0..60 {
        world.save(&world.suite.key(n), LEN);
    }
    world.suite.eventually("three sweeps", || world.count("sweeps") >= 3);
    assert!(world.used() <= 20 * LEN as u64);
    for odd in
        ["kv/notes.txt", "kv/00/zz", "kv/.kvtier/lease/junk", "other/00/file", "kv/ab/.kvtier/x"]
    {
        assert!(server.object(odd).is_some(), "{odd} is foreign");
    }
}

#[test]
fn a_large_bucket_is_listed_by_prefix_on_s3_and_on_s3_express() {
    for bucket in ["bucket", "kv--use1-az4--x-s3"] {
        let server = server(|setup| setup.bucket = bucket.into());
        for n in 0..3000u32 {
            let hex = kvtier_key::Digest::derive("test", &n.to_le_bytes()).to_hex();
            server.put_object(&format!("kv/{}/{hex}", &hex[..2]), vec![0; 10]);
        }
        let client = support::config_of(endpoint(&server, bucket));
        let config = TierConfig::new(client).with_capacity(64 << 20).with_prefix(PREFIX);
        let tier = kvtier_s3_tier::S3Tier::open(config).unwrap();
        within(Duration::from_secs(180), "the bucket is listed", || tier.usage().chunks == 3000);
        within(Duration::from_secs(180), "to the end", || tier.status().counter("sweeps") == 1);
        assert_eq!(tier.usage().used_bytes, Some(30_000));
        let by_prefix =
            server.seen().iter().filter(|seen| seen.target.contains("prefix=kv%2Fab%2F")).count();
        assert_eq!(by_prefix, 1, "on {bucket}");
    }
}

#[test]
fn a_start_serves_from_the_snapshot_while_the_bucket_is_listed_and_keeps_the_order_of_use() {
    let server = plain_server();
    let cap = |config: TierConfig| quick(config).with_capacity(100 * LEN as u64);
    let world = World::over(Arc::clone(&server), cap);
    let keys: Vec<Key> = (0..90).map(|n| world.suite.key(n)).collect();
    keys.iter().for_each(|key| world.save_in_time(key, LEN));
    // The first ten are used again, and so the next ten are the oldest.
    keys[..10]
        .iter()
        .for_each(|key| assert_eq!(world.load(key, LEN), Loaded::Hit { len: LEN as u64 }));
    close_with_snapshot(world);
    // One that was being written when it was closed may have left a part as well.
    assert!(server.keys("kv/.kvtier/snapshot/").len() >= 2, "{:?}", server.keys("kv/.kvtier/"));
    // A listing takes its time now.
    server.script(
        Rule::next(Fault::Stall(Duration::from_secs(3600)))
            .containing("list-type=2")
            .times(1_000_000),
    );
    let client = support::config_of(endpoint(&server, "bucket"));
    let config = cap(TierConfig::new(client).with_prefix(PREFIX));
    let tier = kvtier_s3_tier::S3Tier::open(config).unwrap();
    within(Duration::from_secs(180), "the snapshot is in", || {
        tier.status().counter("restored") == 90
    });
    assert_eq!(tier.usage().used_bytes, Some(90 * LEN as u64));
    assert!(tier.status().reasons.iter().any(|reason| reason.contains("still being listed")));
    drop(tier);
    server.heal();
    let world = World::over(Arc::clone(&server), |config| patient(cap(config)));
    (100..130).for_each(|n| world.save_in_time(&world.suite.key(n), LEN));
    // More may be on its way out.
    world.suite.eventually("below the high mark", || {
        world.used() <= 98 * LEN as u64 && world.used() == world.in_bucket()
    });
    for key in &keys[..10] {
        assert!(server.object(&world.name(key)).is_some(), "what was used last stays");
    }
    let gone = keys[10..30].iter().filter(|key| server.object(&world.name(key)).is_none()).count();
    assert!(gone >= 18, "the oldest go: {gone} of 20");
}

#[test]
fn without_a_snapshot_the_age_of_objects_is_the_order() {
    let server = plain_server();
    let world = World::over(Arc::clone(&server), |config| config);
    let keys: Vec<Key> = (0..60).map(|n| world.suite.key(n)).collect();
    keys.iter().for_each(|key| world.save_in_time(key, LEN));
    let names: Vec<String> = keys.iter().map(|key| world.name(key)).collect();
    close(world);
    assert!(server.keys("kv/.kvtier/").iter().all(|key| server.remove_object(key)));
    // The last to be written are the oldest by the store's clock.
    for (at, name) in names.iter().enumerate() {
        assert!(server.backdate(name, 100 * at as i64));
    }
    let world =
        World::over(Arc::clone(&server), |config| patient(config).with_capacity(70 * LEN as u64));
    (100..120).for_each(|n| world.save_in_time(&world.suite.key(n), LEN));
    world.suite.eventually("below the high mark", || world.used() <= 69 * LEN as u64);
    let gone: Vec<usize> = (0..60).filter(|at| server.object(&names[*at]).is_none()).collect();
    assert!(gone.len() >= 10 && gone.iter().all(|at| *at >= 45), "{gone:?}");
}

#[test]
fn a_snapshot_that_cannot_be_read_is_ignored_and_said_and_costs_no_chunk() {
    let newer = "kvtier bucket snapshot\nformat: 3\nsomething new\n".to_owned();
    let foreign = "hello\n".to_owned();
    for (spoiled, said) in [
        (newer, "it has format 3"),
        (foreign, "no snapshot of kvtier"),
        (String::new(), "no snapshot"),
    ] {
        let server = plain_server();
        let world = World::over(Arc::clone(&server), quick);
        (0..20).for_each(|n| world.save_in_time(&world.suite.key(n), LEN));
        close(world);
        server.put_object("kv/.kvtier/snapshot/current", spoiled.into_bytes());
        let world = World::over(Arc::clone(&server), |config| config);
        assert!(
            says(&world, "snapshot of the index in the bucket was ignored") && says(&world, said),
            "{said}"
        );
        assert_eq!((world.used(), world.tier.usage().chunks), (20 * LEN as u64, 20));
    }
}

#[test]
fn a_damaged_part_costs_order_and_no_chunk() {
    let server = plain_server();
    let world = World::over(Arc::clone(&server), quick);
    (0..20).for_each(|n| world.save_in_time(&world.suite.key(n), LEN));
    close_with_snapshot(world);
    let part = server.keys("kv/.kvtier/snapshot/0").remove(0);
    let mut bytes = server.object(&part).unwrap().to_vec();
    bytes[100] ^= 1;
    server.put_object(&part, bytes);
    let world = World::over(Arc::clone(&server), |config| config);
    assert!(says(&world, "ignored") && world.used() == 20 * LEN as u64);
    close(world);
    server.remove_object(&part);
    server.put_object(
        "kv/.kvtier/snapshot/current",
        server.object("kv/.kvtier/snapshot/current").unwrap().to_vec(),
    );
    let world = World::over(Arc::clone(&server), |config| config);
    assert_eq!(world.used(), 20 * LEN as u64);
}

#[test]
fn a_node_writes_its_journal_at_most_once_an_interval_and_the_evictor_clears_up() {
    let every = Duration::from_millis(500);
    let world = World::with(|config| {
        let mut config = quick(config);
        config.sync.journal_every = every;
        config
    });
    let keys: Vec<Key> = (0..10).map(|n| world.suite.key(n)).collect();
    keys.iter().for_each(|key| world.save_in_time(key, LEN));
    let begun = std::time::Instant::now();
    let before = world.server.seen().len();
    let written = || {
        let seen = world.server.seen().split_off(before);
        seen.iter().filter(|seen| seen.method == "PUT" && seen.target.contains("/journal/")).count()
    };
    while begun.elapsed() < 4 * every
        || written() == 0 && begun.elapsed() < Duration::from_secs(600)
    {
        keys.iter()
            .for_each(|key| assert_eq!(world.load(key, LEN), Loaded::Hit { len: LEN as u64 }));
    }
    // One that was due before may come, and one that this machine held up.
    let intervals = begun.elapsed().as_millis() / every.as_millis() + 2;
    let puts = written();
    assert!((1..=intervals as usize).contains(&puts), "{puts} in {intervals} intervals");
    // What is in a snapshot is deleted after a while.
    within(Duration::from_secs(180), "old journals are deleted", || {
        world.load(&keys[0], LEN);
        let there = world.server.keys("kv/.kvtier/journal/");
        world.count("snapshots") > 2
            && !there.is_empty()
            && !there.iter().any(|name| name.ends_with("00000001"))
    });
}

#[test]
fn one_odd_answer_to_a_claim_is_not_the_last_word() {
    let server = plain_server();
    let odd = Rule::next(Fault::Error(405, "MethodNotAllowed"));
    server.script(odd.method("PUT").containing("/lease/").times(1));
    // No other claim is answered before it was seen what the tier says of that one.
    server.script(Rule::next(Fault::Hang).method("PUT").containing("/lease/").times(1000));
    let world = World::over(server, |config| {
        let mut config = quick(config);
        config.sync.lease_term = Duration::from_secs(4);
        config
    });
    world.suite.eventually("it is said", || says(&world, "set evictor to single"));
    world.server.heal();
    world.server.release();
    within(Duration::from_secs(600), "it evicts all the same", || says(&world, "this node evicts"));
    assert!(!says(&world, "set evictor to single"));
}

#[test]
fn where_conditions_are_not_honoured_no_node_evicts_unless_configured_to() {
    let full = |world: &World| {
        for n in 0..40 {
            world.save(&world.suite.key(n), LEN);
        }
    };
    let server = Arc::new(server(|setup| setup.overwrites = true));
    let cap = |config: TierConfig| quick(config).with_capacity(20 * LEN as u64);
    let world = World::over(Arc::clone(&server), cap);
    world.suite.eventually("it is said", || says(&world, "set evictor to single"));
    full(&world);
    assert!(
        world.count("evicted") == 0 && world.in_bucket() <= 21 * LEN as u64,
        "and saves are shed"
    );
    close(world);
    let world = World::over(Arc::clone(&server), |config| {
        let mut config = cap(config);
        config.sync.evictor = Evictor::Single;
        config
    });
    full(&world);
    world.suite.eventually("it evicts", || world.count("evicted") > 15);
    assert!(says(&world, "by its settings") && world.in_bucket() <= 20 * LEN as u64);
}

#[test]
fn unfinished_uploads_of_ours_are_given_up_after_an_hour_and_others_are_left_alone() {
    for bucket in ["bucket", "kv--use1-az4--x-s3"] {
        let server = server(|setup| (setup.bucket, setup.clock_ahead_s) = (bucket.into(), -7200));
        let hex = kvtier_key::Digest::derive("test", b"x").to_hex();
        let ours = format!("kv/{}/{hex}", &hex[..2]);
        server.begin_upload(&ours, 7300);
        server.begin_upload(&ours, 60);
        server.begin_upload("kv/not-a-chunk", 90_000);
        server.begin_upload("elsewhere/x", 90_000);
        let client = support::config_of(endpoint(&server, bucket));
        let tier =
            kvtier_s3_tier::S3Tier::open(TierConfig::new(client).with_prefix(PREFIX)).unwrap();
        within(Duration::from_secs(180), "the old one is given up", || {
            tier.status().counter("uploads_aborted") == 1
        });
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(server.uploads(), 3);
    }
}

#[test]
fn what_makes_the_cap_a_fiction_is_said() {
    let world =
        World::on(|setup| (setup.versioned, setup.object_lock) = (true, true), |config| config);
    world.suite.eventually("versions", || says(&world, "versioning is on"));
    assert!(says(&world, "object lock is on"));
    let world = World::on(|setup| setup.hides_settings = true, |config| config);
    world.suite.eventually("a store without an answer", || {
        says(&world, "the store does not report whether it keeps")
    });
    assert_eq!(world.save(&world.suite.key(1), LEN), Saved::Stored);
}

#[test]
fn suspects_and_names_that_others_deleted_are_not_kept() {
    let world = World::with(quick);
    let keys: Vec<Key> = (0..3).map(|n| world.suite.key(n)).collect();
    keys.iter().for_each(|key| world.save_in_time(key, LEN));
    let name = world.name(&keys[0]);
    world.spoil(&name, |bytes| bytes[1] ^= 1);
    assert!(matches!(world.load(&keys[0], LEN), Loaded::Miss(_)));
    assert_eq!(world.used(), 3 * LEN as u64, "a suspect counts while it is stored");
    let sweeps = world.count("sweeps");
    world.suite.eventually("two more listings", || world.count("sweeps") >= sweeps + 2);
    assert_eq!(world.used(), 3 * LEN as u64, "and it is listed");
    world.delete(&name);
    world.suite.eventually("a listing finds it gone", || world.used() == 2 * LEN as u64);
}
