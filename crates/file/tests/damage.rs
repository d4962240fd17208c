//! Files that are damaged, doubled or gone: they go out of the way, bounded and counted.
#![allow(clippy::unwrap_used)]

mod common;

use kvtier_core::{Loaded, MissReason, Observe, Saved, ShedReason, Tier};
use kvtier_file::FileTier;
use kvtier_testkit::conformance::Fixture;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::*;

/// A directory whose shards became read-only: saves are shed and not tried for ever, loads go on.
/// Root is never refused, so a directory in the place of the victim's file stands in for a file
/// that cannot be deleted.
#[test]
fn victims_that_cannot_be_deleted_shed_the_save() {
    let dir = tempfile::tempdir().unwrap();
    let f = open(dir.path(), 2);
    f.store(&f.keys(0..2), LEN);
    let path = |n| kvtier_disk::chunk_file_name::path(dir.path(), f.key(n).digest(), LEN as u64);
    for n in 0..2 {
        fs::remove_file(path(n)).unwrap();
        fs::create_dir_all(path(n).join("not empty")).unwrap();
    }
    let start = Instant::now();
    assert_eq!(f.save(&f.key(7), LEN / 2), Saved::Shed(ShedReason::Full));
    assert!(start.elapsed() < Duration::from_secs(600));
}

#[test]
fn a_damaged_victim_is_not_written_over() {
    let dir = tempfile::tempdir().unwrap();
    let f = open(dir.path(), 1);
    f.store(&f.keys([0]), LEN);
    let path = kvtier_disk::chunk_file_name::path(dir.path(), f.key(0).digest(), LEN as u64);
    fs::OpenOptions::new().append(true).open(&path).unwrap().set_len(FILE + 4096).unwrap();
    f.store(&f.keys([1]), LEN);
    assert!(!absent(&f, 1));
}

#[test]
fn a_damaged_file_goes_also_without_a_quarantine() {
    let dir = tempfile::tempdir().unwrap();
    let f = open(dir.path(), 4);
    f.store(&f.keys(0..4), LEN);
    fs::remove_dir(dir.path().join(".kvtier/quarantine")).unwrap();
    for n in 0..4 {
        let path = kvtier_disk::chunk_file_name::path(dir.path(), f.key(n).digest(), LEN as u64);
        fs::OpenOptions::new().write(true).open(path).unwrap().set_len(FILE - 4096).unwrap();
        assert_eq!(f.load(&f.key(n), LEN), Loaded::Miss(MissReason::Corrupt));
    }
    assert!(files(dir.path()).is_empty());
    f.store(&f.keys(4..8), LEN);
}

/// Puts the files of chunks 0 and 1 there, of this length, behind the backs of all tiers.
fn put_from_outside(dir: &Path, len: usize) {
    let other = tempfile::tempdir().unwrap();
    let f = open(other.path(), 8);
    f.store(&f.keys(0..2), len);
    for n in 0..2 {
        let path = |root| kvtier_disk::chunk_file_name::path(root, f.key(n).digest(), len as u64);
        fs::copy(path(other.path()), path(dir)).unwrap();
    }
    set_ledger(dir, files_bytes(dir));
}

/// One key is stored with different lengths; file names carry the length.
#[test]
fn of_two_lengths_of_one_key_the_newer_stays() {
    let dir = tempfile::tempdir().unwrap();
    let a = open(dir.path(), 8);
    let b = open(dir.path(), 8);
    a.store(&a.keys(0..2), LEN);
    put_from_outside(dir.path(), LEN / 2);
    assert_eq!(files(dir.path()).len(), 4);
    // A scan of the full directory finds them.
    b.store(&b.keys(10..20), LEN);
    let exists_with = |n, len: usize| {
        kvtier_disk::chunk_file_name::path(dir.path(), a.key(n).digest(), len as u64).exists()
    };
    assert!((0..2).all(|n| !exists_with(n, LEN)), "the older of two lengths");
    assert_eq!(ledger(dir.path()), files_bytes(dir.path()));
    drop((a, b));

    // Opening it finds them too.
    let dir = tempfile::tempdir().unwrap();
    let a = open(dir.path(), 8);
    let b = open(dir.path(), 8);
    put_from_outside(dir.path(), LEN / 2);
    std::thread::sleep(Duration::from_millis(20));
    a.store(&a.keys(0..2), LEN);
    assert_eq!(files(dir.path()).len(), 4);
    let c = open(dir.path(), 8);
    assert_eq!(files(dir.path()).values().copied().collect::<Vec<_>>(), [FILE, FILE]);
    assert_eq!(ledger(dir.path()), 2 * FILE, "beside others");
    assert!((0..2).all(|n| !absent(&c, n)));
    drop((a, b, c));
    let c = open(dir.path(), 8);
    assert_eq!(ledger(dir.path()), 2 * FILE, "alone");
    assert!((0..2).all(|n| !absent(&c, n)));
}

#[test]
fn remove_deletes_the_files_of_every_length() {
    let dir = tempfile::tempdir().unwrap();
    let f = open(dir.path(), 8);
    f.store(&f.keys(0..4), LEN);
    put_from_outside(dir.path(), LEN / 2);
    // Of chunk 9, which this process never saved, only files exist.
    let path = |n, len: usize| {
        kvtier_disk::chunk_file_name::path(dir.path(), f.key(n).digest(), len as u64)
    };
    let copied = path(9, LEN / 3);
    fs::create_dir_all(copied.parent().unwrap()).unwrap();
    {
        let other = tempfile::tempdir().unwrap();
        let g = open(other.path(), 8);
        g.store(&g.keys([9]), LEN / 3);
        fs::copy(
            kvtier_disk::chunk_file_name::path(other.path(), g.key(9).digest(), (LEN / 3) as u64),
            &copied,
        )
        .unwrap();
    }
    set_ledger(dir.path(), files_bytes(dir.path()));
    let held = f.hold(&f.keys([1]), Duration::from_secs(600)).hold.unwrap();
    let removed = f.remove(&f.keys([0, 1, 2, 9, 10]));
    assert_eq!((removed.removed, removed.held, removed.absent), (3, 1, 1));
    assert_eq!(files(dir.path()).len(), 3, "chunk 3, and both files of the one that is held");
    f.tier.release(held);
    assert_eq!(f.remove(&f.keys([1])).removed, 1);
    assert_eq!(ledger(dir.path()), files_bytes(dir.path()));
    let other = open(dir.path(), 8);
    assert!((0..3).chain([9]).all(|n| absent(&other, n)) && !absent(&other, 3));
}

#[test]
fn what_a_command_removed_is_released_once() {
    let dir = tempfile::tempdir().unwrap();
    let f = open(dir.path(), 8);
    f.store(&f.keys(0..4), LEN);
    let total = ledger(dir.path());
    {
        // Comes and goes before the tier looks for other processes.
        let outside = kvtier_disk::inspect::Directory::open(dir.path()).unwrap();
        let gone = f.key(0);
        let chunk = outside
            .chunks()
            .unwrap()
            .into_iter()
            .find(|chunk| chunk.digest == *gone.digest())
            .unwrap();
        assert!(outside.remove(&chunk).unwrap());
        outside.finish().unwrap();
    }
    assert!(absent(&f, 0));
    assert!(ledger(dir.path()) >= files_bytes(dir.path()), "{} of {total}", ledger(dir.path()));
}

/// Flips a byte of chunks and loads them.
fn damage(f: &Fixture, dir: &Path, numbers: impl IntoIterator<Item = u64>) {
    for n in numbers {
        let path = kvtier_disk::chunk_file_name::path(dir, f.key(n).digest(), LEN as u64);
        let mut bytes = fs::read(&path).unwrap();
        bytes[1000] ^= 1;
        fs::write(&path, bytes).unwrap();
    }
}

fn quarantine(dir: &Path) -> Vec<u64> {
    fs::read_dir(dir.join(".kvtier/quarantine"))
        .unwrap()
        .map(|file| file.unwrap().metadata().unwrap().len())
        .collect()
}

#[test]
fn the_quarantine_is_bounded_and_counted_and_the_first_to_go() {
    let dir = tempfile::tempdir().unwrap();
    let tier = Arc::new(FileTier::open(config(dir.path(), 200)).unwrap());
    let mut f = Fixture::new(
        kvtier_testkit::ModelTier::open(kvtier_testkit::ModelConfig::default()).unwrap(),
    );
    f.tier = Arc::clone(&tier) as Arc<dyn Tier>;
    f.store(&f.keys(0..6), LEN);
    damage(&f, dir.path(), 0..6);
    assert!((0..6).all(|n| f.load(&f.key(n), LEN) == Loaded::Miss(MissReason::Corrupt)));
    assert_eq!(quarantine(dir.path()), [FILE, FILE], "a hundredth of the cap");
    f.store(&f.keys([50]), LEN);
    assert_eq!((ledger(dir.path()), tier.usage().used_bytes), (3 * FILE, Some(3 * FILE)));
    // A restart counts it too.
    let other = FileTier::open(config(dir.path(), 200)).unwrap();
    assert_eq!((ledger(dir.path()), other.usage().used_bytes), (3 * FILE, Some(3 * FILE)));
    drop(other);
    f.store(&f.keys(100..299), LEN);
    assert_eq!(counter(&tier, "evicted"), 0, "the cap is 200 chunks");
    assert!(quarantine(dir.path()).is_empty());
    assert_eq!((ledger(dir.path()), tier.usage().used_bytes), (200 * FILE, Some(200 * FILE)));
}

#[test]
fn a_quarantine_filled_from_outside_is_bounded_too() {
    let dir = tempfile::tempdir().unwrap();
    let f = open(dir.path(), 200);
    f.store(&f.keys(0..6), LEN);
    damage(&f, dir.path(), 0..5);
    drop(f);
    let outside = kvtier_file::inspect::Directory::open(dir.path()).unwrap();
    let quarantined =
        outside.chunks().unwrap().iter().filter(|chunk| outside.quarantine(chunk).unwrap()).count();
    assert_eq!((quarantined, quarantine(dir.path())), (5, vec![FILE, FILE]));
    assert_eq!((files_bytes(dir.path()), ledger(dir.path())), (FILE, 3 * FILE));
    assert_eq!(outside.summary().unwrap().quarantine_bytes, 2 * FILE);
    // It is registered as long as it may change chunks.
    drop(outside);
    assert_eq!(fs::read_dir(dir.path().join(".kvtier/tmp")).unwrap().count(), 0);
}

/// A look from outside while victims are written over: what is taken away while it is read is gone,
/// not damaged.
#[test]
fn a_file_being_recycled_is_not_taken_for_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let f = open(dir.path(), 4);
    f.store(&f.keys(0..4), LEN);
    let outside = kvtier_file::inspect::Directory::open(dir.path()).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut seed = kvtier_testkit::Seed::new(1);
            while !stop.load(Ordering::Relaxed) {
                assert_ne!(f.save(&f.key(seed.below(6)), LEN), Saved::Shed(ShedReason::Full));
            }
        });
        let end = Instant::now() + Duration::from_secs(3);
        let late = Instant::now() + Duration::from_secs(120);
        let mut fine = 0;
        let mut gone = 0;
        let mut damaged = 0;
        // A busy machine needs longer for as much.
        while Instant::now() < end || (Instant::now() < late && (fine <= 100 || gone <= 10)) {
            for chunk in outside.chunks().unwrap() {
                match outside.verify(&chunk) {
                    Ok(Ok(())) => fine += 1,
                    Ok(Err(_)) => damaged += 1,
                    Err(e) if e.kind() == std::io::ErrorKind::NotFound => gone += 1,
                    Err(_) => damaged += 1,
                }
                damaged += u32::from(!matches!(outside.quarantine(&chunk), Ok(false)));
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert!(
            fine > 100 && gone > 10 && damaged == 0,
            "{fine} fine, {gone} gone, {damaged} damaged"
        );
    });
    assert!(quarantine(dir.path()).is_empty());
}

#[test]
fn files_and_shards_that_others_delete_do_not_stop_saves() {
    let dir = tempfile::tempdir().unwrap();
    let f = open(dir.path(), 8);
    f.store(&f.keys(0..8), LEN);
    for shard in fs::read_dir(dir.path()).unwrap().flatten().filter(|e| e.file_name() != ".kvtier")
    {
        fs::remove_dir_all(shard.path()).unwrap();
    }
    assert!((0..8).all(|n| absent(&f, n)));
    // The ledger still counts what is gone, until it stands in the way.
    f.store(&f.keys(10..18), LEN);
    assert!((10..18).all(|n| !absent(&f, n)));
    assert_eq!(ledger(dir.path()), files_bytes(dir.path()));
}

/// A copy of a chunk takes its key from the footer: a damaged one must not give the chunk's bytes
/// to another key.
#[test]
fn no_flipped_bit_of_a_footer_names_another_key() {
    use kvtier_file::inspect::{Directory, Source};
    let dir = tempfile::tempdir().unwrap();
    let f = open(dir.path(), 2);
    f.store(&f.keys([0]), LEN);
    let path = kvtier_disk::chunk_file_name::path(dir.path(), f.key(0).digest(), LEN as u64);
    let there = Directory::open(dir.path()).unwrap();
    let chunk = there.chunks().unwrap().remove(0);
    let unknown = Arc::new(kvtier_core::Namespace::new("", kvtier_core::Digest::default()));
    let named = |source| match source {
        Source::Key(key) => Some(*key.digest()),
        _ => None,
    };
    assert_eq!(named(there.key_of(&chunk, &unknown).unwrap()), Some(*f.key(0).digest()));
    let right = fs::read(&path).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    let mut refused = 0;
    for (at, byte) in right.iter().enumerate().skip(right.len() - 4096) {
        let put =
            |byte: u8| std::os::unix::fs::FileExt::write_all_at(&file, &[byte], at as u64).unwrap();
        put(byte ^ 1);
        let key = named(there.key_of(&chunk, &unknown).unwrap());
        assert!(key.is_none_or(|key| key == *f.key(0).digest()), "byte {at}");
        refused += usize::from(key.is_none());
        put(*byte);
    }
    assert!(refused > 100, "{refused} bytes count");
}
