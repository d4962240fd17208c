//! What is above the cap and no save evicts: what a crash of the machine brings back.

use std::fs;
use std::sync::atomic::Ordering;

use kvtier_core::ManualClock;
use kvtier_index::Chunk;

use super::tests::{FOREIGN, LEN, foreign, in_time, key, open, open_on, write};
use crate::chunk_file_name;
use crate::ledger::Ledger;

const CAP_BYTES: u64 = 1 << 20;

/// Else the directory stays above the cap until the next save.
#[test]
fn chunks_above_the_cap_that_cannot_be_deleted_are_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    let time = ManualClock::new();
    let disk = open_on(&time, dir.path());
    let shared = &disk.shared;
    let (digest, len) = (*key(1).digest(), LEN as u64);
    let path = chunk_file_name::path(dir.path(), &digest, len);
    // No file can be deleted there.
    fs::create_dir_all(&path).unwrap();
    let _ = shared.index().insert(Chunk::new(digest, len, 2 * CAP_BYTES));
    shared.evict_to_cap();
    assert!(shared.index().is_known(&digest));
    fs::remove_dir(&path).unwrap();
    fs::write(&path, [7; LEN]).unwrap();
    in_time(&time, "it is deleted", || !path.exists() && !shared.index().is_known(&digest));
}

#[test]
fn second_files_without_a_chunk_count_for_the_cap_and_chunks_go_for_them() {
    let dir = tempfile::tempdir().unwrap();
    let (layout, name) = FOREIGN[2];
    let (disk, key, path) = foreign(layout, name, dir.path());
    let shared = &disk.shared;
    let alone = "18/85/m%401%400%401a2b000000000001%40half.kvcache.safetensors.metadata";
    let scan = || {
        shared.scan_foreign(shared.data_dir.foreign().unwrap()).unwrap();
        shared.evict_to_cap();
        shared.evict_ledger_excess();
        Ledger::peek(&dir.path().join(".kvtier")).unwrap().unwrap()
    };
    let of_chunk = LEN as u64 + 4096;
    fs::write(dir.path().join(alone), vec![7; (CAP_BYTES - of_chunk) as usize]).unwrap();
    assert_eq!(scan(), CAP_BYTES);
    assert!(path.exists(), "all are just at the cap");
    fs::write(dir.path().join(alone), vec![7; (CAP_BYTES - of_chunk) as usize + 1]).unwrap();
    assert_eq!(scan(), CAP_BYTES - of_chunk + 1);
    assert!(!path.exists() && !shared.index().is_known(key.digest()));
}

#[test]
fn chunks_above_the_cap_go_once_they_may() {
    let dir = tempfile::tempdir().unwrap();
    let disk = open(dir.path());
    let shared = &disk.shared;
    let is_due = || shared.space.is_eviction_due.load(Ordering::Relaxed);
    write(dir.path(), &key(1));
    shared.follow_changes();
    let (digest, other) = (*key(1).digest(), *key(2).digest());
    let _ = shared.index().insert(Chunk::new(other, LEN as u64, CAP_BYTES));
    shared.data_dir.set_read_only(true);
    shared.evict_to_cap();
    shared.evict_again();
    assert!(is_due() && shared.index().get(&digest).is_some());
    shared.data_dir.set_read_only(false);
    shared.evict_again();
    assert!(!is_due() && shared.index().get(&digest).is_none());
    // What was not tried is not tried again.
    let third = *key(3).digest();
    let _ = shared.index().insert(Chunk::new(third, LEN as u64, CAP_BYTES));
    shared.evict_again();
    assert!([other, third].iter().all(|digest| shared.index().get(digest).is_some()));
    shared.evict_to_cap();
    let left = [other, third].map(|digest| shared.index().get(&digest).is_some());
    assert_eq!((left, is_due()), ([false, true], false), "the oldest goes");
}

#[test]
fn nothing_goes_for_a_total_that_may_not_be_lowered_or_will_be_lower() {
    let dir = tempfile::tempdir().unwrap();
    let disk = open(dir.path());
    let shared = &disk.shared;
    write(dir.path(), &key(1));
    shared.follow_changes();
    let is_there = || shared.index().get(key(1).digest()).is_some();
    shared.space.ledger.add(CAP_BYTES).unwrap();
    shared.data_dir.set_read_only(true);
    shared.evict_ledger_excess();
    assert!(is_there());
    shared.data_dir.set_read_only(false);
    // Freed, and not in the file yet.
    shared.space.ledger.release_later(CAP_BYTES, shared.space.ledger.generation());
    shared.evict_ledger_excess();
    assert!(is_there());
    shared.space.ledger.add(CAP_BYTES).unwrap();
    shared.evict_ledger_excess();
    assert!(!is_there());
}

/// A save that freed nothing would wake itself, and try again without a pause.
#[test]
fn saves_that_wait_are_woken_only_by_what_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let disk = open(dir.path());
    let shared = &disk.shared;
    let evict = || {
        let victims = shared.index().evict_bytes(shared.now_ms(), 1);
        let before = shared.space.queue.releases();
        (shared.evict(victims), shared.space.queue.releases() - before)
    };
    assert_eq!(evict(), (0, 0));
    write(dir.path(), &key(1));
    shared.follow_changes();
    assert_eq!(evict(), (1, 1));
}

#[test]
fn a_victim_of_another_length_than_the_index_has_makes_the_total_suspect() {
    let dir = tempfile::tempdir().unwrap();
    let disk = open(dir.path());
    let shared = &disk.shared;
    for is_wrong in [false, true] {
        write(dir.path(), &key(1));
        shared.follow_changes();
        let bytes = shared.index().get(key(1).digest()).unwrap().chunk.bytes;
        if is_wrong {
            assert!(shared.index().resize(key(1).digest(), LEN as u64, bytes + 4096));
        }
        shared.space.ledger_validity.clear();
        let victims = shared.index().evict_bytes(shared.now_ms(), 1);
        assert_eq!(shared.evict(victims), 1);
        assert_eq!(shared.space.ledger_validity.is_suspect(), is_wrong);
    }
}
