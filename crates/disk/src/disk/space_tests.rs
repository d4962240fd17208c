//! What one save sees of the space that another one is taking.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kvtier_index::ReserveRequest;

use super::tests::{Idle, key, open, write};
use crate::ledger::Ledger;
use crate::shared::Shared;
use crate::space::{FileSize, ReserveOutcome, SpaceReservation};

const BYTES: u64 = 12_288;

fn reservation(shared: &Arc<Shared<Idle>>) -> SpaceReservation<Idle> {
    let size = FileSize { claimed: BYTES, published: BYTES, allocated: BYTES };
    let deadline = shared.clock.now() + Duration::from_secs(300);
    SpaceReservation::new(shared, ReserveRequest::new(BYTES), size, deadline)
}

/// Else, while a stopped process keeps the ledger's lock, a save is shed in the moment between the two,
/// though the other one's chunk will be there to evict.
#[test]
fn a_chunk_that_was_evicted_for_a_save_is_space_to_wait_for() {
    let dir = tempfile::tempdir().unwrap();
    let disk = open(dir.path());
    let shared = &disk.shared;
    write(dir.path(), &key(1));
    shared.follow_changes();
    let mut save = reservation(shared);
    let victims = shared.index().evict_bytes(shared.now_ms(), BYTES);
    assert!(save.evict_or_recycle(victims));
    let usage = shared.index().usage();
    assert_eq!((usage.entries, usage.reserved), (0, 0));
    assert!(shared.may_free_bytes(), "it reserves them now");
    assert_eq!(save.reserve().unwrap(), ReserveOutcome::Reserved);
    assert!(!shared.space.has_evicting_saves() && shared.may_free_bytes(), "it has reserved them");
    drop(save);
    assert!(!shared.may_free_bytes());
    // One that gives up has none either.
    write(dir.path(), &key(2));
    shared.follow_changes();
    let mut save = reservation(shared);
    let victims = shared.index().evict_bytes(shared.now_ms(), BYTES);
    assert!(save.evict_or_recycle(victims) && shared.may_free_bytes());
    drop(save);
    assert!(!shared.may_free_bytes());
    let mut save = reservation(shared);
    assert!(!save.evict_or_recycle(Vec::new()) && !shared.may_free_bytes());
}

/// What is deleted while a peer counts, or is stopped while it counts, is not released.
#[test]
fn nothing_is_evicted_nor_taken_over_while_another_process_counts() {
    let dir = tempfile::tempdir().unwrap();
    let disk = open(dir.path());
    let shared = &disk.shared;
    write(dir.path(), &key(1));
    shared.follow_changes();
    let peer = Ledger::open(&dir.path().join(".kvtier"), true).unwrap();
    shared.space.ledger.note_kept();
    let counted = peer.recount(true, || {
        let mut save = reservation(shared);
        let victims = shared.index().evict_bytes(shared.now_ms(), BYTES);
        assert!(!victims.is_empty() && !save.evict_or_recycle(victims));
        Ok(BYTES)
    });
    counted.unwrap();
    assert!(shared.index().get(key(1).digest()).is_some());
    assert_eq!(shared.index().usage().evicting, 0);
    assert!(!shared.space.ledger.may_be_high());
}

/// What it would delete instead would not be released: the directory would be counted again, and so on.
#[test]
fn a_file_is_taken_over_though_another_process_has_counted() {
    let dir = tempfile::tempdir().unwrap();
    let [disk, peer] = [open(dir.path()), open(dir.path())];
    let shared = &disk.shared;
    write(dir.path(), &key(1));
    shared.follow_changes();
    peer.shared.recount(true).unwrap();
    assert!(!shared.space.ledger.may_exchange(), "it has not read that total");
    let mut save = reservation(shared);
    let victims = shared.index().evict_bytes(shared.now_ms(), BYTES);
    assert!(save.evict_or_recycle(victims));
    assert_eq!(shared.counters.recycled.load(Ordering::Relaxed), 1);
    assert_eq!(save.reserve().unwrap(), ReserveOutcome::Reserved);
    assert!(!shared.space.ledger.may_be_high());
    assert_eq!(Ledger::peek(&dir.path().join(".kvtier")).unwrap(), Some(BYTES));
}

#[test]
fn a_full_device_is_written_to_again_only_if_something_was_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let disk = open(dir.path());
    let shared = &disk.shared;
    let save = reservation(shared);
    assert!(!save.evict_for_device(), "nothing to evict");
    write(dir.path(), &key(1));
    shared.follow_changes();
    assert!(save.evict_for_device());
    assert!(shared.index().get(key(1).digest()).is_none());
    assert!(!save.evict_for_device());
}
