//! Files that failed a check and stay, since they cannot be moved into quarantine.

use std::fs;

use super::tests::{LEN, key, open, write};
use crate::chunk_file_name;
use crate::ledger::Ledger;

const BYTES: u64 = 12_288;

#[test]
fn a_corrupt_file_that_cannot_be_moved_still_counts() {
    let dir = tempfile::tempdir().unwrap();
    let disk = open(dir.path());
    let shared = &disk.shared;
    write(dir.path(), &key(1));
    shared.follow_changes();
    let digest = *key(1).digest();
    let path = chunk_file_name::path(dir.path(), &digest, LEN as u64);
    // A directory in the place of a file cannot be unlinked, by root neither.
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    fs::remove_dir(dir.path().join(".kvtier/quarantine")).unwrap();
    let seen = shared.data_dir.find(&digest, LEN as u64).unwrap().unwrap();
    assert!(shared.quarantine_corrupt(&digest, LEN as u64, seen) && path.exists());
    assert_eq!(shared.index().usage().used, BYTES);
    assert!(shared.index().get(&digest).is_none(), "it is a miss");
}

/// Else a full directory would keep it, and take so much less.
#[test]
fn a_corrupt_file_that_stayed_is_evicted_in_its_turn() {
    let dir = tempfile::tempdir().unwrap();
    let disk = open(dir.path());
    let shared = &disk.shared;
    write(dir.path(), &key(1));
    shared.follow_changes();
    let digest = *key(1).digest();
    let path = chunk_file_name::path(dir.path(), &digest, LEN as u64);
    let seen = shared.data_dir.find(&digest, LEN as u64).unwrap().unwrap();
    shared.mark_corrupt(&digest, seen);
    assert!(shared.index().get(&digest).is_none() && shared.find_on_disk(&key(1), None).is_none());
    let victims = shared.index().evict_bytes(shared.now_ms(), 1);
    assert_eq!(shared.evict(victims), 1);
    assert!(!path.exists());
    assert_eq!(shared.index().usage().used, 0);
    assert_eq!(Ledger::peek(&shared.data_dir.own()).unwrap(), Some(0));
}
