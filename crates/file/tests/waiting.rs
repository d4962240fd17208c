//! Saves that wait for space and ops that wait for the tier's own memory occupy no thread: other
//! operations are answered in time.
#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kvtier_core::mem::{Arena, ArenaConfig};
use kvtier_core::{
    Clock, Ctx, ErrorKind, Hold, Load, Loaded, ManualClock, Mode, Presence, Save, Saved, ShedReason,
};
use kvtier_file::{FileConfig, FileTier};
use kvtier_testkit::conformance::Fixture;

use common::{files_bytes, ledger, set_ledger};

const LEN: usize = 64 << 10;
const CAP: u64 = 100 * (LEN as u64 + 4096);

/// More time than any test here takes.
fn long() -> Ctx {
    Ctx::within(Duration::from_secs(300))
}

/// Another process that fills the cap, so that no chunk of ours can be evicted.
struct Peer<'a> {
    dir: &'a Path,
    staging: PathBuf,
    _alive: fs::File,
}

impl<'a> Peer<'a> {
    fn writes(dir: &'a Path) -> Self {
        let staging = dir.join(".kvtier/tmp/elsewhere.1.1.0");
        fs::create_dir(&staging).unwrap();
        let alive = fs::File::create(staging.join("alive")).unwrap();
        alive.lock().unwrap();
        fs::File::create(staging.join("0")).unwrap().set_len(CAP).unwrap();
        set_ledger(dir, CAP);
        Peer { dir, staging, _alive: alive }
    }

    /// Gives up what it wrote.
    fn frees(&self) {
        fs::remove_file(self.staging.join("0")).unwrap();
        set_ledger(self.dir, 0);
    }
}

/// A tier whose saves wait for space longer than the machine may stand still.
fn patient(dir: &Path) -> Fixture {
    patient_on(&Clock::real(), dir)
}

fn patient_on(clock: &Clock, dir: &Path) -> Fixture {
    let config = FileConfig::new(dir, CAP)
        .with_space_wait(Duration::from_secs(300))
        .with_clock(clock.clone());
    Fixture::new(FileTier::open(config).unwrap())
}

#[test]
fn other_saves_are_answered_at_once_while_some_wait_for_space() {
    let dir = tempfile::tempdir().unwrap();
    let f = patient(dir.path());
    let peer = Peer::writes(dir.path());
    let saves = f.tier.save(&long(), (0..64).map(|n| f.save_op(&f.key(n), LEN)).collect());
    std::thread::sleep(Duration::from_millis(100));
    let keys: Arc<[_]> = (100..116).map(|n| f.key(n)).collect();
    let found = f.tier.lookup(&f.ctx(), Arc::clone(&keys), Mode::Each, Hold::None).wait().unwrap();
    assert!(found.found.iter().all(|p| *p == Presence::Miss));
    assert_eq!(f.tier.remove(&f.ctx(), keys).wait().unwrap().absent, 16);
    assert_eq!(f.load(&f.key(100), LEN), Loaded::Miss(kvtier_core::MissReason::Absent));
    assert!(!saves.is_done(), "no space was free");
    peer.frees();
    assert!(saves.wait().iter().all(|done| *done.result.as_ref().unwrap() == Saved::Stored));
}

/// A peer stood still for so long that its reservation was released as stale; then it writes all
/// the same.
#[test]
fn what_was_counted_in_vain_for_long_is_counted_once_it_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let f = Fixture::new(FileTier::open(FileConfig::new(dir.path(), CAP)).unwrap());
    let peer = Peer::writes(dir.path());
    fs::remove_file(peer.staging.join("0")).unwrap();
    assert_eq!(f.save(&f.key(1), LEN), Saved::Stored);
    fs::File::create(peer.staging.join("0")).unwrap().set_len(CAP / 2).unwrap();
    let on_disk = || files_bytes(dir.path()) + CAP / 2;
    f.eventually("it is counted", || ledger(dir.path()) == on_disk());
}

#[test]
fn a_ledger_that_counts_bytes_never_written_is_corrected_after_a_while() {
    let dir = tempfile::tempdir().unwrap();
    let f = Fixture::new(FileTier::open(FileConfig::new(dir.path(), CAP)).unwrap());
    set_ledger(dir.path(), CAP);
    let saves = f.tier.save(&f.ctx(), (0..64).map(|n| f.save_op(&f.key(n), LEN)).collect()).wait();
    assert!(saves.iter().all(|done| *done.result.as_ref().unwrap() == Saved::Stored));
}

#[test]
fn several_that_find_the_ledger_wrong_at_once_all_get_space_and_all_is_counted() {
    for _ in 0..3 {
        let dir = tempfile::tempdir().unwrap();
        let open = || Fixture::new(FileTier::open(FileConfig::new(dir.path(), CAP)).unwrap());
        let both = [open(), open()];
        set_ledger(dir.path(), CAP);
        let save = |(n, f): (u64, &Fixture)| f.tier.save(&f.ctx(), vec![f.save_op(&f.key(n), LEN)]);
        let saves: Vec<_> = (0..).zip(&both).map(save).collect();
        for save in saves {
            assert_eq!(*save.wait()[0].result.as_ref().unwrap(), Saved::Stored);
        }
        let ledger = fs::read(dir.path().join(".kvtier/ledger")).unwrap();
        assert_eq!(ledger[8..16], (2 * CAP / 100).to_le_bytes());
    }
}

#[test]
fn saves_that_wait_for_space_end_at_their_deadline_and_get_what_is_freed() {
    let dir = tempfile::tempdir().unwrap();
    let time = ManualClock::new();
    let f = patient_on(&time.clock(), dir.path());
    let peer = Peer::writes(dir.path());
    let minute = Duration::from_secs(60);
    let late = f.tier.save(&Ctx::within_on(&time.clock(), minute), vec![f.save_op(&f.key(1), LEN)]);
    time.advance(minute - Duration::from_millis(1));
    assert!(!late.is_done());
    time.advance(Duration::from_millis(1));
    assert!(late.is_done());
    assert_eq!(late.wait()[0].result.as_ref().unwrap_err().kind(), ErrorKind::Timeout);
    let save = f.tier.save(&Ctx::within_on(&time.clock(), minute), vec![f.save_op(&f.key(2), LEN)]);
    (0..50).for_each(|_| time.advance(Duration::from_millis(100)));
    assert!(!save.is_done());
    peer.frees();
    // A waiting save tries again every now and then, and by its deadline at the latest.
    f.eventually("it gets what is freed", || {
        time.advance(Duration::from_millis(1));
        save.is_done()
    });
    assert_eq!(*save.wait()[0].result.as_ref().unwrap(), Saved::Stored);
}

/// A process is stopped with the ledger's lock, and this one has nothing to evict.
#[test]
fn saves_do_not_wait_for_a_ledger_that_a_stopped_process_keeps() {
    let dir = tempfile::tempdir().unwrap();
    let time = ManualClock::new();
    let f = patient_on(&time.clock(), dir.path());
    let stopped = fs::File::open(dir.path().join(".kvtier/ledger")).unwrap();
    stopped.lock().unwrap();
    for n in 0..3 {
        let hour = Ctx::within_on(&time.clock(), Duration::from_secs(3600));
        let save = f.tier.save(&hour, vec![f.save_op(&f.key(n), LEN)]);
        // The clock stands still: a save that waited for its end would never end.
        f.eventually("the save is answered", || save.is_done());
        assert_eq!(*save.wait()[0].result.as_ref().unwrap(), Saved::Shed(ShedReason::Full));
    }
    stopped.unlock().unwrap();
    assert_eq!(f.save(&f.key(9), LEN), Saved::Stored, "nothing of it lasts");
}

#[test]
fn a_tier_that_ends_answers_saves_that_wait_for_space() {
    let dir = tempfile::tempdir().unwrap();
    let f = patient(dir.path());
    let _peer = Peer::writes(dir.path());
    let saves = f.tier.save(&long(), (0..8).map(|n| f.save_op(&f.key(n), LEN)).collect());
    std::thread::sleep(Duration::from_millis(50));
    drop(f);
    assert!(
        saves
            .wait()
            .iter()
            .all(|done| done.result.as_ref().unwrap_err().kind() == ErrorKind::Closed)
    );
}

#[test]
fn ops_wait_for_bounce_memory_and_get_it_in_turn() {
    let dir = tempfile::tempdir().unwrap();
    let config = FileConfig::new(dir.path(), CAP).with_bounce(2 * LEN);
    let f = Fixture::new(FileTier::open(config).unwrap());
    let arena = Arena::new(ArenaConfig::heap(64 * (LEN + 4096))).unwrap();
    let odd = |bytes: Option<Vec<u8>>| {
        let mut lease = arena.lease(LEN + 1).unwrap().split_at(1).1;
        if let Some(bytes) = bytes {
            lease.write_at(0, &bytes).unwrap();
        }
        lease
    };
    let saves = (0..32)
        .map(|n| Save { key: f.key(n), from: vec![odd(Some(vec![n as u8; LEN])).freeze()] })
        .collect();
    let saved = f.tier.save(&f.ctx(), saves).wait();
    assert!(saved.iter().all(|done| *done.result.as_ref().unwrap() == Saved::Stored));
    drop(saved);
    let loads = (0..32).map(|n| Load { key: f.key(n), into: vec![odd(None)] }).collect();
    for (n, done) in f.tier.load(&f.ctx(), loads).wait().into_iter().enumerate() {
        assert_eq!(done.result.unwrap(), Loaded::Hit { len: LEN as u64 });
        assert!(done.op.into[0].as_host().unwrap().iter().all(|byte| *byte == n as u8));
    }
}

#[test]
fn what_no_bounce_memory_could_hold_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let f =
        Fixture::new(FileTier::open(FileConfig::new(dir.path(), CAP).with_bounce(LEN)).unwrap());
    let arena = Arena::new(ArenaConfig::heap(1 << 20)).unwrap();
    let key = f.key(1);
    let mut odd = arena.lease(2 * LEN + 1).unwrap().split_at(1).1;
    odd.write_at(0, &vec![1; 2 * LEN]).unwrap();
    let saved =
        f.tier.save(&f.ctx(), vec![Save { key: key.clone(), from: vec![odd.freeze()] }]).wait();
    let error = saved[0].result.as_ref().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("bounce"), "{error}");
    drop(saved);
    assert_eq!(f.save(&key, 2 * LEN), Saved::Stored);
    let odd = arena.lease(2 * LEN + 1).unwrap().split_at(1).1;
    let loaded = f.tier.load(&f.ctx(), vec![Load { key, into: vec![odd] }]).wait();
    assert_eq!(loaded[0].result.as_ref().unwrap_err().kind(), ErrorKind::Invalid);
}
