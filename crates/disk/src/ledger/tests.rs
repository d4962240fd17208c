use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use super::file_contents::BYTES;
#[cfg(feature = "simulate")]
use super::validity::LedgerValidity;
use super::*;
#[cfg(feature = "simulate")]
use crate::fake_process;
#[cfg(feature = "simulate")]
use kvtier_os::simulated::Call;

use Claimed::{Damaged, Full, Granted, Unavailable};

fn two(dir: &Path, exact: bool) -> (Ledger, Ledger) {
    let a = Ledger::open(dir, exact).unwrap();
    let b = Ledger::open(dir, exact).unwrap();
    a.recount(true, || Ok(10)).unwrap();
    b.fold().unwrap();
    (a, b)
}

fn claim(ledger: &Ledger, bytes: u64) -> io::Result<Claimed> {
    ledger.claim(bytes, 100, &mut || true)
}

fn total(dir: &Path) -> u64 {
    Ledger::peek(dir).unwrap().unwrap()
}

fn release(ledger: &Ledger, bytes: u64) {
    ledger.release(bytes, ledger.generation()).unwrap();
}

#[test]
fn two_share_one_total() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = two(dir.path(), true);
    assert_eq!(b.recount(false, || panic!("it is whole")).unwrap(), None);
    assert_eq!(claim(&a, 50).unwrap(), Granted);
    assert_eq!(claim(&b, 50).unwrap(), Full);
    assert_eq!(claim(&b, 40).unwrap(), Granted);
    release(&a, 60);
    assert_eq!(claim(&b, 60).unwrap(), Granted);
    assert_eq!(total(dir.path()), 100);
    release(&a, 5);
    assert_eq!(b.claim(5, 100, &mut || false).unwrap(), Full, "its file cannot be made");
    assert_eq!(claim(&b, 5).unwrap(), Granted);
}

/// Cut, zeroed, torn, of another version, or not there.
#[test]
fn a_ledger_that_cannot_be_read_grants_nothing_until_it_is_recounted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ledger");
    let (a, b) = two(dir.path(), true);
    let whole = std::fs::read(&path).unwrap();
    let with = |at: usize, byte: u8| {
        let mut bytes = whole.clone();
        bytes[at] ^= byte;
        bytes
    };
    let old = [&b"KVTLEDG1"[..], &10_u64.to_le_bytes()].concat();
    let mut cases = vec![Vec::new(), vec![0; BYTES], whole[..20].to_vec(), old];
    cases.extend((0..28).map(|at| with(at, 0x40)));
    for case in cases {
        // In place: the tiers have it open.
        std::fs::OpenOptions::new()
            .write(true)
            .truncate(true)
            .open(&path)
            .unwrap()
            .write_all_at(&case, 0)
            .unwrap();
        assert_eq!(claim(&a, 1).unwrap(), Damaged, "{case:?}");
        assert!(is_damage(&a.fold().unwrap_err()));
        // What goes meanwhile went before the recount.
        release(&b, 30);
        assert_eq!(Ledger::peek(dir.path()).unwrap(), None);
        let done = a.recount(false, || Ok(70)).unwrap().unwrap();
        assert_eq!((done.before, done.after), (None, 70));
        b.fold().unwrap();
        assert_eq!(total(dir.path()), 70, "{case:?}");
        assert_eq!((claim(&a, 31).unwrap(), claim(&b, 30).unwrap()), (Full, Granted));
    }
}

#[test]
fn a_release_from_before_a_recount_is_dropped_and_that_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = two(dir.path(), true);
    // a deletes 4 bytes. Before it releases them, b counts what is left.
    let since = a.generation();
    b.recount(true, || Ok(6)).unwrap();
    a.release(4, since).unwrap();
    assert_eq!((total(dir.path()), a.may_be_high(), a.may_be_high()), (6, true, false));
    release(&a, 4);
    assert_eq!((total(dir.path()), a.may_be_high()), (2, false));
    // The same where the release waits for a later change, also together with one that counts.
    a.release_later(1, since);
    assert!(!a.may_be_high());
    a.release_later(1, a.generation());
    a.fold().unwrap();
    assert_eq!((total(dir.path()), a.may_be_high()), (1, true));
}

/// A process that has the lock may have to wait for the medium: that must not let others pass the
/// cap.
#[test]
fn a_lock_that_is_kept_for_a_moment_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = two(dir.path(), true);
    assert_eq!((claim(&a, 10).unwrap(), claim(&b, 60).unwrap()), (Granted, Granted));
    let busy = open_rw(&dir.path().join("ledger")).unwrap();
    busy.lock().unwrap();
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| claim(&a, 50).unwrap());
        std::thread::sleep(LOCK_WAIT_MAX / 40);
        busy.unlock().unwrap();
        assert_eq!(asked.join().unwrap(), Full, "by what b had counted");
    });
}

#[test]
fn while_a_lock_is_kept_bytes_are_exchanged_and_none_are_added() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = two(dir.path(), true);
    assert_eq!(claim(&a, 50).unwrap(), Granted);
    let stopped = open_rw(&dir.path().join("ledger")).unwrap();
    stopped.lock().unwrap();
    let began = Instant::now();
    let refused = claim(&a, 1).unwrap();
    assert_eq!(refused, Unavailable, "another process may have claimed the rest");
    assert!(a.may_exchange());
    release(&a, 20);
    assert_eq!(
        (claim(&a, 15).unwrap(), claim(&a, 6).unwrap(), claim(&a, 5).unwrap()),
        (Granted, Unavailable, Granted)
    );
    (0..100).for_each(|_| assert_eq!(claim(&a, 1).unwrap(), Unavailable));
    assert!(began.elapsed() < 20 * LOCK_WAIT_MAX, "not so long for each");
    assert_eq!(a.fold().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    assert_eq!(total(dir.path()), 60);
    release(&a, 7);
    stopped.unlock().unwrap();
    a.fold().unwrap();
    assert_eq!((total(dir.path()), claim(&b, 47).unwrap()), (53, Granted));
}

/// A file that another process keeps locked, and what can be read.
#[derive(Debug)]
struct Kept(Vec<u8>);

impl LockedFile for Kept {
    fn lock_within(&self, _: Duration) -> io::Result<()> {
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn unlock(&self) -> io::Result<()> {
        Ok(())
    }

    fn read(&self, bytes: &mut [u8]) -> io::Result<()> {
        bytes.copy_from_slice(&self.0);
        Ok(())
    }

    fn write(&self, _: &[u8]) -> io::Result<()> {
        panic!("it is not locked")
    }
}

#[test]
fn no_more_bytes_are_exchanged_than_went() {
    let dir = tempfile::tempdir().unwrap();
    let (a, _) = two(dir.path(), true);
    let whole = std::fs::read(dir.path().join("ledger")).unwrap();
    let kept = Ledger::with_file(Some(Kept(whole)), true);
    assert!(!kept.may_exchange(), "it saw another generation");
    kept.generation.store(a.generation().0, Ordering::Release);
    assert!(kept.may_exchange());
    let claim = |bytes| kept.claim(bytes, 100, &mut || true).unwrap();
    assert_eq!(claim(1), Unavailable);
    kept.release_later(20, kept.generation());
    assert_eq!(
        [claim(21), claim(15), claim(6), claim(5), claim(1)],
        [Unavailable, Granted, Unavailable, Granted, Unavailable]
    );
    let state = kept.state();
    assert_eq!((state.pending.added, state.pending.removed), (20, 20));
}

/// A file that cannot be locked, the kind of error, and how long it was waited for.
#[derive(Debug)]
struct Unlockable {
    kind: io::ErrorKind,
    waits: Mutex<Vec<Duration>>,
}

impl Unlockable {
    fn ledger(kind: io::ErrorKind) -> Ledger<Self> {
        Ledger::with_file(Some(Unlockable { kind, waits: Mutex::default() }), true)
    }
}

impl LockedFile for Unlockable {
    fn lock_within(&self, most: Duration) -> io::Result<()> {
        self.waits.lock().unwrap().push(most);
        Err(self.kind.into())
    }

    fn unlock(&self) -> io::Result<()> {
        Ok(())
    }

    fn read(&self, _: &mut [u8]) -> io::Result<()> {
        Err(io::ErrorKind::UnexpectedEof.into())
    }

    fn write(&self, _: &[u8]) -> io::Result<()> {
        panic!("it is not locked")
    }
}

/// Threads wait for each other at the ledger, and each save that is shed may want a recount.
#[test]
fn a_lock_that_is_kept_is_waited_for_once() {
    let ledger = Unlockable::ledger(io::ErrorKind::WouldBlock);
    assert!(!ledger.state().is_kept);
    let recount = || ledger.recount(true, || panic!("it is not locked")).unwrap_err().kind();
    assert_eq!((recount(), ledger.state().is_kept), (io::ErrorKind::WouldBlock, true));
    assert_eq!(
        (ledger.claim(1, 100, &mut || true).unwrap(), recount()),
        (Unavailable, io::ErrorKind::WouldBlock)
    );
    let waits = ledger.file().as_ref().unwrap().waits.lock().unwrap().clone();
    assert_eq!(waits, [REGISTRATION_WAIT_MAX, KEPT_WAIT_MAX, KEPT_WAIT_MAX]);
}

/// A medium that fails comes back: the next try waits for a process that holds the lock as long as
/// ever.
#[test]
fn an_error_of_the_lock_is_no_process_that_keeps_it() {
    let ledger = Unlockable::ledger(io::ErrorKind::Other);
    assert_eq!(claim_any(&ledger), io::ErrorKind::Other);
    assert!(!ledger.state().is_kept);
    assert_eq!(claim_any(&ledger), io::ErrorKind::Other);
    let waits = ledger.file().as_ref().unwrap().waits.lock().unwrap().clone();
    assert_eq!(waits, [LOCK_WAIT_MAX; 2]);
}

fn claim_any(ledger: &Ledger<Unlockable>) -> io::ErrorKind {
    ledger.claim(1, 100, &mut || true).unwrap_err().kind()
}

/// The recount may have read the staging directory of the process already, and does not see the
/// file that the process frees.
#[test]
fn while_another_process_recounts_no_bytes_are_exchanged() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = two(dir.path(), true);
    // It has waited for the lock for long.
    a.state().is_kept = true;
    let count = || {
        release(&a, 5);
        let mut made = 0;
        let mut make = || {
            made += 1;
            true
        };
        assert_eq!(a.claim(5, 100, &mut make).unwrap(), Unavailable);
        assert!(!a.may_exchange());
        assert_eq!(made, 1, "a file that the caller deletes");
        Ok(5)
    };
    b.recount(true, count).unwrap();
    a.fold().unwrap();
    assert_eq!((total(dir.path()), a.may_be_high()), (5, true), "the release is dropped");
}

/// A process that found the file damaged begins from nothing, and the clock may have gone back since
/// another one counted.
#[test]
fn no_two_recounts_begin_one_generation() {
    let later_than_the_clock = u64::MAX / 2;
    let begun = [(); 2].map(|()| next_generation(later_than_the_clock));
    assert!(begun[0] != begun[1], "{begun:?}");
    assert!(begun.iter().all(|generation| *generation > later_than_the_clock), "{begun:?}");
}

#[test]
fn a_recount_that_fails_counts_what_waits_once() {
    let dir = tempfile::tempdir().unwrap();
    let (a, _) = two(dir.path(), true);
    a.state().pending.added = 7;
    a.recount(true, || Err(io::ErrorKind::Other.into())).unwrap_err();
    a.fold().unwrap();
    assert_eq!(total(dir.path()), 17);
}

#[test]
fn a_ledger_that_fails_grants_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (a, _) = two(dir.path(), true);
    // A file that can be locked and not read.
    *a.file.write().unwrap() =
        Some(std::fs::OpenOptions::new().write(true).open(dir.path().join("ledger")).unwrap());
    assert!(claim(&a, 1).is_err());
    release_fails(&a);
    a.reopen(dir.path()).unwrap();
    a.fold().unwrap();
    assert_eq!(total(dir.path()), 9, "what was freed meanwhile is released then");
    assert_eq!(
        claim(&Ledger::detached(true), 1).unwrap_err().kind(),
        io::ErrorKind::ReadOnlyFilesystem
    );
}

/// The file for a claim was made a second time where the ledger could be read and not written, and
/// the first one stayed.
#[test]
fn one_file_is_made_for_a_claim_whose_change_fails() {
    let dir = tempfile::tempdir().unwrap();
    let (a, _) = two(dir.path(), true);
    *a.file.write().unwrap() = Some(File::open(dir.path().join("ledger")).unwrap());
    a.release_later(5, a.generation());
    let mut made = 0;
    let claimed = a.claim(5, 100, &mut || {
        made += 1;
        true
    });
    assert_eq!((claimed.unwrap(), made), (Granted, 1), "it takes what was freed");
    let claimed = a.claim(5, 100, &mut || {
        made += 1;
        true
    });
    assert!(claimed.is_err() && made == 2, "the caller deletes it");
}

/// A file whose next write arrives and fails, and which cannot be read after it or can.
#[derive(Debug)]
struct FailsOnce {
    file: File,
    fails: AtomicBool,
    is_readable: bool,
    has_failed: AtomicBool,
}

impl FailsOnce {
    fn ledger(dir: &Path, is_readable: bool, exact: bool) -> Ledger<Self> {
        let file = open_rw(&dir.join("ledger")).unwrap();
        let [fails, has_failed] = [(); 2].map(|()| AtomicBool::new(false));
        let ledger =
            Ledger::with_file(Some(FailsOnce { file, fails, is_readable, has_failed }), exact);
        ledger.fold().unwrap();
        Self::fail_next(&ledger);
        ledger
    }

    fn fail_next(ledger: &Ledger<Self>) {
        ledger.file().as_ref().unwrap().fails.store(true, Ordering::Relaxed);
    }
}

impl LockedFile for FailsOnce {
    fn lock_within(&self, _: Duration) -> io::Result<()> {
        Ok(())
    }

    fn unlock(&self) -> io::Result<()> {
        Ok(())
    }

    fn read(&self, bytes: &mut [u8]) -> io::Result<()> {
        let has_failed = self.has_failed.swap(false, Ordering::Relaxed);
        if has_failed && !self.is_readable {
            return Err(io::ErrorKind::Other.into());
        }
        self.file.read_exact_at(bytes, 0)
    }

    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, 0)?;
        let fails = self.fails.swap(false, Ordering::Relaxed);
        self.has_failed.store(fails, Ordering::Relaxed);
        if fails { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

/// A full medium tears writes anywhere, also behind the last byte that differs. What was released by
/// such a write was released again by the next.
#[test]
fn a_write_that_arrives_and_fails_releases_once() {
    let dir = tempfile::tempdir().unwrap();
    two(dir.path(), true);
    let ledger = FailsOnce::ledger(dir.path(), true, true);
    ledger.release(4, ledger.generation()).unwrap();
    assert_eq!((total(dir.path()), ledger.may_be_high()), (6, false));
    ledger.fold().unwrap();
    assert_eq!(total(dir.path()), 6);
    // And what it claims is granted.
    FailsOnce::fail_next(&ledger);
    assert_eq!(ledger.claim(90, 100, &mut || true).unwrap(), Granted);
    assert_eq!((total(dir.path()), ledger.may_be_high()), (96, false));
}

/// A cache of the client may answer the read.
#[test]
fn on_a_network_mount_no_read_shows_whether_a_write_arrived() {
    let dir = tempfile::tempdir().unwrap();
    two(dir.path(), true);
    let ledger = FailsOnce::ledger(dir.path(), true, false);
    ledger.release_later(4, ledger.generation());
    ledger.state().pending.added = 1;
    ledger.fold().unwrap_err();
    assert_eq!((total(dir.path()), ledger.may_be_high()), (7, true));
    ledger.fold().unwrap();
    assert_eq!(total(dir.path()), 8, "what was added may be lost, and is added again");
}

/// First the total with the new generation is written, then what was counted.
#[test]
fn a_recount_whose_write_perhaps_arrived_leaves_the_total_too_high_at_worst() {
    let recount = |damages: bool| {
        let dir = tempfile::tempdir().unwrap();
        two(dir.path(), true);
        let ledger = FailsOnce::ledger(dir.path(), false, true);
        if damages {
            std::fs::write(dir.path().join("ledger"), "damaged").unwrap();
        }
        ledger.state().pending.added = 7;
        ledger.recount(true, || Ok(17)).unwrap_err();
        ledger.fold().unwrap();
        (total(dir.path()), ledger.may_be_high())
    };
    assert_eq!(recount(false), (24, true), "seven may be counted twice, which is noticed");
    assert_eq!(recount(true), (17, false), "they were counted");
}

#[test]
fn what_a_write_perhaps_released_is_not_released_again_and_the_total_may_be_too_high() {
    let dir = tempfile::tempdir().unwrap();
    two(dir.path(), true);
    let ledger = FailsOnce::ledger(dir.path(), false, true);
    ledger.release(4, ledger.generation()).unwrap_err();
    assert_eq!((total(dir.path()), ledger.may_be_high()), (6, true));
    ledger.fold().unwrap();
    assert_eq!(total(dir.path()), 6);
    // Nor may such bytes be exchanged for a claim.
    let ledger = FailsOnce::ledger(dir.path(), false, true);
    ledger.release_later(2, ledger.generation());
    ledger.claim(1, 100, &mut || true).unwrap_err();
    assert!(ledger.may_be_high());
}

fn release_fails(ledger: &Ledger) {
    assert!(ledger.release(1, ledger.generation()).is_err());
}

#[test]
fn where_locks_are_slow_changes_wait_for_the_fold() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = two(dir.path(), false);
    assert_eq!((claim(&a, 60).unwrap(), claim(&a, 60).unwrap()), (Granted, Full));
    assert_eq!(claim(&b, 60).unwrap(), Granted, "b cannot know yet");
    a.fold().unwrap();
    b.fold().unwrap();
    assert_eq!(total(dir.path()), 130);
    assert_eq!(claim(&b, 1).unwrap(), Full);
    release(&b, 40);
    b.fold().unwrap();
    assert_eq!(total(dir.path()), 90);
    assert_eq!(claim(&a, 50).unwrap(), Full, "a does not know yet");
    a.fold().unwrap();
    assert_eq!(claim(&a, 10).unwrap(), Granted);
}

#[test]
fn what_is_found_gone_is_released_only_where_no_other_process_changed_the_total() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = two(dir.path(), true);
    let since = a.generation();
    assert!(a.release_found(4, since).unwrap());
    assert_eq!(claim(&a, 4).unwrap(), Granted);
    // B deletes as much as it writes, so that the total is the same again.
    release(&b, 4);
    assert_eq!(claim(&b, 4).unwrap(), Granted);
    a.fold().unwrap();
    assert!(!a.release_found(4, since).unwrap());
    assert_eq!(total(dir.path()), 10);
    // A recount matches again, one of another process does not.
    let since = a.recount(true, || Ok(10)).unwrap().unwrap().generation;
    assert!(a.release_found(1, since).unwrap());
    b.recount(true, || Ok(9)).unwrap();
    assert!(!a.release_found(1, since).unwrap() && !a.release_found(1, a.generation()).unwrap());
    assert_eq!(total(dir.path()), 9);
}

#[test]
fn a_change_waits_until_the_fold_whether_bytes_came_or_went() {
    let dir = tempfile::tempdir().unwrap();
    let (a, _) = two(dir.path(), false);
    for bytes_came in [true, false] {
        assert!(!a.has_pending());
        if bytes_came {
            a.add(5).unwrap()
        } else {
            release(&a, 5)
        }
        assert!(a.has_pending(), "came: {bytes_came}");
        a.fold().unwrap();
    }
    assert!(!a.has_pending());
}

#[test]
fn a_marked_ledger_grants_nothing_and_is_not_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ledger");
    mark_uncounted(dir.path()).unwrap();
    assert!(!path.exists() && !is_damaged(dir.path()), "there is none to mark");
    let (a, _) = two(dir.path(), true);
    let whole = std::fs::read(&path).unwrap();
    mark_uncounted(dir.path()).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), UNCOUNTED);
    assert_eq!(Ledger::peek(dir.path()).unwrap(), None);
    assert_eq!(claim(&a, 1).unwrap(), Damaged);
    assert_eq!(a.recount(false, || Ok(5)).unwrap().unwrap().after, 5);
    let is_damaged_by = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        is_damaged(dir.path())
    };
    assert_eq!([&[][..], &UNCOUNTED[..], &whole[..]].map(is_damaged_by), [false; 3]);
    assert_eq!([&b"KVTLEDG1"[..], &[0; BYTES][..], &whole[1..]].map(is_damaged_by), [true; 3]);
    // One that is damaged stays so.
    mark_uncounted(dir.path()).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), whole[1..]);
}

#[test]
fn a_ledger_that_cannot_be_looked_for_is_not_an_absent_one() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(Ledger::peek(&dir.path().join("absent")).unwrap(), None);
    std::fs::create_dir(dir.path().join("ledger")).unwrap();
    assert_eq!(Ledger::peek(dir.path()).unwrap(), None, "what else has its name is no ledger");
    std::fs::write(dir.path().join("file"), "").unwrap();
    for own in ["x".repeat(300), "file".into()] {
        Ledger::peek(&dir.path().join(own)).unwrap_err();
    }
}

#[cfg(feature = "simulate")]
#[test]
fn a_ledger_whose_lock_is_kept_is_not_marked_and_an_error_of_the_lock_is_answered() {
    let dir = tempfile::tempdir().unwrap();
    let (a, _) = two(dir.path(), true);
    let mark = |error: nix::Error| {
        let fails = move |call: Call<'_>| match call {
            Call::Lock(_) => Err(error),
            _ => Ok(()),
        };
        let _process = fake_process::enter(fails);
        mark_uncounted(dir.path())
    };
    mark(nix::Error::EWOULDBLOCK).unwrap();
    assert_eq!(mark(nix::Error::EIO).unwrap_err().raw_os_error(), Some(nix::Error::EIO as i32));
    assert_eq!((total(dir.path()), claim(&a, 1).unwrap()), (10, Granted));
}

#[cfg(feature = "simulate")]
#[test]
fn missing_chunks_are_counted_up_to_their_limit() {
    let validity = LedgerValidity::new(None, true);
    let key = |n: u32| kvtier_key::Digest::derive("test", &n.to_le_bytes());
    let noted = (0..).take_while(|n| validity.note_lost(&key(*n), Instant::now())).count();
    assert_eq!(validity.lost_chunks(), (noted, noted));
    validity.explained(&key(0));
    assert_eq!(validity.lost_chunks(), (noted - 1, noted));
    validity.clear();
    assert_eq!(validity.lost_chunks(), (0, noted));
}
