//! Files that are gone and that this process did not delete.

use std::fs;

use kvtier_index::Chunk;

use super::tests::{FOREIGN, LEN, foreign, key, open, write};
use crate::data_dir::DataDir;
use crate::ledger::Ledger;

#[test]
fn a_missing_file_is_a_reason_to_count_at_once_only_where_no_peer_may_have_deleted_it() {
    let dir = tempfile::tempdir().unwrap();
    let disk = open(dir.path());
    let shared = &disk.shared;
    let check = &shared.space.ledger_validity;
    let lose = |has_peers| {
        check.clear();
        // Index and ledger were never seen to agree.
        check.set_matched(None);
        check.set_has_peers(has_peers);
        shared.lost(key(1).digest(), 4096);
        check.is_suspect()
    };
    assert!(lose(false), "no record can explain it");
    assert!(!lose(true), "its record may come");
    let now = shared.clock.now();
    let late = now + std::time::Duration::from_secs(3);
    assert!(!check.has_unexplained(now) && check.has_unexplained(late));
    check.explained(key(1).digest());
    assert!(!check.has_unexplained(late));
}

#[test]
fn a_missing_file_is_no_reason_to_count_while_nothing_can_be_written_nor_in_layouts_of_others() {
    let dir = tempfile::tempdir().unwrap();
    let disk = open(dir.path());
    disk.shared.data_dir.set_read_only(true);
    let other = tempfile::tempdir().unwrap();
    let (layout, name) = FOREIGN[0];
    let (foreign, ..) = foreign(layout, name, other.path());
    for disk in [disk, foreign] {
        let check = &disk.shared.space.ledger_validity;
        check.clear();
        check.set_matched(None);
        disk.shared.lost(key(1).digest(), 4096);
        assert!(!check.is_suspect());
    }
}

#[test]
fn a_tier_that_finds_a_peer_when_a_file_is_missing_waits_for_its_record() {
    let dir = tempfile::tempdir().unwrap();
    let disk = open(dir.path());
    let peer = DataDir::open(dir.path(), None).unwrap();
    let check = &disk.shared.space.ledger_validity;
    check.clear();
    assert!(!check.has_peers(), "it has not looked since");
    disk.shared.lost(key(1).digest(), 4096);
    assert!(check.has_peers() && !check.is_suspect());
    assert!(check.has_unexplained(disk.shared.clock.now() + std::time::Duration::from_secs(3)));
    drop(peer);
}

/// A process that overwrites an old chunk's file for a new one renames it first. If it dies then, the file
/// is among its unfinished ones.
#[test]
fn a_file_that_a_dead_process_has_taken_is_released_once() {
    let dir = tempfile::tempdir().unwrap();
    let disk = open(dir.path());
    let shared = &disk.shared;
    write(dir.path(), &key(1));
    shared.recount(true).unwrap();
    let total = || Ledger::peek(&shared.data_dir.own()).unwrap().unwrap();
    let bytes = total();
    let digest = *key(1).digest();
    let _ = shared.index().insert(Chunk::new(digest, LEN as u64, bytes));
    let peer = DataDir::open(dir.path(), None).unwrap();
    let taken = peer.create(bytes).unwrap().0.path();
    fs::rename(crate::chunk_file_name::path(dir.path(), &digest, LEN as u64), &taken).unwrap();
    peer.staging().unwrap().abandon();
    drop(peer);
    shared.lost(&digest, bytes);
    assert_eq!(total(), bytes, "the file is there");
    assert!(shared.remove_stale() && !taken.exists());
    assert_eq!(total(), 0);
    // As of another chunk.
    shared.space.ledger.add(bytes).unwrap();
    shared.lost(&digest, bytes);
    assert_eq!(total(), bytes, "it was released");
}
