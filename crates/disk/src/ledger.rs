//! One number that all processes over a directory share: how many bytes lie there or are being written.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::home::{DOOR_WAIT_MAX, bookkeeping, lock_within, open_rw};

const MAGIC: [u8; 8] = *b"KVTLEDG1";
const BYTES: usize = 16;
/// How long a change waits for the lock before it is put off: then it is folded in later. Whoever has it may wait for a busy medium or for
/// a processor meanwhile; only who is frozen keeps it longer.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(5);
/// How long the next ones wait, until the lock was free once.
const KEPT_WAIT_MAX: Duration = Duration::from_millis(1);

/// The file `.kvtier/ledger`: magic, then the bytes in use as a little-endian u64. Changed under its lock; a process that is killed leaves
/// at most what it was writing counted, until the next start counts anew.
#[derive(Debug)]
pub struct Ledger {
    /// `None` while the directory has been read-only since it was opened: then nothing is counted.
    file: Mutex<Option<File>>,
    /// Fold every change into the file at once; otherwise when [`fold`](Ledger::fold) is called.
    exact: bool,
    /// Changes of ours that are not in the file yet.
    ours: AtomicI64,
    /// What the file said last.
    known: AtomicU64,
    /// Somebody kept the lock when we wanted it last.
    kept: AtomicBool,
}

impl Ledger {
    /// Opens the ledger. `exact` is for file systems where a lock costs microseconds; elsewhere changes wait for [`fold`](Ledger::fold).
    pub fn open(own: &Path, exact: bool) -> io::Result<Self> {
        let ledger = Ledger::detached(exact);
        ledger.reopen(own)?;
        Ok(ledger)
    }

    /// A ledger without a file, until [`reopen`](Ledger::reopen).
    pub fn detached(exact: bool) -> Self {
        let (ours, known, kept) = (AtomicI64::new(0), AtomicU64::new(0), AtomicBool::new(false));
        Ledger { file: Mutex::new(None), exact, ours, known, kept }
    }

    /// Counts `bytes` more, unless the total would then be over `cap`: then answers `false`.
    pub fn take(&self, bytes: u64, cap: u64) -> io::Result<bool> {
        if self.exact {
            match self.change(|total| total.checked_add(bytes).filter(|total| *total <= cap)) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                changed => return changed,
            }
        }
        let ours = self.ours.fetch_add(bytes.cast_signed(), Ordering::AcqRel) + bytes.cast_signed();
        let fits = self.known.load(Ordering::Acquire).saturating_add_signed(ours) <= cap;
        if !fits {
            self.ours.fetch_sub(bytes.cast_signed(), Ordering::AcqRel);
        }
        Ok(fits)
    }

    /// Counts `bytes` less.
    pub fn give(&self, bytes: u64) -> io::Result<()> {
        self.shift(-bytes.cast_signed())
    }

    /// Counts more or less, whatever the cap: what is counted lies there already.
    pub fn shift(&self, bytes: i64) -> io::Result<()> {
        if self.exact {
            match self.change(|total| Some(total.saturating_add_signed(bytes))) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                changed => return changed.map(drop),
            }
        }
        self.put_off(bytes);
        Ok(())
    }

    /// Counts more or less with the next change or [`fold`](Ledger::fold).
    pub fn put_off(&self, bytes: i64) {
        self.ours.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Whether a change waits.
    pub fn has_put_off(&self) -> bool {
        self.ours.load(Ordering::Acquire) != 0
    }

    /// Whether the file still has its name.
    pub fn is_linked(&self) -> bool {
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.as_ref().is_some_and(|file| file.metadata().is_ok_and(|meta| meta.nlink() > 0))
    }

    /// Brings changes that wait into the file, and learns those of others.
    pub fn fold(&self) -> io::Result<()> {
        self.change(Some).map(drop)
    }

    /// Goes on with the file that is there now: somebody deleted ours, or it could not be opened until now.
    pub fn reopen(&self, own: &Path) -> io::Result<()> {
        *self.file.lock().unwrap_or_else(PoisonError::into_inner) = Some(open_rw(&own.join("ledger"))?);
        Ok(())
    }

    /// Sets the total to what `count` finds, while nobody changes it. A ledger that nobody wrote or that is damaged is set too; otherwise
    /// only `if_whole`.
    pub fn recount(&self, if_whole: bool, count: impl FnOnce() -> io::Result<u64>) -> io::Result<()> {
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let file = file.as_ref().ok_or(io::ErrorKind::ReadOnlyFilesystem)?;
        lock_within(file, DOOR_WAIT_MAX)?;
        let set = read(file).and_then(|total| match total {
            Some(_) if !if_whole => Ok(()),
            _ => count().and_then(|total| {
                self.ours.store(0, Ordering::Release);
                self.write(file, total)
            }),
        });
        file.unlock()?;
        set
    }

    /// Sets the total to `right` if it still is `wrong`. Answers whether it was: else somebody has changed it since it was found wrong.
    pub fn correct(&self, wrong: Option<u64>, right: u64) -> io::Result<bool> {
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let file = file.as_ref().ok_or(io::ErrorKind::ReadOnlyFilesystem)?;
        lock_within(file, DOOR_WAIT_MAX)?;
        let set = read(file).and_then(|total| {
            if total != wrong {
                return Ok(false);
            }
            self.ours.store(0, Ordering::Release);
            self.write(file, right).map(|()| true)
        });
        file.unlock()?;
        set
    }

    /// What the ledger says, without opening it to write; `None` where there is none or it is damaged.
    pub fn peek(own: &Path) -> io::Result<Option<u64>> {
        match bookkeeping::open_to_read(&own.join("ledger")) {
            Err(e) if e.kind() == io::ErrorKind::NotFound || bookkeeping::is_no_file(&e) => Ok(None),
            file => read(&file?),
        }
    }

    /// Changes of ours that wait go first. `WouldBlock` when somebody keeps the lock.
    fn change(&self, change: impl FnOnce(u64) -> Option<u64>) -> io::Result<bool> {
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let file = file.as_ref().ok_or(io::ErrorKind::ReadOnlyFilesystem)?;
        let most = if self.kept.load(Ordering::Relaxed) { KEPT_WAIT_MAX } else { LOCK_WAIT_MAX };
        let locked = lock_within(file, most);
        self.kept.store(locked.is_err(), Ordering::Relaxed);
        locked?;
        let ours = self.ours.swap(0, Ordering::AcqRel);
        let changed = read(file).and_then(|total| {
            let total = total.unwrap_or(0).saturating_add_signed(ours);
            match change(total) {
                Some(changed) => self.write(file, changed).map(|()| true),
                // Refused: only what waited is news.
                None if ours != 0 => self.write(file, total).map(|()| false),
                None => {
                    self.known.store(total, Ordering::Release);
                    Ok(false)
                }
            }
        });
        if changed.is_err() {
            self.ours.fetch_add(ours, Ordering::AcqRel);
        }
        file.unlock()?;
        changed
    }

    fn write(&self, file: &File, total: u64) -> io::Result<()> {
        let mut bytes = [0; BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..].copy_from_slice(&total.to_le_bytes());
        self.known.store(total, Ordering::Release);
        file.write_all_at(&bytes, 0)
    }
}

/// The total; `None` for a ledger that was never written or is damaged.
fn read(file: &File) -> io::Result<Option<u64>> {
    let mut bytes = [0; BYTES];
    match file.read_exact_at(&mut bytes, 0) {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let (magic, total) = bytes.split_at(8);
    Ok(total.try_into().ok().filter(|_| magic == MAGIC).map(u64::from_le_bytes))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn total(ledger: &Ledger) -> u64 {
        read(ledger.file.lock().unwrap().as_ref().unwrap()).unwrap().unwrap()
    }

    #[test]
    fn two_share_one_total_and_a_damaged_one_is_counted_anew() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (Ledger::open(dir.path(), true).unwrap(), Ledger::open(dir.path(), true).unwrap());
        a.recount(false, || Ok(10)).unwrap();
        b.recount(false, || panic!("it is whole")).unwrap();
        assert!(a.take(50, 100).unwrap());
        assert!(!b.take(50, 100).unwrap());
        assert!(b.take(40, 100).unwrap());
        a.give(60).unwrap();
        assert!(b.take(60, 100).unwrap());
        assert_eq!(total(&b), 100);
        std::fs::write(dir.path().join("ledger"), "junk that is long enough").unwrap();
        b.recount(false, || Ok(70)).unwrap();
        assert!(!a.take(31, 100).unwrap());
    }

    #[test]
    fn what_was_found_wrong_is_corrected_unless_somebody_changed_it_since() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (Ledger::open(dir.path(), true).unwrap(), Ledger::open(dir.path(), true).unwrap());
        a.recount(true, || Ok(50)).unwrap();
        assert!(b.take(10, 100).unwrap());
        assert!(!a.correct(Some(50), 20).unwrap() && a.correct(Some(60), 20).unwrap());
        assert_eq!(Ledger::peek(dir.path()).unwrap(), Some(20));
    }

    /// Who has the lock may have to wait for the medium: that must not let others pass the cap.
    #[test]
    fn who_keeps_the_lock_for_a_moment_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (Ledger::open(dir.path(), true).unwrap(), Ledger::open(dir.path(), true).unwrap());
        a.recount(true, || Ok(10)).unwrap();
        assert!(a.take(10, 100).unwrap() && b.take(60, 100).unwrap());
        let busy = open_rw(&dir.path().join("ledger")).unwrap();
        busy.lock().unwrap();
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| a.take(50, 100).unwrap());
            std::thread::sleep(LOCK_WAIT_MAX / 40);
            busy.unlock().unwrap();
            assert!(!asked.join().unwrap(), "by what b had counted");
        });
    }

    #[test]
    fn who_keeps_the_lock_stops_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (Ledger::open(dir.path(), true).unwrap(), Ledger::open(dir.path(), true).unwrap());
        a.recount(true, || Ok(10)).unwrap();
        assert!(a.take(10, 100).unwrap());
        let frozen = open_rw(&dir.path().join("ledger")).unwrap();
        frozen.lock().unwrap();
        let began = Instant::now();
        assert!(a.take(50, 100).unwrap() && !a.take(50, 100).unwrap(), "by what it knew last");
        a.give(20).unwrap();
        (0..100).for_each(|_| assert!(!a.take(90, 100).unwrap()));
        assert!(began.elapsed() < 20 * LOCK_WAIT_MAX, "not so long for each");
        assert_eq!(a.fold().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        frozen.unlock().unwrap();
        assert!(!b.take(81, 100).unwrap(), "b cannot know more than the file says");
        a.fold().unwrap();
        assert_eq!(total(&b), 50);
        assert!(!b.take(51, 100).unwrap() && b.take(50, 100).unwrap());
    }

    #[test]
    fn where_locks_are_slow_changes_wait_for_the_fold() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (Ledger::open(dir.path(), false).unwrap(), Ledger::open(dir.path(), false).unwrap());
        a.recount(true, || Ok(0)).unwrap();
        assert!(a.take(60, 100).unwrap() && !a.take(60, 100).unwrap());
        assert!(b.take(60, 100).unwrap(), "b cannot know yet");
        a.fold().unwrap();
        b.fold().unwrap();
        assert_eq!(total(&a), 120);
        assert!(!b.take(1, 100).unwrap());
        b.give(30).unwrap();
        b.fold().unwrap();
        assert_eq!(total(&a), 90);
        assert!(!a.take(50, 100).unwrap(), "a does not know yet");
        a.fold().unwrap();
        assert!(a.take(10, 100).unwrap());
    }
}
