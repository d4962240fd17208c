//! The tier's side of the [ledger](crate::ledger): what it counts, and when it counts anew.
//!
//! The ledger's total is never too low; here it is kept from staying too high. A process alone in
//! the directory corrects it at once when it finds a file gone. Among several it waits for a record
//! that another process removed the chunk; where none comes, and wherever else the total may be
//! wrong, it compares the total with the directory, without a lock, and recounts where they differ.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use kvtier_core::Event;
use kvtier_index::{IndexEntry, SlotCursor};
use kvtier_key::Digest;

use crate::data_dir::RemovedStale;
use crate::ledger::{Claimed, Generation, Ledger, Recounted, is_damage};
use crate::mover::Mover;
use crate::name;
use crate::shared::Shared;

/// The most chunks found gone that are remembered until a record explains them.
const LOST_MAX: usize = 4096;
/// How long such a record may take.
const RECORD_WITHIN: Duration = Duration::from_secs(2);
/// A total that differs from the directory by this part of the cap is wrong also while others
/// change both.
const NOISE: u64 = 128;
/// How many entries of the index are compared with a census before other users of the index get it.
const COMPARED_AT_ONCE: usize = 4096;

/// What a tier knows of how right the ledger is.
#[derive(Debug, Default)]
pub struct LedgerCheck {
    /// Held while files get or lose names and the ledger follows; a recount waits until none does.
    motion: RwLock<()>,
    /// The total may be wrong.
    suspect: AtomicBool,
    /// Other processes have the directory open, as of the last look.
    has_peers: AtomicBool,
    /// The generation in which the index has just the chunks that the ledger counts, as long as no
    /// other process opens the directory.
    matched: Mutex<Option<Generation>>,
    /// Chunks that were found gone without a record.
    lost: Mutex<HashMap<Digest, Instant>>,
}

impl LedgerCheck {
    /// At the start: `recounted` where this process counted the directory alone.
    pub fn new(recounted: Option<Recounted>, has_peers: bool) -> Self {
        let it = LedgerCheck { has_peers: AtomicBool::new(has_peers), ..LedgerCheck::default() };
        *lock(&it.matched) = recounted.map(|recounted| recounted.generation);
        it.suspect.store(recounted.is_none(), Ordering::Relaxed);
        it
    }

    /// Held by the caller while it moves, makes or deletes files that the ledger counts. Not to be
    /// asked for twice by one thread.
    pub fn moving(&self) -> RwLockReadGuard<'_, ()> {
        self.motion.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The total may be wrong: it is compared soon.
    pub fn suspect(&self) {
        self.suspect.store(true, Ordering::Relaxed);
    }

    /// Another process removed the chunk, and counted it.
    pub fn explained(&self, digest: &Digest) {
        if self.has_peers.load(Ordering::Relaxed) {
            lock(&self.lost).remove(digest);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<M: Mover> Shared<M> {
    /// Counts `bytes` in the ledger if they fit below the cap, and `make` makes their unfinished
    /// file. A ledger that cannot be used grants nothing.
    pub fn claim_bytes(&self, bytes: u64, make: &mut dyn FnMut() -> bool) -> Claimed {
        self.ledger.claim(bytes, self.capacity_bytes, make).unwrap_or_else(|e| {
            self.failed("cannot use the ledger", &e);
            Claimed::Full
        })
    }

    /// Counts `bytes` less, of files that went after `since` was asked.
    pub fn uncount(&self, bytes: u64, since: Generation) {
        if bytes > 0
            && let Err(e) = self.ledger.release(bytes, since)
        {
            self.failed("cannot use the ledger", &e);
        }
    }

    /// A chunk of `bytes` that the index had is gone, and this process did not delete it. Alone in
    /// the directory, and where no other process has changed the ledger meanwhile, this process
    /// knows that the ledger counts it, and corrects that. The caller holds
    /// [`moving`](LedgerCheck::moving) since it took the chunk from the index.
    pub fn lost(&self, digest: &Digest, bytes: u64) {
        // There a sweep counts.
        if self.data_dir.foreign().is_some() || self.data_dir.is_read_only() {
            return;
        }
        if !self.ledger_check.has_peers.load(Ordering::Relaxed) {
            let (matched, mut is_released) = (*lock(&self.ledger_check.matched), false);
            let mut release = |since| {
                self.ledger.release_found(bytes, since).map(|released| is_released = released)
            };
            match self.data_dir.if_alone(|| matched.map_or(Ok(()), &mut release)) {
                Ok(true) if is_released => return,
                // A process came, removed it perhaps, and went.
                Ok(true) => *lock(&self.ledger_check.matched) = None,
                Ok(is_alone) => self.ledger_check.has_peers.store(!is_alone, Ordering::Relaxed),
                Err(e) => self.failed("cannot correct the ledger", &e),
            }
        }
        let mut lost = lock(&self.ledger_check.lost);
        if lost.len() < LOST_MAX && self.ledger_check.has_peers.load(Ordering::Relaxed) {
            lost.insert(*digest, self.clock.now());
        } else {
            self.ledger_check.suspect();
        }
    }

    /// Whether the ledger should be compared with the directory.
    pub fn is_ledger_suspect(&self) -> bool {
        let now = self.clock.now();
        let unexplained = |since: &Instant| now.saturating_duration_since(*since) > RECORD_WITHIN;
        let is_lost = lock(&self.ledger_check.lost).values().any(unexplained);
        if is_lost || self.ledger.may_be_high() {
            self.ledger_check.suspect();
        }
        self.ledger_check.suspect.load(Ordering::Relaxed)
    }

    /// Learns whether other processes have the directory open.
    pub fn detect_peers(&self) -> io::Result<()> {
        let is_alone = self.data_dir.if_alone(|| Ok(()))?;
        let had = self.ledger_check.has_peers.swap(!is_alone, Ordering::Relaxed);
        if had && is_alone {
            // Now the index and the ledger can be brought into agreement for good.
            self.ledger_check.suspect();
            *lock(&self.ledger_check.matched) = None;
        }
        Ok(())
    }

    /// Brings changes that wait into the ledger; recounts a damaged one, and opens anew one that
    /// fails.
    pub fn share_ledger(&self) -> io::Result<()> {
        match self.ledger.fold() {
            Err(e) if is_damage(&e) => self.recount(false),
            // Put off: a process that is stopped has it.
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Err(e),
            Err(_) => {
                self.ledger.reopen(&self.data_dir.own())?;
                self.ledger.fold()
            }
            Ok(()) => Ok(()),
        }
    }

    /// Compares the ledger with the directory, and recounts if it is wrong. Small differences while
    /// others are at work are none.
    pub fn check_ledger(&self) {
        // There the sweep counts.
        if self.data_dir.foreign().is_some() {
            return;
        }
        let own = self.data_dir.own();
        let look = || {
            let before = Ledger::peek(&own)?;
            let there = self.data_dir.count_once()?;
            Ok::<_, io::Error>((before, there, Ledger::peek(&own)?))
        };
        let checked = look().and_then(|(before, there, after)| match after {
            Some(total) if total == there && lock(&self.ledger_check.matched).is_some() => {
                self.ledger_check.suspect.store(false, Ordering::Relaxed);
                lock(&self.ledger_check.lost).clear();
                Ok(())
            }
            Some(total)
                if before != after && total.abs_diff(there) <= self.capacity_bytes / NOISE =>
            {
                Ok(())
            }
            _ => self.recount(true),
        });
        if let Err(e) = checked {
            self.failed("cannot check the ledger", &e);
        }
    }

    /// Counts what lies there, while no process is granted anything: in any case, or else only
    /// where the ledger is damaged.
    pub fn recount(&self, always: bool) -> io::Result<()> {
        let still = self.ledger_check.motion.write().unwrap_or_else(PoisonError::into_inner);
        let mut chunks = Vec::new();
        let count = || {
            let census = self.data_dir.count()?;
            chunks = census.chunks;
            Ok(census.bytes)
        };
        let Some(Recounted { before, after, generation }) = self.ledger.recount(always, count)?
        else {
            return Ok(());
        };
        if self.data_dir.foreign().is_none() {
            chunks.sort_unstable();
            self.forget_uncounted(&chunks);
            *lock(&self.ledger_check.matched) = Some(generation);
        }
        drop(still);
        if before != Some(after) {
            tracing::warn!(tier = %self.caps.name, before, after, "the ledger did not count what lies there; counted anew");
        }
        self.space_queue.notify();
        self.listeners.notify();
        Ok(())
    }

    /// Takes chunks from the index that a census did not see and that are not there: the ledger
    /// does not count them.
    fn forget_uncounted(&self, counted: &[(Digest, u64)]) {
        let mut next = Some(SlotCursor::default());
        while let Some(cursor) = next {
            let page = self.index().keys_page(cursor, COMPARED_AT_ONCE);
            next = page.next;
            let unseen = page
                .chunks
                .iter()
                .filter(|chunk| counted.binary_search(&(chunk.digest, chunk.len)).is_err());
            for chunk in unseen {
                if !self.data_dir.find(&chunk.digest, chunk.len).is_ok_and(|there| there.is_none())
                {
                    continue;
                }
                let mut index = self.index();
                if let Some(entry) = index.forget(&chunk.digest) {
                    self.listeners.push(Event::Gone { key: chunk.digest, len: entry.chunk.len });
                }
            }
        }
    }

    /// Clears what processes that died left unfinished, and counts it no more. Answers whether
    /// there was anything.
    pub fn remove_stale(&self) -> bool {
        let since = self.ledger.generation();
        let removed_stale = self.data_dir.remove_stale().unwrap_or_else(|e| {
            self.fault(format!("cannot clear what dead processes left: {e}"));
            RemovedStale::default()
        });
        if removed_stale.dirs == 0 {
            return false;
        }
        self.uncount(removed_stale.bytes, since);
        // What they had claimed and not yet allocated is found by a recount.
        self.ledger_check.suspect();
        // They may have published or deleted chunks and died before they could append that.
        if self.data_dir.foreign().is_none() {
            self.changes.append_lost();
        }
        true
    }

    /// A chunk that we know lies there with a length `other` too: the newer stays.
    pub fn resolve_duplicate(&self, digest: &Digest, other: u64) {
        let _one = self.name(digest);
        let Some(IndexEntry { mut chunk, .. }) = self.index().known(digest) else { return };
        if chunk.len == other {
            return;
        }
        let (_moving, since) = (self.ledger_check.moving(), self.ledger.generation());
        match self.data_dir.keep_newer(digest, chunk.len, other) {
            Ok(kept) => {
                (chunk.len, chunk.bytes) = (kept.len, name::file_len(kept.len));
                let _ = self.index().insert(chunk);
                if kept.gone_bytes > 0 {
                    self.uncount(kept.gone_bytes, since);
                }
            }
            Err(e) => self.fault(format!("cannot delete one of two files of {digest}: {e}")),
        }
    }
}
