//! One total that all processes over a directory share: the bytes that are stored or about to be
//! written. It enforces the cap.
//!
//! The invariant: **the total is never less than the bytes on the medium**, whatever process is
//! stopped or killed at whatever moment. As a total above the cap is never granted, the bytes stay
//! below it. The invariant holds because:
//!
//! 1. *Bytes grow only by a claim.* Under the ledger's lock, if they fit below the cap, a process
//!    makes an empty unfinished file in its own staging directory, whose name states the bytes that
//!    it is for, and adds them to the total. Only then it allocates or writes. So each claim is a
//!    file as well as a number. A process that is stopped keeps its claims, however long, because
//!    it keeps its files.
//! 2. *The total shrinks after the bytes do.* A file is unlinked or cut first and released second.
//!    A process that dies between the two leaves the total too high.
//! 3. *Renames change nothing.* A file that is published, replaced or taken over for another chunk
//!    keeps its bytes counted. A chunk's file that is taken over while another process counts is
//!    deleted instead (rule 5).
//! 4. *A death releases what it proves.* Liveness is the kernel's lock on the staging directory's
//!    `alive`. Unfinished files of a dead process that have a length were granted: they are
//!    unlinked, then released. A claim that it had no time to allocate is released by a recount.
//! 5. *A recount counts too much rather than too little.* It holds the lock, so that no claim is
//!    granted meanwhile, and counts each unfinished file by the larger of its stated and its real
//!    length, then each file with a name, then the quarantine. A file that is renamed while the
//!    directory is read is counted where it is seen first; what a pass misses because it moved
//!    behind the reader is found by the next, until a pass finds nothing new. A file could move behind
//!    the reader in each pass if it was taken over again and again. So who took one over looks
//!    at the ledger before anything else: if a recount has begun, the file is deleted. One pass is enough
//!    for a process that was alone before and after it, and to which none came meanwhile
//!    (`data_dir/usage_scan.rs`). Threads of the own process stand still meanwhile
//!    (`ledger/recount.rs`).
//! 6. *A release from before a recount does not count.* Each recount begins a generation, which it
//!    writes into the ledger before it counts the first file. A process notes the generation that
//!    it saw last before it unlinks; if the ledger has another when it releases, the recount may
//!    have missed the file already, and the release is dropped. That leaves the total too high at
//!    worst, which is noticed (`may_be_high`), and recounted; in a foreign layout by the next scan.
//! 7. *A file found gone is released once.* The process that deleted it releases it. A process
//!    alone in the directory may do so for a process that died between the two, and only if no
//!    other process has changed the total since the recount that matched its index (each change has
//!    a number), and no process that died has left unfinished files: the file may be one of them.
//! 8. *What cannot be read is not zero.* A ledger that is missing, cut, zeroed, torn or of another
//!    version fails its checksum: nothing is granted before it is recounted. An error of the file,
//!    or a lock that another process keeps, grants nothing either, except bytes that this process
//!    itself freed since and has not released: that exchange leaves the total right. Its unfinished
//!    file is made first, and then the generation must still be the one in which the bytes were
//!    freed: otherwise the process that keeps the lock may have counted without either file.
//!    A write that fails may have arrived all the same: the file is read after it. Where that fails
//!    too, and on network mounts, releases of this change are dropped, as in rule 6. What it added may
//!    be counted twice.
//! 9. *A total from before is not relied on.* A crash of the machine may bring back that of an earlier
//!    moment. A tier that registers and finds no other [marks](mark_uncounted) the ledger first:
//!    nothing is granted before it or another one has counted. Otherwise, of processes that start
//!    together, each would find another one and none would count. In a foreign layout the total
//!    stands until the first scan.
//!
//! A model test (`shuttle_tests.rs`) runs the first eight rules against processes that are stopped and killed
//! between any two of their steps.
//!
//! So errors are one-sided: too high a total costs space until the next recount, too low a one does
//! not occur. What other programs write into the directory is not claimed; it is counted by the
//! next recount. On a file system where a lock is a message to a server the total is exchanged now
//! and then instead of at each claim, and the cap holds up to what is written in between.

mod file_contents;
mod locked_file;
mod pending_changes;
mod quarantine_bytes;
mod recount;
pub mod validity;

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

pub use self::file_contents::LedgerState;
use self::file_contents::{LedgerContents, UNCOUNTED, next_generation, read, write};
use self::locked_file::LockedFile;
use self::pending_changes::PendingChanges;
use crate::data_dir::{REGISTRATION_WAIT_MAX, internal_files, open_rw};

/// How long a change waits for the lock before it is put off. A process that has it may wait for a
/// busy medium or for a processor; only one that is stopped keeps it longer.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(5);
/// How long the next changes and recounts wait, until the lock was free once.
const KEPT_WAIT_MAX: Duration = Duration::from_millis(1);

/// The file `.kvtier/ledger`, see the [module](self).
#[derive(Debug)]
pub struct Ledger<S = File> {
    state: Mutex<State>,
    /// `None` while the directory has been read-only since it was opened: then nothing is granted.
    file: RwLock<Option<S>>,
    /// Change the file at once; otherwise when [`fold`](Ledger::fold) is called.
    exact: bool,
    /// The generation that the file had last.
    generation: AtomicU64,
    /// A release was dropped, or bytes were added twice perhaps, since this was asked last.
    may_be_high: AtomicBool,
}

#[derive(Debug)]
struct State {
    pending: PendingChanges,
    /// The total that the file had last.
    known: u64,
    /// The number of the change that the file had last; `None` before it was read.
    changes: Option<u32>,
    /// Another process changed the total since the last recount of this one.
    is_shared: bool,
    /// Another process kept the lock at the last try.
    is_kept: bool,
}

/// A period between two recounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation(u64);

/// What became of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// The bytes are counted.
    Granted,
    /// They do not fit below the cap.
    Full,
    /// The ledger must be recounted first.
    Damaged,
    /// The ledger cannot be changed now: another process keeps its lock, or its file fails. Bytes
    /// can be [exchanged](Ledger::may_exchange) at most.
    Unavailable,
}

/// What a recount found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recounted {
    /// The total before; `None` for a damaged ledger.
    pub before: Option<u64>,
    /// The total now.
    pub after: u64,
    /// The generation that began.
    pub generation: Generation,
}

/// What a change finds, with those that waited.
struct LedgerTotals {
    total: u64,
    generation: u64,
    /// Another process changed the total since the last recount of this one.
    is_shared: bool,
}

impl Ledger<File> {
    /// Opens the ledger. `exact` is for file systems where a lock costs microseconds; elsewhere
    /// changes wait for [`fold`](Ledger::fold).
    pub fn open(own: &Path, exact: bool) -> io::Result<Self> {
        let ledger = Ledger::detached(exact);
        ledger.reopen(own)?;
        Ok(ledger)
    }

    /// A ledger without a file, until [`reopen`](Ledger::reopen).
    pub fn detached(exact: bool) -> Self {
        Ledger::with_file(None, exact)
    }

    /// Whether the file still has its name.
    pub fn is_linked(&self) -> bool {
        let file = self.file();
        file.as_ref().is_some_and(|file| file.metadata().is_ok_and(|meta| meta.nlink() > 0))
    }

    /// Goes on with the file that is there now: ours was deleted or failed, or it could not be
    /// opened until now.
    pub fn reopen(&self, own: &Path) -> io::Result<()> {
        let file = open_rw(&own.join("ledger"))?;
        *self.file.write().unwrap_or_else(PoisonError::into_inner) = Some(file);
        Ok(())
    }

    /// What the ledger says, without opening it to write; `None` where there is none or it is
    /// damaged.
    pub fn peek(own: &Path) -> io::Result<Option<u64>> {
        Ok(LedgerState::read(own)?.total())
    }
}

impl<S: LockedFile> Ledger<S> {
    fn with_file(file: Option<S>, exact: bool) -> Self {
        let state = State {
            pending: PendingChanges::default(),
            known: 0,
            changes: None,
            is_shared: false,
            is_kept: false,
        };
        let generation = AtomicU64::new(0);
        let may_be_high = AtomicBool::new(false);
        Ledger { state: Mutex::new(state), file: RwLock::new(file), exact, generation, may_be_high }
    }

    /// The generation that the ledger had last: to be asked before files are unlinked, cut or
    /// renamed for which bytes are released afterwards.
    pub fn generation(&self) -> Generation {
        Generation(self.generation.load(Ordering::Acquire))
    }

    /// Counts `bytes` more, unless the total would then be over `cap`, or `make`, which makes the
    /// unfinished file for them, answers `false`.
    ///
    /// # Errors
    /// What the file system answers; then nothing is granted, and the total may be too high.
    pub fn claim(
        &self,
        bytes: u64,
        cap: u64,
        make: &mut dyn FnMut() -> bool,
    ) -> io::Result<Claimed> {
        let mut state = self.state();
        let fit = |total: u64| total.checked_add(bytes).filter(|total| *total <= cap);
        if !self.exact {
            // Without the lock, by the last known total. The cap then holds up to what peers write
            // until the next exchange.
            let granted = fit(state.expected()).is_some() && make();
            state.pending.added += if granted { bytes } else { 0 };
            return Ok(if granted { Claimed::Granted } else { Claimed::Full });
        }
        // The file is made under the lock and before the total is written. A death between the two
        // leaves a file without a claim, which the next recount counts; the other order would leave
        // a claim without a file.
        // Once: a file that was made for a change that failed is that of the exchange.
        let mut is_made = false;
        let mut make = || {
            is_made = is_made || make();
            is_made
        };
        match self.change(&mut state, |found| fit(found.total).filter(|_| make())) {
            Ok(true) => Ok(Claimed::Granted),
            Ok(false) => Ok(Claimed::Full),
            Err(e) if is_damage(&e) => Ok(Claimed::Damaged),
            // The file first: a recount that begins after the look sees it. Before it, none has begun since
            // the bytes were freed.
            Err(_)
                if state.has_freed(bytes)
                    && make()
                    && self.has_generation(state.pending.generation) =>
            {
                state.pending.added += bytes;
                Ok(Claimed::Granted)
            }
            // A stopped process holds the lock. The save is shed instead of blocked.
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(Claimed::Unavailable),
            Err(e) => Err(e),
        }
    }

    /// Counts `bytes` less that went after `since` was asked.
    pub fn release(&self, bytes: u64, since: Generation) -> io::Result<()> {
        self.release_later(bytes, since);
        self.put_off(if self.exact { self.fold() } else { Ok(()) })
    }

    /// The same with the next change.
    pub fn release_later(&self, bytes: u64, since: Generation) {
        if self.state().pending.remove(bytes, since.0) {
            self.may_be_high.store(true, Ordering::Release);
        }
    }

    /// Counts `bytes` less that this process found gone, if no other process has changed the total
    /// since the recount of this one that began the generation `since`. Answers whether it did:
    /// otherwise the process that deleted the file may have released them.
    pub fn release_found(&self, bytes: u64, since: Generation) -> io::Result<bool> {
        // Any change of a peer since then may be the release of this very file. Released twice, the
        // total would be too low.
        let own = |found: &LedgerTotals| !found.is_shared && found.generation == since.0;
        self.change(&mut self.state(), |found| {
            own(found).then(|| found.total.saturating_sub(bytes))
        })
    }

    /// Counts more, whatever the cap: the bytes are stored already.
    pub fn add(&self, bytes: u64) -> io::Result<()> {
        self.state().pending.added += bytes;
        self.put_off(if self.exact { self.fold() } else { Ok(()) })
    }

    /// Whether a change waits.
    pub fn has_pending(&self) -> bool {
        let state = self.state();
        state.pending.added > 0 || state.pending.removed > 0
    }

    /// Brings changes that wait into the file, and reads those of others.
    ///
    /// # Errors
    /// `InvalidData` for a ledger that must be recounted, `WouldBlock` while another process keeps
    /// the lock; else what the file system answers.
    pub fn fold(&self) -> io::Result<()> {
        self.change(&mut self.state(), |found| Some(found.total)).map(drop)
    }

    /// Sets the total to what `count` finds, while no process changes it: in any case, or else only
    /// where the ledger was never written or is damaged. `None` where it was neither.
    pub fn recount(
        &self,
        always: bool,
        count: impl FnOnce() -> io::Result<u64>,
    ) -> io::Result<Option<Recounted>> {
        let mut state = self.state();
        let state = &mut *state;
        let file = self.file();
        let file = file.as_ref().ok_or(io::ErrorKind::ReadOnlyFilesystem)?;
        lock(file, &mut state.is_kept, REGISTRATION_WAIT_MAX)?;
        let done = read(file).and_then(|contents| {
            if contents.is_some() && !always {
                return Ok(None);
            }
            let seen = contents
                .map_or(0, |contents| contents.generation)
                .max(self.generation.load(Ordering::Acquire));
            let mut next =
                LedgerContents { total: 0, generation: next_generation(seen), changes: 0 };
            // The new generation is written before the first file is counted. From here on every
            // release that was noted in the old one is dropped, since the count may have missed its
            // file already.
            if let Some(contents) = contents {
                // Others see that it has begun: an exchange from before does not count.
                next.total = state.pending.applied(contents).0;
                write(file, next, self.exact)
                    .inspect_err(|failed| self.note_perhaps_high(failed.may_have_arrived))?;
                state.pending = PendingChanges::default();
            }
            // An error leaves the total before the recount with the new generation: too high at
            // worst.
            next.total = count()?;
            // All pending bytes are stored, and were counted, also where the write fails: then the file has
            // the total of the first one, or the new one, or must be recounted still.
            state.pending = PendingChanges::default();
            write(file, next, self.exact)?;
            let total = next.total;
            state.is_shared = false;
            (state.known, state.changes) = (next.total, Some(next.changes));
            self.generation.store(next.generation, Ordering::Release);
            let before = contents.map(|contents| contents.total);
            Ok(Some(Recounted { before, after: total, generation: Generation(next.generation) }))
        });
        file.unlock()?;
        done
    }

    /// Whether bytes that this process frees now could be claimed by it while the ledger is
    /// unavailable: the file can be read, and no recount has begun that this process has not seen. Otherwise to evict would free nothing for it.
    pub fn may_exchange(&self) -> bool {
        self.is_still(self.generation())
    }

    /// Whether bytes that are freed now will be released. A peer may have counted since this process read
    /// the total: it is read then. While a peer counts, or where the file fails, they will not. A
    /// damaged ledger is counted again in any case.
    pub fn may_release(&self) -> bool {
        self.may_exchange() || self.fold().map_or_else(|e| is_damage(&e), |()| true)
    }

    /// Whether no recount has begun since `since` was asked. The file can be read while another process
    /// keeps the lock. `false` where it cannot be read.
    pub fn is_still(&self, since: Generation) -> bool {
        self.has_generation(since.0)
    }

    fn has_generation(&self, generation: u64) -> bool {
        let contents = self.file().as_ref().map(read);
        matches!(contents, Some(Ok(Some(now))) if now.generation == generation)
    }

    /// Whether a release was dropped, or bytes were added twice perhaps, since this was asked last, so that
    /// the total may be too high.
    pub fn may_be_high(&self) -> bool {
        self.may_be_high.swap(false, Ordering::AcqRel)
    }

    /// As after a try that found the lock kept: the next one is short.
    #[cfg(test)]
    pub fn note_kept(&self) {
        self.state().is_kept = true;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn file(&self) -> RwLockReadGuard<'_, Option<S>> {
        self.file.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes that wait go first. Answers whether `change` was made.
    fn change(
        &self,
        state: &mut State,
        change: impl FnOnce(&LedgerTotals) -> Option<u64>,
    ) -> io::Result<bool> {
        let file = self.file();
        let file = file.as_ref().ok_or(io::ErrorKind::ReadOnlyFilesystem)?;
        lock(file, &mut state.is_kept, LOCK_WAIT_MAX)?;
        let changed = read(file).and_then(|contents| {
            let contents = contents.ok_or_else(damage)?;
            // A recount of another process begins at 0 again.
            let is_own = state.changes == Some(contents.changes)
                && self.generation().0 == contents.generation;
            state.is_shared |= !is_own;
            let (total, is_stale) = state.pending.applied(contents);
            let wanted = change(&LedgerTotals {
                total,
                generation: contents.generation,
                is_shared: state.is_shared,
            });
            let mut next = LedgerContents { total: wanted.unwrap_or(total), ..contents };
            // Without a difference nothing is written, so an idle tier does not wake the device.
            if next != contents {
                next.changes = next.changes.wrapping_add(1);
                write(file, next, self.exact).inspect_err(|failed| {
                    if failed.may_have_arrived {
                        // Released twice, they would leave the total too low.
                        state.pending.removed = 0;
                    }
                    self.note_perhaps_high(failed.may_have_arrived);
                })?;
            }
            if is_stale {
                self.may_be_high.store(true, Ordering::Release);
            }
            state.pending = PendingChanges::default();
            (state.known, state.changes) = (next.total, Some(next.changes));
            self.generation.store(next.generation, Ordering::Release);
            Ok(wanted.is_some())
        });
        file.unlock()?;
        changed
    }

    /// Notes that the total may be too high, where what waits may be in the file already and be added again.
    fn note_perhaps_high(&self, may_have_arrived: bool) {
        self.may_be_high.fetch_or(may_have_arrived, Ordering::AcqRel);
    }

    /// What waits now goes into the file with a later change, unless the file has failed.
    fn put_off(&self, folded: io::Result<()>) -> io::Result<()> {
        match folded {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock || is_damage(&e) => Ok(()),
            other => other,
        }
    }
}

impl State {
    /// The total that this process expects.
    fn expected(&self) -> u64 {
        (self.known + self.pending.added).saturating_sub(self.pending.removed)
    }

    /// Whether this process freed as many bytes and has not released them.
    fn has_freed(&self, bytes: u64) -> bool {
        self.pending.removed.saturating_sub(self.pending.added) >= bytes
    }
}

/// Locks the file. Where another process kept the lock at the last try, this one is short: threads
/// wait for each other here, and each save would add a wait.
fn lock(file: &impl LockedFile, is_kept: &mut bool, most: Duration) -> io::Result<()> {
    let locked = file.lock_within(if *is_kept { KEPT_WAIT_MAX } else { most });
    // Any other error comes at once, and says nothing of another process.
    *is_kept = locked.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock);
    locked
}

/// Marks the ledger: it must be recounted before anything is granted. One that is damaged stays so. One
/// whose lock another process keeps grants nothing until it is free, and is compared then.
///
/// # Errors
/// Those of the file system. Then the total that was there may stay.
pub fn mark_uncounted(own: &Path) -> io::Result<()> {
    if LedgerState::read(own)?.total().is_none() {
        return Ok(());
    }
    let file = open_rw(&own.join("ledger"))?;
    match file.lock_within(REGISTRATION_WAIT_MAX) {
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
        other => other?,
    }
    // As many bytes as before, so that most full devices take them.
    let marked = kvtier_os::write_all_at(&file, &UNCOUNTED, 0);
    let marked = marked.or_else(|_| kvtier_os::set_len(&file, 0));
    LockedFile::unlock(&file)?;
    marked
}

/// Whether there is a ledger that is damaged, and neither new nor marked.
pub fn is_damaged(own: &Path) -> bool {
    let bytes = internal_files::read(&own.join("ledger"), UNCOUNTED.len() as u64);
    bytes.is_ok_and(|bytes| !bytes.is_empty() && bytes != UNCOUNTED)
        && Ledger::peek(own).is_ok_and(|total| total.is_none())
}

/// The error for a ledger that must be recounted.
pub fn damage() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "the ledger is damaged, or of another version; it is recounted",
    )
}

/// Whether a ledger must be recounted, as [`Ledger::fold`] says.
pub fn is_damage(e: &io::Error) -> bool {
    e.kind() == io::ErrorKind::InvalidData
}

#[cfg(all(test, shuttle))]
mod shuttle_tests;
#[cfg(test)]
mod tests;
