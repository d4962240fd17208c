//! Files that a crash of the machine or another program cut, and that a peer counts by what is left of
//! them, since the directory may have encoded chunks: the ledger never counts less than there is.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kvtier_index::RemoveOutcome;

use super::tests::{Idle, LEN, key, open, write};
use super::*;
use crate::chunk_file_name;
use crate::ledger::Ledger;

/// What the name of a chunk's file states.
const BY_NAME: u64 = 12_288;

/// A process that has not noticed that chunks may be encoded, and a peer that counted by lengths.
struct Beside {
    dir: tempfile::TempDir,
    disk: Disk<Idle>,
    peer: Disk<Idle>,
}

impl Beside {
    /// With two chunks, of which the first has this length.
    fn with_cut_to(bytes: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (disk, peer) = (open(dir.path()), open(dir.path()));
        [1, 2].into_iter().for_each(|n| write(dir.path(), &key(n)));
        disk.shared.follow_changes();
        let cut = File::options().write(true).open(path(dir.path(), 1)).unwrap();
        cut.set_len(bytes).unwrap();
        peer.shared.data_dir.begin_to_encode(Duration::from_secs(60)).unwrap();
        peer.shared.recount(true).unwrap();
        // This process sees the new total, as with each claim.
        disk.shared.space.ledger.fold().unwrap();
        assert!(!disk.shared.data_dir.may_have_encoded());
        let beside = Beside { dir, disk, peer };
        assert_eq!(beside.total(), bytes + BY_NAME);
        beside
    }

    fn total(&self) -> u64 {
        Ledger::peek(&self.disk.shared.data_dir.own()).unwrap().unwrap()
    }
}

fn path(dir: &Path, n: u8) -> PathBuf {
    chunk_file_name::path(dir, key(n).digest(), LEN as u64)
}

#[test]
fn an_evicted_file_releases_what_was_left_of_it() {
    for left in [0, 100, 4096] {
        let beside = Beside::with_cut_to(left);
        let shared = &beside.disk.shared;
        let RemoveOutcome::Gone(entry) = shared.index().begin_evict(key(1).digest()) else {
            panic!("it is in the index")
        };
        assert_eq!(shared.evict(vec![entry]), 1);
        assert_eq!(beside.total(), BY_NAME, "{left}");
    }
}

/// Nothing shows this process how the peer counted.
#[test]
fn nor_does_it_release_more_while_the_manifest_is_damaged() {
    let beside = Beside::with_cut_to(0);
    std::fs::write(beside.dir.path().join(".kvtier/manifest"), "damaged").unwrap();
    let shared = &beside.disk.shared;
    let RemoveOutcome::Gone(entry) = shared.index().begin_evict(key(1).digest()) else {
        panic!("it is in the index")
    };
    assert_eq!(shared.evict(vec![entry]), 1);
    assert_eq!(beside.total(), BY_NAME);
    assert!(shared.is_ledger_suspect(), "it is compared soon");
}

#[test]
fn nor_does_one_that_is_quarantined_or_deleted_for_it() {
    let beside = Beside::with_cut_to(100);
    let shared = &beside.disk.shared;
    let digest = *key(1).digest();
    let seen = shared.data_dir.find(&digest, LEN as u64).unwrap().unwrap();
    assert!(shared.quarantine_corrupt(&digest, LEN as u64, seen));
    shared.space.ledger.fold().unwrap();
    assert!(!path(beside.dir.path(), 1).exists());
    let kept: u64 = crate::data_dir::quarantine::list(&shared.data_dir.own())
        .unwrap()
        .iter()
        .map(|kept| kept.bytes)
        .sum();
    assert_eq!(beside.total(), BY_NAME + kept);
}

/// A process that dies with such an unfinished file has its stated bytes released.
#[test]
fn a_file_that_was_cut_or_has_another_name_is_not_written_over() {
    let beside = Beside::with_cut_to(4096);
    let recycle =
        |n| beside.disk.shared.data_dir.recycle(key(n).digest(), LEN as u64, BY_NAME).unwrap();
    assert!(recycle(1).is_none() && path(beside.dir.path(), 1).exists());
    let other_name = beside.dir.path().join("other");
    std::fs::hard_link(path(beside.dir.path(), 2), &other_name).unwrap();
    assert!(recycle(2).is_none(), "it is another chunk's file too");
    std::fs::remove_file(other_name).unwrap();
    assert!(recycle(2).is_some() && !path(beside.dir.path(), 2).exists());
}

/// Also the bytes that a file had when it is found deleted are those that were counted.
#[test]
fn a_recount_enters_into_the_index_what_it_counted() {
    let Beside { dir, disk, peer } = Beside::with_cut_to(4096);
    drop(peer);
    let shared = &disk.shared;
    shared.detect_peers().unwrap();
    shared.recount(true).unwrap();
    let known = shared.index().known(key(1).digest()).unwrap();
    assert_eq!(known.chunk.bytes, 4096);
    std::fs::remove_file(path(dir.path(), 1)).unwrap();
    shared.forget_missing(key(1).digest(), LEN as u64);
    assert_eq!(Ledger::peek(&shared.data_dir.own()).unwrap(), Some(BY_NAME));
}
