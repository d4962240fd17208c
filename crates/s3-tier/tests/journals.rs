//! Journals of other nodes that cannot be read at first, or are damaged on their way.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kvtier_core::{Key, Presence};
use kvtier_index::Chunk;
use kvtier_index::journal::{self, Record};
use kvtier_testkit::s3::{Fault, Rule, Server};
use support::tier::{World, plain_server, quick, says, within};

const LEN: u64 = 10_000;
const LONG: Duration = Duration::from_secs(180);
const FIRST: &str = "kv/.kvtier/journal/other.1.2.0.00000000/00000001";
const SECOND: &str = "kv/.kvtier/journal/other.1.2.0.00000000/00000002";

/// A node that learns from journals alone, once its first listing is done.
fn listener() -> World {
    let world = World::over(plain_server(), |config| {
        let mut config = quick(config);
        config.sync.sweep_every = Duration::from_secs(600);
        config
    });
    world.suite.eventually("it evicts", || says(&world, "this node evicts"));
    world
}

/// Another node's journal object, of what happened so long ago.
fn write(server: &Server, name: &str, ago: Duration, records: &[Record]) {
    let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() - ago;
    let mut bytes = Vec::new();
    // Two times: it says when each happened.
    journal::encode(at.as_millis() as u64 - 1, &[], &mut bytes);
    journal::encode(at.as_millis() as u64, records, &mut bytes);
    server.put_object(name, bytes);
}

fn saved(key: &Key) -> Record {
    Record::Insert(Chunk::new(*key.digest(), LEN, LEN))
}

fn denied(name: &'static str) -> Rule {
    Rule::next(Fault::Error(403, "AccessDenied")).method("GET").containing(name).times(u32::MAX)
}

#[test]
fn a_journal_that_is_read_late_brings_back_nothing_that_its_node_removed_since() {
    let world = listener();
    let gone = world.suite.key(1);
    let there = world.suite.key(2);
    world.server.script(denied(FIRST));
    write(&world.server, FIRST, Duration::ZERO, &[saved(&gone)]);
    write(&world.server, SECOND, Duration::ZERO, &[Record::Remove(*gone.digest()), saved(&there)]);
    within(LONG, "what comes behind is read in the end", || world.count("merged") == 2);
    assert_eq!(world.used(), LEN);
    world.server.heal();
    within(LONG, "so is the first", || world.count("merged") == 3);
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!((world.used(), world.count("added_externally")), (LEN, 1));
}

#[test]
fn a_journal_that_is_read_late_removes_nothing_that_was_saved_since() {
    let world = listener();
    let key = world.suite.key(1);
    world.server.script(denied(FIRST));
    write(&world.server, FIRST, Duration::ZERO, &[Record::Remove(*key.digest())]);
    write(&world.server, SECOND, Duration::ZERO, &[saved(&key)]);
    within(LONG, "what comes behind is read in the end", || world.count("merged") == 1);
    world.server.heal();
    within(LONG, "so is the first", || world.count("merged") == 2);
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!((world.used(), world.count("deleted_externally")), (LEN, 0));
}

#[test]
fn what_only_a_late_journal_reports_is_asked_of_the_bucket() {
    let world = listener();
    let absent = world.suite.key(1);
    let present = world.suite.key(2);
    let other = world.suite.key(3);
    world.server.script(denied(FIRST));
    write(&world.server, FIRST, Duration::ZERO, &[saved(&absent), saved(&present)]);
    write(&world.server, SECOND, Duration::ZERO, &[saved(&other)]);
    within(LONG, "what comes behind is read in the end", || world.count("merged") == 1);
    world.write(&world.name(&present), &[7; LEN as usize], None);
    world.server.heal();
    within(LONG, "one of them is there", || world.used() == 2 * LEN);
    // One that is answered late is asked again.
    assert!(world.count("merged") == 3 && world.count("heads") >= 2);
}

#[test]
fn a_journal_that_stays_unreadable_keeps_the_evictor_from_no_snapshot() {
    let world = listener();
    let key = world.suite.key(1);
    world.server.script(denied(FIRST));
    write(&world.server, FIRST, Duration::ZERO, &[saved(&world.suite.key(2))]);
    write(&world.server, SECOND, Duration::ZERO, &[saved(&key)]);
    within(LONG, "the second is read", || world.count("merged") == 1);
    let is_current = |name: &String| name.ends_with("snapshot/current");
    within(LONG, "a snapshot has it", || world.server.keys("kv/.kvtier/").iter().any(is_current));
}

#[test]
fn a_journal_that_was_damaged_on_its_way_is_read_again() {
    let world = listener();
    let key = world.suite.key(1);
    world.server.script(Rule::next(Fault::Flip).method("GET").containing(FIRST).times(2));
    write(&world.server, FIRST, Duration::ZERO, &[saved(&key)]);
    within(LONG, "it is read whole", || world.count("merged") == 1);
    assert_eq!(world.used(), LEN);
    within(LONG, "nothing is wrong any more", || !says(&world, "damaged"));
}

#[test]
fn a_journal_that_stays_damaged_is_said_and_holds_up_nothing() {
    let world = listener();
    let key = world.suite.key(1);
    world.server.put_object(FIRST, b"<html>log in</html>".to_vec());
    write(&world.server, SECOND, Duration::ZERO, &[saved(&key)]);
    within(LONG, "what comes behind is read", || world.count("merged") == 1);
    assert!(says(&world, "is damaged from byte 0"), "{:?}", world.status());
    world.server.remove_object(FIRST);
    within(LONG, "it is gone", || !says(&world, "damaged"));
}

#[test]
fn a_save_from_before_a_listing_that_does_not_show_it_is_not_counted() {
    let world = listener();
    let old = world.suite.key(1);
    let new = world.suite.key(2);
    write(&world.server, FIRST, Duration::from_secs(60), &[saved(&old)]);
    write(&world.server, SECOND, Duration::ZERO, &[saved(&new)]);
    within(LONG, "both are read", || world.count("merged") == 2);
    assert_eq!(world.used(), LEN);
    let keys = Arc::from([old]);
    assert_eq!(world.suite.lookup(&keys, kvtier_core::Mode::Each), [Presence::Miss]);
}
