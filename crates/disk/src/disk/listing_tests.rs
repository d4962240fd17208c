//! What a listing of the directory changes in the index.

use super::tests::{Idle, LEN, key, open, write};
use super::*;
use crate::data_dir::Listed;
#[cfg(feature = "simulate")]
use {crate::chunk_file_name, crate::fake_process, kvtier_os::simulated::Call};

/// What a chunk's file has.
const BYTES: u64 = 12_288;

fn listed(key: &Key, len: usize, bytes: u64) -> Listed {
    Listed { digest: *key.digest(), len: len as u64, bytes, inode: 0 }
}

/// A tier that has one chunk.
fn with_one() -> (tempfile::TempDir, Disk<Idle>, Key) {
    let dir = tempfile::tempdir().unwrap();
    let disk = open(dir.path());
    write(dir.path(), &key(1));
    disk.shared.follow_changes();
    (dir, disk, key(1))
}

#[test]
fn a_file_is_looked_at_only_if_it_is_listed_other_than_it_is_entered() {
    let (_dir, disk, key) = with_one();
    let shared = &disk.shared;
    let bytes = || shared.index().known(key.digest()).map(|entry| entry.chunk.bytes);
    let other = BYTES + 4096;
    shared.index().resize(key.digest(), LEN as u64, other);
    shared.apply_listing(&[listed(&key, LEN, other)]).unwrap();
    assert_eq!(bytes(), Some(other), "no look at its file corrected it");
    shared.apply_listing(&[listed(&key, LEN, BYTES)]).unwrap();
    assert_eq!(bytes(), Some(BYTES));
}

#[test]
fn a_listed_chunk_that_is_being_evicted_is_not_entered() {
    let (_dir, disk, key) = with_one();
    let shared = &disk.shared;
    shared.space.ledger_validity.clear();
    let _ = shared.index().begin_evict(key.digest());
    shared.apply_listing(&[listed(&key, LEN, BYTES)]).unwrap();
    assert!(shared.index().is_evicting(key.digest()));
    assert!(!shared.space.ledger_validity.is_suspect(), "its bytes are counted");
}

#[cfg(feature = "simulate")]
#[test]
fn a_listed_file_that_cannot_be_looked_at_is_entered_by_its_name() {
    let (dir, disk, known) = with_one();
    let shared = &disk.shared;
    let new = key(2);
    write(dir.path(), &new);
    let names = [&known, &new].map(|key| {
        chunk_file_name::path(dir.path(), key.digest(), LEN as u64).file_name().unwrap().to_owned()
    });
    let process = fake_process::enter(move |call| match call {
        Call::Look(name) if names.iter().any(|file| name.path.ends_with(file)) => {
            Err(nix::Error::EIO)
        }
        _ => Ok(()),
    });
    let error = shared.apply_listing(&[listed(&new, LEN, BYTES)]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(nix::libc::EIO));
    assert_eq!(shared.known_len(new.digest()), Some(LEN as u64));
    // One that the index has, in any state, stays as it is.
    shared.index().mark_suspect(known.digest());
    shared.apply_listing(&[listed(&known, LEN, BYTES)]).unwrap_err();
    assert!(shared.index().is_suspect(known.digest()));
    drop(process);
}

/// Each record is read once.
#[cfg(feature = "simulate")]
#[test]
fn a_record_whose_file_cannot_be_looked_at_is_a_reason_to_list() {
    let (dir, disk, _) = with_one();
    let shared = &disk.shared;
    let new = key(2);
    write(dir.path(), &new);
    let path = chunk_file_name::path(dir.path(), new.digest(), LEN as u64);
    let name = path.file_name().unwrap().to_owned();
    let process = fake_process::enter(move |call| match call {
        Call::Look(looked) if looked.path.ends_with(&name) => Err(nix::Error::EIO),
        _ => Ok(()),
    });
    assert!(!shared.follow_changes().is_complete && shared.changes.has_missed());
    drop(process);
    assert!(!shared.follow_changes().is_complete, "there is no other record of it");
    assert_eq!(shared.known_len(new.digest()), None);
    assert!(shared.reconcile() && !shared.changes.has_missed());
    assert_eq!(shared.known_len(new.digest()), Some(LEN as u64));
}
