//! What other programs do to a directory: pipes, links and damage under chunks' names, peers that
//! delete and repair, locks that are kept.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvtier_core::key::{ChunkHash, KeyId, KvRank, ObjectKey};
use kvtier_core::{
    Ctx, Digest, ErrorKind, Hold, Key, Loaded, MissReason, Mode, Namespace, Presence, Saved,
    ShedReason,
};
use kvtier_file::{FileConfig, FileTier};
use kvtier_testkit::conformance::Fixture;

const LEN: usize = 100_000;

fn open(dir: &Path) -> Fixture {
    Fixture::new(FileTier::open(FileConfig::new(dir, 100 << 20)).unwrap())
}

fn path(dir: &Path, key: &Key) -> PathBuf {
    kvtier_disk::chunk_file_name::path(dir, key.digest(), LEN as u64)
}

fn presence(f: &Fixture, key: &Key) -> Presence {
    f.tier.lookup(&f.ctx(), Arc::from([key.clone()]), Mode::Each, Hold::None).wait().unwrap().found
        [0]
}

#[test]
fn what_is_no_file_under_a_chunks_name_is_moved_and_blocks_no_process() {
    let dir = tempfile::tempdir().unwrap();
    let f = open(dir.path());
    f.store(&f.keys(0..4), LEN);
    let replace = |n: u64, make: &dyn Fn(&Path)| {
        let path = path(dir.path(), &f.key(n));
        fs::remove_file(&path).unwrap();
        make(&path);
    };
    replace(0, &|path| assert!(Command::new("mkfifo").arg(path).status().unwrap().success()));
    replace(1, &|path| symlink("/etc/hostname", path).unwrap());
    replace(2, &|path| fs::create_dir(path).unwrap());
    let began = Instant::now();
    for n in 0..3 {
        assert_eq!(f.load(&f.key(n), LEN), Loaded::Miss(MissReason::Corrupt), "{n}");
        assert_eq!(f.save(&f.key(n), LEN), Saved::Stored, "{n}");
        assert!(matches!(f.load(&f.key(n), LEN), Loaded::Hit { .. }), "{n}");
    }
    assert!(matches!(f.load(&f.key(3), LEN), Loaded::Hit { .. }));
    drop(f);
    assert!(began.elapsed() < Duration::from_secs(600), "{:?}", began.elapsed());
}

#[test]
fn a_chunk_that_one_found_damaged_and_another_saved_again_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let x = open(dir.path());
    let y = open(dir.path());
    let key = x.key(1);
    assert_eq!(x.save(&key, LEN), Saved::Stored);
    let mut bytes = fs::read(path(dir.path(), &key)).unwrap();
    bytes[77] ^= 1;
    fs::write(path(dir.path(), &key), bytes).unwrap();
    assert_eq!(x.load(&key, LEN), Loaded::Miss(MissReason::Corrupt));
    assert_eq!(presence(&x, &key), Presence::Miss);
    assert_eq!(y.save(&key, LEN), Saved::Stored);
    assert!(presence(&x, &key).is_hit());
    assert!(matches!(x.load(&key, LEN), Loaded::Hit { .. }));
}

#[test]
fn no_lookup_reports_a_chunk_that_a_peer_removed() {
    let dir = tempfile::tempdir().unwrap();
    let x = open(dir.path());
    let y = open(dir.path());
    let key = x.key(1);
    assert_eq!((x.save(&key, LEN), x.save(&key, LEN)), (Saved::Stored, Saved::Present));
    // How long it is, y learns by loading it.
    assert!(matches!(y.load(&key, LEN), Loaded::Hit { .. }));
    assert_eq!(y.tier.remove(&y.ctx(), Arc::from([key.clone()])).wait().unwrap().removed, 1);
    assert_eq!(x.save(&key, LEN), Saved::Stored);
    assert!(matches!(y.load(&key, LEN), Loaded::Hit { .. }));
}

#[test]
fn who_keeps_the_ledgers_lock_stops_neither_saves_nor_loads_nor_the_end() {
    let dir = tempfile::tempdir().unwrap();
    // The saves take the space of two chunks in turn, however slow the machine is.
    let config = FileConfig::new(dir.path(), 100 << 20).with_space_wait(Duration::from_secs(300));
    let f = Fixture::new(FileTier::open(config).unwrap());
    f.store(&f.keys(0..2), LEN);
    let frozen = fs::File::open(dir.path().join(".kvtier/ledger")).unwrap();
    frozen.lock().unwrap();
    let began = Instant::now();
    let saves = f.tier.save(&f.ctx(), (10..18).map(|n| f.save_op(&f.key(n), LEN)).collect());
    assert!(matches!(f.load(&f.key(0), LEN), Loaded::Hit { .. }));
    let soon = Ctx::within(Duration::from_secs(600));
    let found =
        f.tier.lookup(&soon, Arc::from([f.key(99)]), Mode::Each, Hold::None).wait().unwrap();
    assert_eq!(found.found[0], Presence::Miss);
    let results: Vec<_> = saves.wait().into_iter().map(|done| done.result.unwrap()).collect();
    assert_eq!(results, [Saved::Stored; 8]);
    drop(f);
    assert!(began.elapsed() < Duration::from_secs(600), "{:?}", began.elapsed());
}

#[test]
fn a_save_that_failed_says_nothing_of_other_chunks() {
    let dir = tempfile::tempdir().unwrap();
    let f = Fixture::new(FileTier::open(FileConfig::new(dir.path(), 1 << 20)).unwrap());
    // Whole chunks only, of the length of the first one.
    let ns =
        Arc::new(Namespace::new("whole", Digest::derive("test", b"layout")).with_partial(false));
    let key = |n: u64| {
        let hash = ChunkHash::new(&n.to_be_bytes());
        let id = ObjectKey { model: "m".into(), rank: KvRank(0), group: 0, hash, salt: "".into() };
        Key::new(Arc::clone(&ns), KeyId::Object(id))
    };
    assert_eq!(f.save(&key(1), 2 << 20), Saved::Shed(ShedReason::TooLarge));
    assert_eq!(f.save(&key(2), LEN), Saved::Stored);
    let other = f.tier.save(&f.ctx(), vec![f.save_op(&key(3), LEN - 1)]).wait();
    assert_eq!(
        other[0].result.as_ref().unwrap_err().kind(),
        ErrorKind::Invalid,
        "now they have a length"
    );
}

#[test]
fn a_process_that_is_stopped_with_the_lock_is_named_and_waited_for_a_limited_time() {
    let dir = tempfile::tempdir().unwrap();
    let f = open(dir.path());
    let lock = fs::File::open(dir.path().join(".kvtier/lock")).unwrap();
    lock.lock().unwrap();
    let began = Instant::now();
    let e = FileTier::open(FileConfig::new(dir.path(), 100 << 20)).unwrap_err();
    let source = std::error::Error::source(&e).map(ToString::to_string).unwrap_or_default();
    assert!(source.contains(".kvtier/lock"), "{e}: {source}");
    assert_eq!(f.save(&f.key(1), LEN), Saved::Stored, "beside it");
    drop(f);
    assert!(began.elapsed() < Duration::from_secs(600), "{:?}", began.elapsed());
    lock.unlock().unwrap();
    open(dir.path());
}
