//! A node that takes over the eviction of a bucket: it has the uses of other nodes, and restores
//! nothing that was evicted.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::time::Duration;

use kvtier_core::{Key, Loaded, Namespace, Observe, Presence, Saved};
use kvtier_s3::Credentials;
use kvtier_s3_tier::{Evictor, TierConfig};
use kvtier_testkit::conformance::Fixture;
use kvtier_testkit::s3::{Fault, Rule, Server};
use support::tier::{World, close, plain_server, quick, says, tenants, within};

const LEN: usize = 10_000;
/// A holder keeps it though this machine stands still for a quarter of it.
const TERM: Duration = Duration::from_secs(80);

/// A node of several on one bucket of this many chunks, which learns from journals and snapshots
/// alone.
fn node_of_three(server: &Arc<Server>, evictor: Evictor) -> World {
    World::over(Arc::clone(server), |config| node_config(config, evictor))
}

fn node_config(config: TierConfig, evictor: Evictor) -> TierConfig {
    let mut config = quick(config).with_capacity(100 * LEN as u64);
    (config.sync.evictor, config.sync.lease_term) = (evictor, TERM);
    config.sync.sweep_every = Duration::from_secs(600);
    config
}

/// The server recognises its requests.
fn with_token(mut config: TierConfig, token: &str) -> TierConfig {
    let key = Credentials::temporary("AKIDTEST", "secret/test+key", Some(token.to_owned()), None);
    config.client.credentials = Arc::new(key);
    config
}

/// Waits until all that other nodes noted is in the snapshot of the one that evicts, and nowhere
/// else.
fn all_is_in_the_snapshot(evictor: &World, key: &Key) {
    let node = || {
        let reasons = evictor.status().reasons;
        reasons
            .iter()
            .find_map(|reason| reason.strip_prefix("this node evicts: ").map(str::to_owned))
    };
    // Where this machine stood still for long, it has to win the lease anew.
    let mut it = None;
    within(Duration::from_secs(180), "it evicts", || {
        it = node();
        it.is_some()
    });
    let node = it.unwrap();
    within(Duration::from_secs(180), "journals are merged and deleted", || {
        // A snapshot is written when there is news.
        evictor.load(key, LEN);
        evictor.server.keys("kv/.kvtier/journal/").iter().all(|name| name.contains(&node))
    });
}

fn save_in_time(world: &World, n: u64) {
    within(Duration::from_secs(180), "a save finds space", || {
        world.save(&world.suite.key(n), LEN) == Saved::Stored
    });
}

#[test]
fn a_new_evictor_has_the_uses_of_third_nodes() {
    let server = plain_server();
    let first = node_of_three(&server, Evictor::Lease);
    first.suite.eventually("the first evicts", || says(&first, "this node evicts"));
    let keys: Vec<Key> = (0..90).map(|n| first.suite.key(n)).collect();
    keys.iter().for_each(|key| first.save_in_time(key, LEN));
    let second = node_of_three(&server, Evictor::Lease);
    let third = node_of_three(&server, Evictor::Never);
    keys[..10]
        .iter()
        .for_each(|key| assert_eq!(third.load(key, LEN), Loaded::Hit { len: LEN as u64 }));
    within(Duration::from_secs(180), "the third says so", || third.count("journaled") >= 10);
    all_is_in_the_snapshot(&first, &keys[80]);
    close(first);
    within(Duration::from_secs(180), "the second evicts", || says(&second, "this node evicts"));
    (100..130).for_each(|n| save_in_time(&second, n));
    second.suite.eventually("below the high mark", || second.used() <= 98 * LEN as u64);
    let is_there = |key: &&Key| server.object(&second.name(key)).is_some();
    assert_eq!(keys[..10].iter().filter(is_there).count(), 10, "what the third used last stays");
    let left = keys[10..30].iter().filter(is_there).count();
    assert!(left <= 2, "the oldest go, and {left} of 20 are left");
}

#[test]
fn a_new_evictor_has_the_tenants_of_chunks_of_third_nodes() {
    let server = plain_server();
    let node = |evictor| node_of_three(&server, evictor);
    let key = |n| Fixture::key_in(Namespace::new("alice", Default::default()), n);
    let first = node(Evictor::Lease);
    first.suite.eventually("the first evicts", || says(&first, "this node evicts"));
    let third = node(Evictor::Never);
    (0..5).for_each(|n| third.save_in_time(&key(n), LEN));
    third.suite.eventually("the third wrote its journal", || third.count("journaled") >= 5);
    all_is_in_the_snapshot(&first, &key(0));
    // It learns of the chunks by its first listing, which shows neither their tenants nor where in
    // a chain; the snapshot that it starts with is hidden from it.
    server.script(
        Rule::next(Fault::Error(404, "NoSuchKey"))
            .method("GET")
            .containing("/.kvtier/snapshot/")
            .times(1),
    );
    let second = node(Evictor::Lease);
    second.suite.eventually("the second has listed the bucket", || second.tier.usage().chunks == 5);
    assert_eq!(tenants(&second), []);
    close(first);
    within(Duration::from_secs(180), "the second has the tenants", || {
        let known = tenants(&second);
        says(&second, "this node evicts")
            && matches!(&known[..], [(_, bytes)] if *bytes == 5 * LEN as u64)
    });
}

#[test]
fn a_journal_that_can_never_be_read_stops_no_listing_and_no_snapshot() {
    let server = plain_server();
    let writer = node_of_three(&server, Evictor::Never);
    (0..3).for_each(|n| writer.save_in_time(&writer.suite.key(n), LEN));
    writer
        .suite
        .eventually("it wrote its journal", || !server.keys("kv/.kvtier/journal/").is_empty());
    server.script(
        Rule::next(Fault::Error(500, "InternalError"))
            .method("GET")
            .containing("/.kvtier/journal/")
            .times(u32::MAX),
    );
    let late = node_of_three(&server, Evictor::Lease);
    within(Duration::from_secs(180), "it lists", || late.tier.usage().chunks == 3);
    assert_eq!(late.save(&late.suite.key(10), LEN), Saved::Stored);
    within(Duration::from_secs(180), "and writes snapshots", || late.count("snapshots") > 0);
}

#[test]
fn a_snapshot_that_was_never_read_is_not_written_over_at_the_end() {
    let server = plain_server();
    let node = || node_of_three(&server, Evictor::Single);
    let first = node();
    (0..5).for_each(|n| first.save_in_time(&first.suite.key(n), LEN));
    close(first);
    let before = server.object("kv/.kvtier/snapshot/current").unwrap();
    server.script(
        Rule::next(Fault::Error(503, "SlowDown"))
            .method("GET")
            .containing("/.kvtier/snapshot/")
            .times(u32::MAX),
    );
    let short = node();
    short.load(&short.suite.key(0), LEN);
    close(short);
    assert!(
        server.object("kv/.kvtier/snapshot/current").unwrap() == before,
        "what it did not know is still there"
    );
}

#[test]
fn a_take_over_brings_back_nothing_that_went_and_counts_all_that_came() {
    let server = plain_server();
    let first = node_of_three(&server, Evictor::Lease);
    first.suite.eventually("the first evicts", || says(&first, "this node evicts"));
    let keys: Vec<Key> = (0..31).map(|n| first.suite.key(n)).collect();
    keys[..20].iter().for_each(|key| first.save_in_time(key, LEN));
    let second = node_of_three(&server, Evictor::Lease);
    let third = node_of_three(&server, Evictor::Never);
    keys[20..30].iter().for_each(|key| third.save_in_time(key, LEN));
    within(Duration::from_secs(180), "the third says so", || third.count("journaled") >= 10);
    all_is_in_the_snapshot(&first, &keys[1]);
    assert!(
        [20, 30].map(|chunks| chunks * LEN as u64).contains(&second.used()),
        "of the third it may have read"
    );
    close(first);
    // While no node evicts.
    assert_eq!(second.suite.remove(&Arc::from([keys[3].clone()])).removed, 1);
    assert_eq!(second.save(&keys[30], LEN), Saved::Stored);
    within(Duration::from_secs(180), "the second evicts", || says(&second, "this node evicts"));
    within(Duration::from_secs(180), "it has all, and no more", || {
        second.used() == 30 * LEN as u64
    });
    assert_eq!(second.in_bucket(), 30 * LEN as u64);
    assert_eq!(second.lookup(&keys[3]), Presence::Miss);
}

/// While a node sees no journals of others, the evictor merges them into a snapshot and deletes them.
#[test]
fn a_node_that_looked_at_no_journals_while_they_stayed_counts_all_of_that_time() {
    let server = plain_server();
    let first = node_of_three(&server, Evictor::Lease);
    first.suite.eventually("the first evicts", || says(&first, "this node evicts"));
    let second = World::over(Arc::clone(&server), |config| {
        with_token(node_config(config, Evictor::Never), "second")
    });
    let failing = Rule::next(Fault::Error(500, "InternalError")).containing("journal%2F");
    server.script(failing.with("x-amz-security-token", "second").times(u32::MAX));
    let keys: Vec<Key> = (0..20).map(|n| first.suite.key(n)).collect();
    keys.iter().for_each(|key| first.save_in_time(key, LEN));
    within(Duration::from_secs(180), "the first says so", || first.count("journaled") >= 20);
    let written = server.keys("kv/.kvtier/journal/");
    within(Duration::from_secs(180), "journals are merged and deleted", || {
        // A snapshot is written when there is news.
        first.load(&keys[0], LEN);
        let there = server.keys("kv/.kvtier/journal/");
        written.iter().all(|name| name.ends_with("/00000000") || !there.contains(name))
    });
    assert_eq!(second.used(), 0, "it saw none");
    server.heal();
    within(Duration::from_secs(180), "it counts all", || second.used() == 20 * LEN as u64);
}

/// It had no budget, and the evictor's journal does not have what third nodes saved.
#[test]
fn a_node_that_was_alone_counts_what_others_save_since_it_lost_the_lease() {
    let server = plain_server();
    let with_short_lease = |token: &str| {
        World::over(Arc::clone(&server), |config| {
            let mut config = with_token(node_config(config, Evictor::Lease), token);
            config.sync.lease_term = Duration::from_secs(4);
            config
        })
    };
    let first = with_short_lease("first");
    within(Duration::from_secs(180), "the first evicts", || says(&first, "this node evicts"));
    let failing = Rule::next(Fault::Error(500, "InternalError")).method("PUT").containing("lease");
    server.script(failing.with("x-amz-security-token", "first").times(u32::MAX));
    let second = with_short_lease("second");
    within(Duration::from_secs(180), "the second evicts", || says(&second, "this node evicts"));
    let third = node_of_three(&server, Evictor::Never);
    let keys: Vec<Key> = (0..20).map(|n| third.suite.key(n)).collect();
    keys.iter().for_each(|key| third.save_in_time(key, LEN));
    within(Duration::from_secs(180), "it counts all", || first.used() == 20 * LEN as u64);
}

#[test]
fn two_evictors_at_once_delete_at_most_one_batch_too_many() {
    let server = plain_server();
    let node = |evictor| {
        World::over(Arc::clone(&server), |config| {
            let mut config = quick(config).with_capacity(100 * LEN as u64);
            config.sync.evictor = evictor;
            config
        })
    };
    let first = node(Evictor::Single);
    let second = node(Evictor::Single);
    let batch = 30;
    // Both know of a full bucket; then another program writes a batch too many at once, and both see
    // it.
    (0..95).for_each(|n| first.save_in_time(&first.suite.key(n), LEN));
    second.suite.eventually("the second has read it", || second.used() == 95 * LEN as u64);
    for n in 0..batch + 3 {
        first.write(&first.name(&first.suite.key(1000 + n)), &[1; LEN], None);
    }
    within(Duration::from_secs(180), "the cap holds", || first.in_bucket() <= 98 * LEN as u64);
    let agreed = || [first.used(), second.used()] == [first.in_bucket(); 2];
    within(Duration::from_secs(180), "all agree", agreed);
    let left = first.in_bucket() / LEN as u64;
    assert!((98 - batch..=98).contains(&left), "{left} are left");
}

#[test]
fn a_save_that_waits_for_space_wakes_when_another_node_frees_some() {
    let server = plain_server();
    let first = node_of_three(&server, Evictor::Lease);
    first.suite.eventually("the first evicts", || says(&first, "this node evicts"));
    // It takes part of the bucket for all there is.
    let second = World::over(Arc::clone(&server), |config| {
        let mut config = quick(config).with_capacity(20 * LEN as u64);
        config.sync.lease_term = TERM;
        (config.space_wait_max, config.sync.sweep_every) =
            (Duration::from_secs(600), Duration::from_secs(600));
        config
    });
    second.suite.eventually("the second follows", || says(&second, "another node evicts"));
    let keys: Vec<Key> = (0..22).map(|n| second.suite.key(n)).collect();
    keys[..21].iter().for_each(|key| second.save_in_time(key, LEN));
    within(Duration::from_secs(180), "the first has read them", || first.used() == 21 * LEN as u64);
    // So long after that only the journal shows it.
    std::thread::sleep(Duration::from_secs(7));
    let saved = std::thread::scope(|scope| {
        let save = scope.spawn(|| second.save(&keys[21], LEN));
        assert_eq!(first.suite.remove(&Arc::from(keys[..5].to_vec())).removed, 5);
        save.join().unwrap()
    });
    assert_eq!(saved, Saved::Stored);
}
