//! A foreign layout evicts once its files were scanned and its cap is agreed on. Until then saves find no
//! space in a full directory.

use std::cell::Cell;
use std::fs;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use kvtier_core::ManualClock;
use kvtier_os::simulated::{Call, Entered};

use super::{RETRY_AFTER, Rounds};
use crate::disk::tests::{FOREIGN, Idle, open_foreign, shared_of};
use crate::fake_process;
use crate::{Disk, DiskConfig};

const EVERY: Duration = Duration::from_secs(60);

/// What fails.
#[derive(Clone, Copy, PartialEq)]
enum Fails {
    Nothing,
    Looks,
    Manifest,
}

/// A tier of a simulated process, which has no thread that scans.
struct Tier {
    disk: Disk<Idle>,
    rounds: Rounds,
    time: ManualClock,
    fails: Rc<Cell<Fails>>,
    _process: Entered,
}

impl Tier {
    fn open(dir: &Path) -> Self {
        let (time, fails) = (ManualClock::new(), Rc::new(Cell::new(Fails::Nothing)));
        let (now, clock) = (Rc::clone(&fails), time.clone());
        let process = fake_process::enter(move |call| match (call, now.get()) {
            (Call::Look(_), Fails::Looks) => {
                clock.advance(7 * RETRY_AFTER);
                Err(nix::Error::EIO)
            }
            (Call::Rename(_, to), Fails::Manifest) if to.path.ends_with("manifest") => {
                Err(nix::Error::EIO)
            }
            _ => Ok(()),
        });
        let disk = open_foreign(&time, FOREIGN[0].0, dir);
        let rounds = Rounds::new(EVERY, true, shared_of(&disk).clock.now());
        Tier { disk, rounds, time, fails, _process: process }
    }

    /// The next round, while this fails. Answers when the one after it is due, and comes to it.
    fn round(&mut self, fails: Fails) -> Duration {
        self.fails.set(fails);
        let shared = shared_of(&self.disk);
        let foreign = shared.data_dir.foreign().unwrap();
        let is_requested = foreign.scan_requests.take().now;
        let next = self.rounds.next(shared, foreign, is_requested);
        self.time.advance(next);
        next
    }

    fn is_scanned(&self) -> bool {
        shared_of(&self.disk).data_dir.foreign().unwrap().is_scanned()
    }

    fn may_evict(&self) -> bool {
        shared_of(&self.disk).may_evict()
    }

    fn says(&self, what: &str) -> bool {
        shared_of(&self.disk).data_dir.foreign().unwrap().describe().contains(what)
    }

    fn generation(&self) -> crate::ledger::Generation {
        shared_of(&self.disk).space.ledger.generation()
    }
}

/// Writes as many chunks of 300 KiB; three fit below the cap.
fn write_chunks(dir: &Path, chunks: usize) {
    for n in 0..chunks {
        let name = FOREIGN[0].1.replace("00010203", &format!("0001020{n}"));
        fs::write(dir.join(name), vec![7; 300 << 10]).unwrap();
    }
}

fn chunks(dir: &Path) -> usize {
    let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name();
    fs::read_dir(dir).unwrap().map(name).filter(|name| name.to_string_lossy().contains('@')).count()
}

#[test]
fn a_first_scan_that_failed_is_tried_again_every_second_and_then_evicts() {
    let dir = tempfile::tempdir().unwrap();
    // The cap is in the manifest.
    Tier::open(dir.path()).round(Fails::Nothing);
    write_chunks(dir.path(), 5);
    let mut tier = Tier::open(dir.path());
    for _ in 0..5 {
        assert_eq!(tier.round(Fails::Looks), RETRY_AFTER, "however long it took");
        assert!(!tier.is_scanned() && !tier.may_evict());
    }
    assert_eq!((tier.round(Fails::Nothing), chunks(dir.path())), (EVERY, 3));
    // What others changed may be noticed late.
    assert_eq!([Fails::Looks; 2].map(|fails| tier.round(fails).as_secs()), [1, 2]);
    assert!(tier.may_evict());
}

#[test]
fn a_cap_that_cannot_be_written_is_tried_again_every_second_without_a_scan() {
    let dir = tempfile::tempdir().unwrap();
    write_chunks(dir.path(), 3);
    let mut tier = Tier::open(dir.path());
    assert_eq!(tier.round(Fails::Manifest), RETRY_AFTER);
    assert!(shared_of(&tier.disk).last_fault.get().unwrap().contains("os error 5"));
    let counted = tier.generation();
    for _ in 0..5 {
        assert_eq!(tier.round(Fails::Manifest), RETRY_AFTER);
        assert!(tier.is_scanned() && !tier.may_evict() && tier.says("no eviction until the cap"));
    }
    tier.round(Fails::Nothing);
    assert!(tier.may_evict() && !tier.says("no eviction"));
    assert_eq!(tier.generation(), counted, "each scan counts");
}

#[test]
fn a_cap_that_was_refused_is_tried_again_with_the_next_scan() {
    let dir = tempfile::tempdir().unwrap();
    write_chunks(dir.path(), 5);
    let mut tier = Tier::open(dir.path());
    assert_eq!(tier.round(Fails::Nothing), EVERY);
    assert!(tier.is_scanned() && !tier.may_evict() && tier.says("more than the cap"));
    assert_eq!(chunks(dir.path()), 5);
}

#[test]
fn a_directory_that_can_be_written_to_again_is_scanned_at_once() {
    let dir = tempfile::tempdir().unwrap();
    write_chunks(dir.path(), 1);
    let mut tier = Tier::open(dir.path());
    let set_read_only = |tier: &Tier| shared_of(&tier.disk).data_dir.set_read_only(true);
    let restore = |tier: &Tier| {
        let shared = shared_of(&tier.disk);
        let request = &shared.data_dir.foreign().unwrap().scan_requests.request;
        assert!(shared.restore_data_dir());
        request.lock().unwrap().now
    };
    // The manifest failed before that was noticed.
    assert_eq!(tier.round(Fails::Manifest), RETRY_AFTER);
    set_read_only(&tier);
    assert!(tier.round(Fails::Nothing) > RETRY_AFTER && !tier.may_evict());
    assert!(restore(&tier));
    assert_eq!(tier.round(Fails::Nothing), EVERY);
    assert!(tier.may_evict());
    set_read_only(&tier);
    assert!(!restore(&tier), "it may evict already");
}

#[test]
fn what_is_scanned_while_it_is_read_only_is_not_counted() {
    let dir = tempfile::tempdir().unwrap();
    write_chunks(dir.path(), 1);
    let mut tier = Tier::open(dir.path());
    let is_uncounted = |tier: &Tier| {
        let foreign = shared_of(&tier.disk).data_dir.foreign().unwrap();
        let learned = foreign.learned();
        learned.iter().filter(|digest| foreign.is_uncounted(digest)).count()
    };
    shared_of(&tier.disk).data_dir.set_read_only(true);
    tier.round(Fails::Nothing);
    assert!(tier.is_scanned());
    assert_eq!(is_uncounted(&tier), 1);
    shared_of(&tier.disk).restore_data_dir();
    tier.round(Fails::Nothing);
    assert_eq!(is_uncounted(&tier), 0);
}

/// A full ledger or a missed record asks for a scan at any time.
#[test]
fn a_scan_before_the_first_key_agrees_on_no_cap() {
    let dir = tempfile::tempdir().unwrap();
    write_chunks(dir.path(), 5);
    let _process = fake_process::enter(|_| Ok(()));
    let mut config = DiskConfig::new(dir.path(), 1 << 20);
    (config.layout, config.clock) = (FOREIGN[0].0, ManualClock::new().clock());
    let disk = Disk::open(config, Idle).unwrap();
    let shared = shared_of(&disk);
    shared.reconcile();
    assert!(!shared.may_evict() && !shared.data_dir.foreign().unwrap().is_scanned());
}
