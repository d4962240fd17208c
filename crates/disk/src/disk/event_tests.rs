//! What listeners learn of chunks that come and go.

use std::fs;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use kvtier_core::{Cursor, Event, Listener, Observe as _};

use super::tests::{FOREIGN, Idle, LEN, foreign, key, open, write};
use super::*;
use crate::chunk_file_name;
#[cfg(feature = "simulate")]
use {
    crate::fake_process,
    crate::space::{ReserveOutcome, SpaceReservation},
    kvtier_os::simulated::Call,
};

#[derive(Debug, Default)]
struct Log(Mutex<Vec<Event>>);

impl Log {
    fn of(disk: &Disk<Idle>) -> Arc<Self> {
        let log = Arc::new(Log::default());
        disk.listen(Arc::clone(&log) as Arc<dyn Listener>);
        log
    }

    /// What was reported since it was asked last.
    fn take(&self) -> Vec<Event> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Listener for Log {
    fn on_events(&self, events: &[Event]) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(events);
    }
}

fn stored(n: u8) -> Event {
    Event::Stored { key: *key(n).digest(), len: LEN as u64 }
}

fn gone(n: u8) -> Event {
    Event::Gone { key: *key(n).digest(), len: LEN as u64 }
}

fn listed(disk: &Disk<Idle>) -> Vec<Digest> {
    disk.keys(Cursor::default(), 100).keys.iter().map(|info| info.key).collect()
}

fn path(dir: &Path, n: u8) -> std::path::PathBuf {
    chunk_file_name::path(dir, key(n).digest(), LEN as u64)
}

/// It is a miss, so who follows the events must not count on it.
#[test]
fn a_chunk_that_cannot_be_used_is_reported_as_gone_until_its_file_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let disk = open(dir.path());
    let shared = &disk.shared;
    let log = Log::of(&disk);
    write(dir.path(), &key(1));
    shared.follow_changes();
    assert_eq!((log.take(), listed(&disk).len()), (vec![stored(1)], 1));
    let seen = shared.data_dir.find(key(1).digest(), LEN as u64).unwrap().unwrap();
    shared.set_unusable(key(1).digest(), LEN as u64, seen);
    assert_eq!((log.take(), listed(&disk)), (vec![gone(1)], vec![]));
    shared.set_unusable(key(1).digest(), LEN as u64, seen);
    assert_eq!(log.take(), []);
    // A peer saves it again.
    let again = dir.path().join("again");
    fs::copy(path(dir.path(), 1), &again).unwrap();
    fs::rename(&again, path(dir.path(), 1)).unwrap();
    let now = shared.data_dir.find(key(1).digest(), LEN as u64).unwrap().unwrap();
    shared.clear_corrupt_if_replaced(key(1).digest(), now);
    shared.listeners.notify();
    assert_eq!((log.take(), listed(&disk).len()), (vec![stored(1)], 1));
}

/// Its end was reported when it was marked.
#[test]
fn the_end_of_a_chunk_that_cannot_be_used_is_reported_once() {
    let dir = tempfile::tempdir().unwrap();
    let disk = open(dir.path());
    let shared = &disk.shared;
    (1..=3).for_each(|n| write(dir.path(), &key(n)));
    shared.follow_changes();
    let log = Log::of(&disk);
    let digests = [1, 2, 3].map(|n| *key(n).digest());
    let unusable = |n: u8| {
        let seen = shared.data_dir.find(key(n).digest(), LEN as u64).unwrap().unwrap();
        shared.set_unusable(key(n).digest(), LEN as u64, seen);
    };
    // One is a victim already when it is marked.
    let victim = shared.index().begin_evict(&digests[0]);
    let kvtier_index::RemoveOutcome::Gone(victim) = victim else { panic!("{victim:?}") };
    (1..=3).for_each(unusable);
    assert_eq!(log.take(), [gone(1), gone(2), gone(3)]);
    assert_eq!(shared.evict(vec![victim]), 1);
    fs::remove_file(path(dir.path(), 2)).unwrap();
    shared.removed_by_another(&digests[1], LEN as u64).unwrap();
    shared.forget(&digests[2], true);
    shared.listeners.notify();
    assert_eq!((log.take(), listed(&disk)), (vec![], vec![]));
}

/// The log fails behind a record that was read.
#[test]
fn what_was_read_of_the_change_log_before_an_error_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let disk = open(dir.path());
    let log = Log::of(&disk);
    write(dir.path(), &key(1));
    for entry in fs::read_dir(dir.path().join(".kvtier")).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().unwrap().to_string_lossy().starts_with("changes.") {
            fs::remove_file(&path).unwrap();
            fs::create_dir(&path).unwrap();
        }
    }
    disk.shared.follow_changes();
    assert!(disk.status().reasons.iter().any(|reason| reason.contains("cannot read the change")));
    assert_eq!(log.take(), [stored(1)]);
}

/// It is listed from then on, and would never be reported otherwise.
#[test]
fn what_a_first_listing_of_names_finds_is_reported() {
    for (layout, name) in FOREIGN {
        let dir = tempfile::tempdir().unwrap();
        let (disk, key, _) = foreign(layout, name, dir.path());
        let log = Log::of(&disk);
        disk.shared.list_foreign(disk.shared.data_dir.foreign().unwrap()).unwrap();
        let expected = Event::Stored { key: *key.digest(), len: 0 };
        assert_eq!((log.take(), listed(&disk).len()), (vec![expected], 1), "{layout}");
    }
}

#[test]
fn a_recount_that_finds_a_file_gone_reports_it_unless_it_was_reported() {
    let dir = tempfile::tempdir().unwrap();
    let disk = open(dir.path());
    let shared = &disk.shared;
    let log = Log::of(&disk);
    [1, 2, 3].into_iter().for_each(|n| write(dir.path(), &key(n)));
    shared.follow_changes();
    shared.mark_suspect(&mut shared.index(), key(2).digest());
    log.take();
    [1, 2].into_iter().for_each(|n| fs::remove_file(path(dir.path(), n)).unwrap());
    shared.recount(true).unwrap();
    assert_eq!(log.take(), [gone(1)]);
    assert_eq!([1, 2, 3].map(|n| shared.index().is_known(key(n).digest())), [false, false, true]);
}

/// The scan ends at a directory that cannot be listed.
#[cfg(feature = "simulate")]
#[test]
fn what_a_scan_finds_before_an_error_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let (layout, name) = FOREIGN[2];
    let (disk, ..) = foreign(layout, name, dir.path());
    let other =
        dir.path().join("19/00/org%2Fm%401%400%401a5e27eef13e0000%40bfloat16.kvcache.safetensors");
    fs::create_dir_all(other.parent().unwrap()).unwrap();
    fs::write(other, [7; LEN]).unwrap();
    let log = Log::of(&disk);
    let first = Mutex::new(None);
    let process = fake_process::enter(move |call| match call {
        Call::Look(looked) if [18, 19].iter().any(|dir| looked.path.ends_with(dir.to_string())) => {
            let mut first = first.lock().unwrap();
            let first = first.get_or_insert_with(|| looked.path.to_owned());
            if first == looked.path { Ok(()) } else { Err(nix::Error::EIO) }
        }
        _ => Ok(()),
    });
    disk.shared.scan_foreign(disk.shared.data_dir.foreign().unwrap()).unwrap_err();
    drop(process);
    assert_eq!(log.take().len(), 1);
}

/// Its second file has no name, and the first cannot be deleted.
#[cfg(feature = "simulate")]
#[test]
fn a_file_that_a_failed_save_leaves_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let (layout, name) = FOREIGN[2];
    let (disk, key, path) = foreign(layout, name, dir.path());
    let shared = &disk.shared;
    fs::remove_file(&path).unwrap();
    fs::remove_file(dir.path().join(layout.sidecar(name).unwrap())).unwrap();
    let log = Log::of(&disk);
    let size = crate::save::size_of(&shared.data_dir, LEN as u64);
    let request = kvtier_index::ReserveRequest::new(size.claimed);
    let deadline = shared.clock.now() + std::time::Duration::from_secs(300);
    let mut space = SpaceReservation::new(shared, request, size, deadline);
    assert_eq!(space.reserve().unwrap(), ReserveOutcome::Reserved);
    let since = shared.space.ledger.generation();
    shared.data_dir.publish(space.draft().unwrap(), key.digest(), LEN as u64).unwrap();
    let process = fake_process::enter(|call| match call {
        Call::Remove(_) => Err(nix::Error::EIO),
        _ => Ok(()),
    });
    // As a save holds it: the scan that is requested waits.
    let _name = shared.name(key.digest());
    shared.retract(&key, LEN as u64, space, since);
    drop(process);
    shared.listeners.notify();
    let stored = Event::Stored { key: *key.digest(), len: LEN as u64 };
    assert_eq!((log.take(), listed(&disk)), (vec![stored], vec![*key.digest()]));
}
