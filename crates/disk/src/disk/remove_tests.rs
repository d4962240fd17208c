//! What a remove answers where a file cannot be deleted, or another thread is about to delete it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kvtier_core::Reply;
use kvtier_index::RemoveOutcome;

use super::tests::{FOREIGN, Idle, LEN, foreign, key, open, write};
use super::*;
use crate::chunk_file_name;

fn remove(disk: &Disk<Idle>, keys: &[Key]) -> Result<Removed, Error> {
    let soon = std::time::Instant::now() + Duration::from_secs(300);
    let (answer, ticket) = Reply::new("remove", soon);
    crate::remove::remove(&disk.shared, keys, answer);
    ticket.wait()
}

fn path(dir: &Path, n: u8, len: usize) -> PathBuf {
    chunk_file_name::path(dir, key(n).digest(), len as u64)
}

/// A directory in the place of a file cannot be unlinked, by root neither.
fn block(path: &Path) {
    fs::remove_file(path).unwrap();
    fs::create_dir(path).unwrap();
}

#[test]
fn a_file_that_cannot_be_deleted_is_an_error_and_the_other_keys_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let disk = open(dir.path());
    let keys = [1, 2, 3].map(key);
    keys.iter().for_each(|key| write(dir.path(), key));
    disk.shared.follow_changes();
    let blocked = path(dir.path(), 2, LEN);
    block(&blocked);
    let e = remove(&disk, &keys).unwrap_err();
    assert!(e.kind() == ErrorKind::Io && e.to_string().contains("cannot delete"), "{e}");
    let left = [1, 2, 3].map(|n| path(dir.path(), n, LEN).exists());
    assert_eq!(left, [false, true, false]);
    assert!(disk.shared.index().get(keys[1].digest()).is_some(), "it is a chunk again");
    fs::remove_dir(&blocked).unwrap();
    assert_eq!(remove(&disk, &keys[..1]).unwrap(), Removed::new(0, 1, 0));
}

#[test]
fn so_is_a_file_of_another_length_and_what_has_the_place_of_a_shard_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let disk = open(dir.path());
    let keys = [key(1), key(2)];
    keys.iter().for_each(|key| write(dir.path(), key));
    disk.shared.follow_changes();
    let other = path(dir.path(), 1, 3);
    fs::create_dir(&other).unwrap();
    assert_eq!(remove(&disk, &keys).unwrap_err().kind(), ErrorKind::Io);
    assert!(!path(dir.path(), 1, LEN).exists() && !path(dir.path(), 2, LEN).exists());
    fs::remove_dir(&other).unwrap();
    write(dir.path(), &keys[0]);
    disk.shared.follow_changes();
    let shard = other.parent().unwrap();
    fs::remove_dir_all(shard).unwrap();
    fs::write(shard, "no directory").unwrap();
    let removed = remove(&disk, &keys).unwrap();
    assert_eq!((removed.held, removed.removed + removed.absent), (0, 2));
    assert!(disk.shared.index().get(keys[0].digest()).is_none());
}

#[test]
fn what_is_being_evicted_is_deleted_by_the_remove() {
    let dir = tempfile::tempdir().unwrap();
    let disk = open(dir.path());
    let key = key(1);
    write(dir.path(), &key);
    let shared = &disk.shared;
    shared.follow_changes();
    let evict = || match shared.index().begin_evict(key.digest()) {
        RemoveOutcome::Gone(entry) => entry,
        other => panic!("{other:?}"),
    };
    // Another thread has chosen it, and fails to delete it after the remove.
    let file = path(dir.path(), 1, LEN);
    let entry = evict();
    assert_eq!(remove(&disk, std::slice::from_ref(&key)).unwrap(), Removed::new(1, 0, 0));
    assert!(!file.exists());
    assert_eq!(shared.evict(vec![entry]), 0, "it is deleted once");
    assert!(!shared.index().is_known(key.digest()));
    // Or the remove cannot delete it either.
    write(dir.path(), &key);
    shared.follow_changes();
    evict();
    block(&file);
    assert_eq!(remove(&disk, std::slice::from_ref(&key)).unwrap_err().kind(), ErrorKind::Io);
    assert!(shared.index().get(key.digest()).is_some());
}

#[test]
fn in_a_layout_of_others_too() {
    for (layout, name) in FOREIGN {
        let dir = tempfile::tempdir().unwrap();
        let (disk, key, file) = foreign(layout, name, dir.path());
        let chunk = kvtier_index::Chunk::new(*key.digest(), LEN as u64, LEN as u64);
        let _ = disk.shared.index().insert(chunk);
        block(&file);
        let e = remove(&disk, std::slice::from_ref(&key)).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Io, "{layout}: {e}");
        assert!(disk.shared.index().get(key.digest()).is_some());
    }
}

/// A listing that began before a remove enters the chunk after it, or another program deleted the file.
#[test]
fn an_entry_without_a_file_is_absent_and_no_longer_known() {
    let dir = tempfile::tempdir().unwrap();
    let (layout, name) = FOREIGN[0];
    let (disk, key, file) = foreign(layout, name, dir.path());
    let stale = || {
        let _ = disk.shared.index().insert(kvtier_index::Chunk::new(*key.digest(), 0, 0));
    };
    stale();
    assert_eq!(remove(&disk, std::slice::from_ref(&key)).unwrap(), Removed::new(1, 0, 0));
    assert!(!file.exists());
    stale();
    assert_eq!(remove(&disk, std::slice::from_ref(&key)).unwrap(), Removed::new(0, 1, 0));
    assert!(!disk.shared.index().is_known(key.digest()));
    // So it is while eviction has it.
    stale();
    let RemoveOutcome::Gone(_) = disk.shared.index().begin_evict(key.digest()) else { panic!() };
    assert_eq!(remove(&disk, std::slice::from_ref(&key)).unwrap(), Removed::new(0, 1, 0));
}

/// The process that deleted the file was stopped before it wrote the record.
#[test]
fn a_remove_that_finds_no_file_is_logged_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, other) = (open(dir.path()), open(dir.path()));
    let key = key(1);
    write(dir.path(), &key);
    for disk in [&disk, &other] {
        disk.shared.follow_changes();
    }
    let is_known = || other.shared.index().is_known(key.digest());
    fs::remove_file(path(dir.path(), 1, LEN)).unwrap();
    other.shared.follow_changes();
    assert!(is_known());
    let check = &other.shared.space.ledger_validity;
    check.set_has_peers(true);
    check.note_lost(key.digest(), other.shared.clock.now());
    assert_eq!(remove(&disk, std::slice::from_ref(&key)).unwrap(), Removed::new(0, 1, 0));
    other.shared.follow_changes();
    assert!(!is_known());
    let late = other.shared.clock.now() + Duration::from_secs(3);
    assert!(check.has_unexplained(late), "no process released its bytes");
}
