//! When a tier compares the ledger with the directory, and what it does where they differ.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::tests::{Idle, LEN, key, open, write};
use super::*;
use crate::chunk_file_name;
use crate::data_dir::DataDir;
use crate::ledger::Ledger;
#[cfg(feature = "simulate")]
use {crate::fake_process, kvtier_os::simulated::Call, std::cell::Cell, std::rc::Rc};

/// What a chunk's file has.
const BYTES: u64 = 12_288;

/// A tier over one chunk, which index and ledger have.
struct OfOne {
    disk: Disk<Idle>,
    dir: tempfile::TempDir,
}

impl OfOne {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let disk = open(dir.path());
        write(dir.path(), &key(1));
        disk.shared.follow_changes();
        disk.shared.recount(true).unwrap();
        let check = &disk.shared.space.ledger_validity;
        check.clear();
        assert!(check.matched().is_some() && !disk.shared.is_ledger_suspect());
        OfOne { disk, dir }
    }

    fn shared(&self) -> &Shared<Idle> {
        &self.disk.shared
    }

    fn own(&self) -> PathBuf {
        self.dir.path().join(".kvtier")
    }

    fn total(&self) -> Option<u64> {
        Ledger::peek(&self.own()).unwrap()
    }

    /// Whether the total may be wrong, and when it is right again.
    fn was_suspect(&self) -> bool {
        let is_suspect = self.shared().is_ledger_suspect();
        assert_eq!(self.shared().space.ledger_validity.is_suspect(), is_suspect);
        self.shared().space.ledger_validity.clear();
        is_suspect
    }
}

#[test]
fn a_ledger_that_may_count_too_much_is_compared() {
    let it = OfOne::new();
    let shared = it.shared();
    // A release from before a recount is dropped.
    let drop_a_release = || {
        let since = shared.space.ledger.generation();
        shared.recount(true).unwrap();
        shared.uncount(1, since);
    };
    let cut_a_file = || assert_eq!(shared.data_dir.released(LEN as u64, Some(1)), 1);
    assert!(!it.was_suspect());
    drop_a_release();
    assert!(it.was_suspect() && !it.was_suspect());
    cut_a_file();
    assert!(it.was_suspect() && !it.was_suspect());
    drop_a_release();
    cut_a_file();
    assert!(it.was_suspect() && !it.was_suspect());
    shared.compare_ledger_soon();
    assert!(it.was_suspect() && !it.was_suspect());
}

#[test]
fn of_a_file_without_bytes_no_release_is_dropped() {
    let it = OfOne::new();
    let ledger = &it.shared().space.ledger;
    let since = ledger.generation();
    it.shared().recount(true).unwrap();
    ledger.release_later(5, ledger.generation());
    it.shared().uncount(0, since);
    assert!(!ledger.may_be_high());
    it.shared().uncount(1, ledger.generation());
    assert_eq!(it.total(), Some(BYTES - 6));
}

#[test]
fn a_tier_that_is_alone_again_compares_the_ledger() {
    let it = OfOne::new();
    let check = &it.shared().space.ledger_validity;
    let detect = || {
        it.shared().detect_peers().unwrap();
        (check.has_peers(), check.is_suspect(), check.matched().is_some())
    };
    assert_eq!(detect(), (false, false, true), "as before");
    let peer = DataDir::open(it.dir.path(), None).unwrap();
    assert_eq!(detect(), (true, false, true));
    assert_eq!(detect(), (true, false, true), "as before");
    drop(peer);
    assert_eq!(detect(), (false, true, false));
}

#[test]
fn what_waits_is_shared_and_a_damaged_ledger_is_counted() {
    let it = OfOne::new();
    let ledger = &it.shared().space.ledger;
    ledger.release_later(4, ledger.generation());
    it.shared().share_ledger().unwrap();
    assert_eq!(it.total(), Some(BYTES - 4));
    fs::write(it.own().join("ledger"), "damaged").unwrap();
    it.shared().share_ledger().unwrap();
    assert_eq!(it.total(), Some(BYTES));
}

#[cfg(feature = "simulate")]
#[test]
fn a_ledger_that_fails_is_opened_again_and_one_that_is_kept_is_not() {
    let it = OfOne::new();
    let ledger = &it.shared().space.ledger;
    ledger.release_later(4, ledger.generation());
    // The lock fails this often.
    let share = |times: u32, error: nix::Error| {
        let opened = Rc::new(Cell::new(0));
        let seen = Rc::clone(&opened);
        let left = Cell::new(times);
        let process = fake_process::enter(move |call| match call {
            Call::Lock(_) if left.get() > 0 => {
                left.set(left.get() - 1);
                Err(error)
            }
            Call::Open(name) => {
                seen.set(seen.get() + u32::from(name.path.ends_with("ledger")));
                Ok(())
            }
            _ => Ok(()),
        });
        let shared = it.shared().share_ledger();
        drop(process);
        (shared.map_err(|e| e.raw_os_error()), opened.get())
    };
    let kept = nix::Error::EWOULDBLOCK;
    assert_eq!(share(u32::MAX, kept).1, 0);
    assert_eq!(it.total(), Some(BYTES));
    assert_eq!(share(2, nix::Error::EIO), (Err(Some(nix::Error::EIO as i32)), 1));
    assert_eq!(it.total(), Some(BYTES));
    assert_eq!(share(1, nix::Error::EIO), (Ok(()), 1));
    assert_eq!(it.total(), Some(BYTES - 4));
}

#[test]
fn a_ledger_that_agrees_is_not_counted_again() {
    let it = OfOne::new();
    let check = &it.shared().space.ledger_validity;
    let generation = it.shared().space.ledger.generation();
    check.suspect();
    it.shared().check_ledger();
    assert!(!check.is_suspect());
    assert_eq!(it.shared().space.ledger.generation(), generation);
    // Unless the index was never compared with the directory.
    check.set_matched(None);
    it.shared().check_ledger();
    assert_eq!(check.matched(), Some(it.shared().space.ledger.generation()));
    assert!(check.matched() != Some(generation));
}

/// The cap is 1 MiB, of which a 128th is 8192.
#[cfg(feature = "simulate")]
#[test]
fn a_small_difference_is_ignored_while_a_peer_changes_the_ledger() {
    let it = OfOne::new();
    // A peer counts these bytes while the directory is read.
    let check_beside = |bytes: u64| {
        let generation = it.shared().space.ledger.generation();
        let peer = Ledger::open(&it.own(), true).unwrap();
        let waits = Cell::new(true);
        let process = fake_process::enter(move |call| {
            if let Call::Look(name) = call
                && name.path.ends_with(".kvtier/tmp")
                && waits.replace(false)
            {
                peer.add(bytes).unwrap();
            }
            Ok(())
        });
        it.shared().check_ledger();
        drop(process);
        (it.total().unwrap() - BYTES, it.shared().space.ledger.generation() != generation)
    };
    assert_eq!(check_beside(8192), (8192, false));
    assert_eq!(check_beside(1), (0, true), "8193 are too many");
    assert_eq!(check_beside(1), (1, false));
    assert_eq!(check_beside(0), (0, true), "no peer changed it");
}

#[test]
fn the_older_of_two_files_of_a_chunk_is_deleted_and_released() {
    let it = OfOne::new();
    let path = |len| chunk_file_name::path(it.dir.path(), key(1).digest(), len);
    let put = |len: u64, time| {
        fs::write(path(len), vec![7; chunk_file_name::file_len(len) as usize]).unwrap();
        let file = fs::File::options().write(true).open(path(len)).unwrap();
        file.set_modified(time).unwrap();
    };
    let now = fs::metadata(path(LEN as u64)).unwrap().modified().unwrap();
    let hour = Duration::from_secs(3600);
    for (other, time, stays) in [(3, now - hour, LEN as u64), (50_000, now + hour, 50_000)] {
        put(other, time);
        it.shared().recount(true).unwrap();
        let both = [LEN as u64, other].map(chunk_file_name::file_len);
        assert_eq!(it.total(), Some(both[0] + both[1]));
        it.shared().resolve_duplicate(key(1).digest(), other);
        assert_eq!(
            [LEN as u64, other].map(|len| path(len).exists()),
            [LEN as u64, other].map(|len| len == stays)
        );
        assert_eq!(it.total(), Some(chunk_file_name::file_len(stays)));
        assert_eq!(it.shared().known_len(key(1).digest()), Some(stays));
    }
    // Of one file there is no older one.
    it.shared().resolve_duplicate(key(1).digest(), 50_000);
    assert!(path(50_000).exists());
}

#[test]
fn what_is_cleared_from_the_quarantine_is_released() {
    let it = OfOne::new();
    let put = |name: &str, bytes: usize| {
        fs::write(it.own().join("quarantine").join(name), vec![7; bytes]).unwrap();
        it.shared().recount(true).unwrap();
        it.shared().trim_quarantine();
        (it.total().unwrap() - BYTES, it.shared().space.quarantine_bytes.load(Ordering::Relaxed))
    };
    // A hundredth of the cap may stay.
    assert_eq!(put("one", 5000), (5000, 5000));
    assert_eq!(put("two", 5000), (10_000, 10_000));
    assert_eq!(put("many", 100_000).0 % 5000, 0, "the oldest go until the rest fits");
    assert!(it.total().unwrap() <= BYTES + 10_485);
    put("last", 4000);
    let kept = it.total().unwrap() - BYTES;
    assert!(kept >= 4000);
    assert_eq!(it.shared().free_quarantined(kept), kept);
    assert_eq!(it.total(), Some(BYTES));
    assert_eq!(it.shared().space.quarantine_bytes.load(Ordering::Relaxed), 0);
    assert_eq!(it.shared().free_quarantined(1), 0);
}

#[test]
fn a_quarantined_file_that_the_index_has_as_it_is_is_no_reason_to_compare_the_ledger() {
    let it = OfOne::new();
    let mut chunk = it.shared().index().known(key(1).digest()).unwrap().chunk;
    assert_eq!(chunk.bytes, BYTES);
    it.shared().quarantine(key(1).digest(), LEN as u64, Some(chunk)).unwrap();
    assert!(!it.was_suspect());
    write(it.dir.path(), &key(1));
    chunk.bytes = 2 * BYTES;
    it.shared().quarantine(key(1).digest(), LEN as u64, Some(chunk)).unwrap();
    assert!(it.was_suspect());
    assert_eq!(it.total(), Some(0));
}
