//! Processes that share a directory find each other's chunks, whatever they saved themselves.
#![allow(clippy::unwrap_used)]

mod common;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use kvtier_core::{Ctx, Hold, Key, Loaded, Mode, Observe, Presence, Saved};
use kvtier_disk::Layout;
use kvtier_file::{FileConfig, FileTier};
use kvtier_testkit::conformance::Fixture;

use common::{LEN, config, counter, files, files_bytes, ledger};

/// The directory in which this test program, run again, writes.
const WRITER: &str = "KVTIER_TEST_WRITER";
const CHUNKS: u64 = 48;

/// A length that no other chunk of these tests has, and no namespace names.
fn len_of(n: u64) -> usize {
    4097 + 1000 * n as usize
}

fn open_as(dir: &Path, layout: Layout) -> Fixture {
    let mut config = FileConfig::new(dir, 1 << 30).with_layout(layout);
    if layout.has_headers() {
        // A byte a token.
        config = config.with_chunk_shape("1x1x65536x1".parse().unwrap());
    }
    let f = Fixture::new(FileTier::open(config).unwrap());
    if matches!(layout, Layout::Kvtier | Layout::LmcacheMp) { f } else { f.with_engine_keys() }
}

fn ctx() -> Ctx {
    Ctx::within(Duration::from_secs(120))
}

fn lookup(f: &Fixture, keys: &[Key]) -> Vec<Presence> {
    f.tier.lookup(&ctx(), keys.into(), Mode::Each, Hold::None).wait().unwrap().found
}

fn is_hit(f: &Fixture, n: u64) -> bool {
    lookup(f, &f.keys(n..n + 1))[0].is_hit()
}

fn save_all(f: &Fixture) {
    f.keys(0..CHUNKS).iter().zip(0..).for_each(|(key, n)| assert_eq!(f.save(key, len_of(n)), Saved::Stored));
}

fn assert_all_found(reader: &Fixture, what: &str) {
    let expected: Vec<Presence> = (0..CHUNKS).map(|n| Presence::Hit { len: len_of(n) as u64 }).collect();
    assert_eq!(lookup(reader, &reader.keys(0..CHUNKS)), expected, "{what}");
}

#[test]
fn who_never_saved_finds_what_a_neighbour_saves_in_every_layout() {
    for layout in Layout::ALL {
        let dir = tempfile::tempdir().unwrap();
        // The reader came first, to an empty directory.
        let (reader, late, writer) =
            (open_as(dir.path(), layout), open_as(dir.path(), layout), open_as(dir.path(), layout));
        assert!(lookup(&reader, &reader.keys(0..CHUNKS)).iter().all(|found| !found.is_hit()), "{layout}");
        save_all(&writer);
        assert_all_found(&reader, &layout.to_string());
        for n in 0..CHUNKS {
            // The memory's length tells nothing of the chunk's.
            let loaded = late.load(&late.key(n), 2 * len_of(n));
            assert_eq!(loaded, Loaded::Hit { len: len_of(n) as u64 }, "{layout}: without a lookup");
        }
    }
}

/// Nothing when the tests are run as such; else the process that writes.
#[test]
fn the_writer() {
    let Ok(dir) = std::env::var(WRITER) else { return };
    save_all(&open_as(Path::new(&dir), Layout::Kvtier));
}

#[test]
fn who_never_saved_finds_what_another_process_saved() {
    let dir = tempfile::tempdir().unwrap();
    let reader = open_as(dir.path(), Layout::Kvtier);
    let mut writer = Command::new(std::env::current_exe().unwrap());
    writer.args(["the_writer", "--exact", "--test-threads=1"]).env(WRITER, dir.path());
    assert!(writer.status().unwrap().success());
    assert_all_found(&reader, "after the writer's end");
}

#[test]
fn a_reader_follows_what_its_neighbour_evicts_and_removes() {
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        let tier = Arc::new(FileTier::open(config(dir.path(), 10)).unwrap());
        let mut f = Fixture::new(FileTier::open(config(dir.path(), 10)).unwrap());
        f.tier = Arc::clone(&tier) as _;
        (tier, f)
    };
    let ((_, writer), (tier, reader)) = (open(), open());
    for n in 0..100 {
        assert_eq!(writer.save(&writer.key(n), LEN), Saved::Stored);
    }
    let found: Vec<u64> = (0..100).filter(|n| is_hit(&reader, *n)).collect();
    assert_eq!(found, (90..100).collect::<Vec<_>>(), "the newest are there");
    assert_eq!((tier.usage().chunks, files(dir.path()).len()), (10, 10));
    writer.remove(&writer.keys(95..96));
    assert!(!is_hit(&reader, 95) && is_hit(&reader, 96));
    assert_eq!((tier.usage().chunks, counter(&tier, "io_errors")), (9, 0));
}

#[test]
fn of_two_who_save_one_key_with_two_lengths_the_later_is_found_by_both() {
    let dir = tempfile::tempdir().unwrap();
    let f = [(); 3].map(|()| open_as(dir.path(), Layout::Kvtier));
    for (writer, len) in f.iter().zip([3 * LEN, LEN, 2 * LEN]) {
        assert_eq!(writer.save(&writer.key(0), len), Saved::Stored);
        for reader in &f {
            assert_eq!(lookup(reader, &reader.keys(0..1)), [Presence::Hit { len: len as u64 }]);
            assert_eq!(reader.load(&reader.key(0), 4 * LEN), Loaded::Hit { len: len as u64 });
        }
        assert_eq!(files(dir.path()).len(), 1);
    }
    assert_eq!(ledger(dir.path()), files_bytes(dir.path()));
}

/// However many keys are absent, a lookup asks for none of their names: it is answered before it returns.
#[test]
fn a_lookup_of_absent_keys_is_answered_in_the_call() {
    let dir = tempfile::tempdir().unwrap();
    let (reader, writer) = (open_as(dir.path(), Layout::Kvtier), open_as(dir.path(), Layout::Kvtier));
    for round in 0..10 {
        assert_eq!(writer.save(&writer.key(round), len_of(round)), Saved::Stored);
        let keys: Arc<[Key]> = reader.keys(0..1000);
        let ticket = reader.tier.lookup(&ctx(), keys, Mode::Each, Hold::None);
        assert!(ticket.is_done(), "round {round}");
        let hits = ticket.wait().unwrap().found.iter().filter(|found| found.is_hit()).count() as u64;
        assert_eq!(hits, round + 1);
    }
}

/// The log of changes is lost: what it told of is found all the same.
#[test]
fn without_the_log_the_directory_is_listed() {
    let dir = tempfile::tempdir().unwrap();
    let f = [(); 2].map(|()| Fixture::new(FileTier::open(config(dir.path(), 100)).unwrap()));
    let [reader, writer] = &f;
    assert_eq!(writer.save(&writer.key(0), len_of(0)), Saved::Stored);
    assert!(is_hit(reader, 0));
    assert_eq!(writer.save(&writer.key(1), len_of(1)), Saved::Stored);
    std::fs::remove_file(dir.path().join(".kvtier/changes")).unwrap();
    assert_eq!(writer.save(&writer.key(2), len_of(2)), Saved::Stored);
    assert!(is_hit(reader, 2));
    let late = std::time::Instant::now() + Duration::from_secs(120);
    while !is_hit(reader, 1) {
        assert!(std::time::Instant::now() < late, "not found");
        std::thread::sleep(Duration::from_millis(10));
    }
}
