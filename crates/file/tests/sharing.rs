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
    match layout {
        Layout::Kvtier | Layout::LmcacheMp => f,
        Layout::VllmFs => f.with_vllm_keys(),
        _ => f.with_engine_keys(),
    }
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
    f.keys(0..CHUNKS)
        .iter()
        .zip(0..)
        .for_each(|(key, n)| assert_eq!(f.save(key, len_of(n)), Saved::Stored));
}

fn assert_all_found(reader: &Fixture, what: &str) {
    let expected: Vec<Presence> =
        (0..CHUNKS).map(|n| Presence::Hit { len: len_of(n) as u64 }).collect();
    assert_eq!(lookup(reader, &reader.keys(0..CHUNKS)), expected, "{what}");
}

#[test]
fn a_process_that_never_saved_finds_what_a_peer_saves_in_every_layout() {
    for layout in Layout::ALL {
        let dir = tempfile::tempdir().unwrap();
        // The reader came first, to an empty directory.
        let reader = open_as(dir.path(), layout);
        let late = open_as(dir.path(), layout);
        let writer = open_as(dir.path(), layout);
        assert!(
            lookup(&reader, &reader.keys(0..CHUNKS)).iter().all(|found| !found.is_hit()),
            "{layout}"
        );
        save_all(&writer);
        assert_all_found(&reader, &layout.to_string());
        for n in 0..CHUNKS {
            // The memory's length is independent of the chunk's.
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
fn a_process_that_never_saved_finds_what_another_saved() {
    let dir = tempfile::tempdir().unwrap();
    let reader = open_as(dir.path(), Layout::Kvtier);
    let mut writer = Command::new(std::env::current_exe().unwrap());
    writer.args(["the_writer", "--exact", "--test-threads=1"]).env(WRITER, dir.path());
    assert!(writer.status().unwrap().success());
    assert_all_found(&reader, "after the writer's end");
}

#[test]
fn a_reader_follows_what_its_peer_evicts_and_removes() {
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        let tier = Arc::new(FileTier::open(config(dir.path(), 10)).unwrap());
        let mut f = Fixture::new(FileTier::open(config(dir.path(), 10)).unwrap());
        f.tier = Arc::clone(&tier) as _;
        (tier, f)
    };
    let (_, writer) = open();
    let (tier, reader) = open();
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

/// However many keys are absent, a lookup asks for none of their names: it is answered before it
/// returns.
#[test]
fn a_lookup_of_absent_keys_is_answered_in_the_call() {
    let dir = tempfile::tempdir().unwrap();
    let reader = open_as(dir.path(), Layout::Kvtier);
    let writer = open_as(dir.path(), Layout::Kvtier);
    for round in 0..10 {
        assert_eq!(writer.save(&writer.key(round), len_of(round)), Saved::Stored);
        let keys: Arc<[Key]> = reader.keys(0..1000);
        let ticket = reader.tier.lookup(&ctx(), keys, Mode::Each, Hold::None);
        assert!(ticket.is_done(), "round {round}");
        let hits =
            ticket.wait().unwrap().found.iter().filter(|found| found.is_hit()).count() as u64;
        assert_eq!(hits, round + 1);
    }
}

/// Deletes the change log; `false` where there is none.
fn delete_log(dir: &Path) -> bool {
    let own = std::fs::read_dir(dir.join(".kvtier")).unwrap().flatten();
    let logs: Vec<_> =
        own.filter(|file| file.file_name().to_string_lossy().starts_with("changes.")).collect();
    // A tier may have tidied one up meanwhile.
    logs.iter().for_each(|log| drop(std::fs::remove_file(log.path())));
    !logs.is_empty()
}

fn path_of(dir: &Path, f: &Fixture, n: u64) -> std::path::PathBuf {
    kvtier_disk::chunk_file_name::path(dir, f.key(n).digest(), len_of(n) as u64)
}

/// The change log is lost, with records that were not read: what they said is found all the same.
#[test]
fn without_the_log_the_directory_is_listed() {
    let dir = tempfile::tempdir().unwrap();
    let f = [(); 2].map(|()| Fixture::new(FileTier::open(config(dir.path(), 100)).unwrap()));
    let [reader, writer] = &f;
    assert_eq!(writer.save(&writer.key(0), len_of(0)), Saved::Stored);
    assert!(is_hit(reader, 0));
    assert_eq!(writer.save(&writer.key(1), len_of(1)), Saved::Stored);
    assert!(delete_log(dir.path()));
    assert_eq!(writer.save(&writer.key(2), len_of(2)), Saved::Stored);
    assert!(is_hit(reader, 2));
    reader.eventually("the directory is listed", || is_hit(reader, 1));
}

/// A listing also shows what is gone.
#[test]
fn without_the_log_what_others_deleted_is_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let f = [(); 2].map(|()| Fixture::new(FileTier::open(config(dir.path(), 100)).unwrap()));
    let [reader, writer] = &f;
    (0..3).for_each(|n| assert_eq!(writer.save(&writer.key(n), len_of(n)), Saved::Stored));
    assert!((0..3).all(|n| is_hit(reader, n)));
    std::fs::remove_file(path_of(dir.path(), writer, 1)).unwrap();
    assert!(delete_log(dir.path()));
    reader.eventually("the directory is listed", || !is_hit(reader, 1));
    assert!(is_hit(reader, 0) && is_hit(reader, 2));
    assert_eq!(reader.tier.usage().chunks, 2);
}

/// A process that is killed between the rename of a file and its record leaves a chunk that no log
/// names.
#[test]
fn what_a_killed_process_did_without_a_record_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let f = [(); 2].map(|()| Fixture::new(FileTier::open(config(dir.path(), 100)).unwrap()));
    let other = open_as(elsewhere.path(), Layout::Kvtier);
    assert_eq!(other.save(&other.key(0), len_of(0)), Saved::Stored);
    f.iter().for_each(|reader| assert!(!is_hit(reader, 0)));
    std::fs::copy(path_of(elsewhere.path(), &other, 0), path_of(dir.path(), &other, 0)).unwrap();
    let tmp = dir.path().join(".kvtier/tmp");
    let living = std::fs::read_dir(&tmp)
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .file_name()
        .into_string()
        .unwrap();
    let dead = tmp.join(format!("{}.4000000.1.0", living.split('.').next().unwrap()));
    std::fs::create_dir(&dead).unwrap();
    std::fs::write(dead.join("alive"), "").unwrap();
    for reader in &f {
        reader.eventually("also found by a process that did not remove the dead one", || {
            is_hit(reader, 0)
        });
    }
}

/// What `kvtier rm` and `kvtier verify` do, which open no tier.
#[test]
fn what_is_removed_without_a_tier_is_forgotten_by_those_that_are_open() {
    let dir = tempfile::tempdir().unwrap();
    let f = open_as(dir.path(), Layout::Kvtier);
    save_all(&f);
    let there = kvtier_file::inspect::Directory::open(dir.path()).unwrap();
    let chunk_of = |n: u64| {
        let digest = *f.key(n).digest();
        there.chunks().unwrap().into_iter().find(|chunk| chunk.digest == digest).unwrap()
    };
    assert!(there.remove(&chunk_of(3)).unwrap());
    let damaged = chunk_of(4);
    std::fs::write(path_of(dir.path(), &f, 4), b"short").unwrap();
    assert!(there.quarantine(&damaged).unwrap());
    assert!(!is_hit(&f, 3) && !is_hit(&f, 4) && is_hit(&f, 5));
    assert_eq!(f.tier.usage().chunks, CHUNKS - 2);
}

/// Several tiers save, remove and evict at random, and lose the log now and then: in the end each
/// has what is in the directory.
#[test]
fn fault_seeds_of_tiers_that_share_a_directory() {
    let seeds =
        std::env::var("KVTIER_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(400_u64)
            / 100;
    for seed in 0..seeds {
        let mut random = kvtier_testkit::Seed::new(seed);
        let dir = tempfile::tempdir().unwrap();
        let f = [(); 3].map(|()| Fixture::new(FileTier::open(config(dir.path(), 12)).unwrap()));
        for _ in 0..200 {
            let one = &f[random.below(3) as usize];
            let n = random.below(30);
            match random.below(20) {
                0..11 => drop(one.save(&one.key(n), LEN - 5000 * random.below(2) as usize)),
                11..13 => drop(one.tier.remove(&ctx(), one.keys([n])).wait().unwrap()),
                13..19 => drop(lookup(one, &one.keys(0..30))),
                _ if random.below(4) == 0 => drop(delete_log(dir.path())),
                _ => {}
            }
        }
        for one in &f {
            one.eventually("it has what is there", || {
                let there = files(dir.path()).len();
                let hits =
                    lookup(one, &one.keys(0..30)).iter().filter(|found| found.is_hit()).count();
                hits == there && one.tier.usage().chunks == there as u64
            });
        }
        assert!(files_bytes(dir.path()) <= 12 * common::FILE + common::FILE / 2);
    }
}
