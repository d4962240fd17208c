//! Keeps the [ledger](crate::ledger) right: counts the tier's own changes, and decides when to
//! recount.
//!
//! The ledger's total is never too low; this module keeps it from staying too high. A process alone in
//! the directory corrects it at once when it finds a file gone. Among several it waits for a record
//! that a peer removed the chunk. Without such a record, and wherever else the total may be
//! wrong, it compares the total with the directory, without a lock, and recounts where they differ.

use std::io;

use kvtier_core::Event;
use kvtier_index::{Chunk, IndexEntry, SlotCursor};
use kvtier_key::Digest;

use crate::data_dir::{CountedChunk, RemovedStale};
use crate::ledger::{Claimed, Generation, Ledger, Recounted, is_damage};
use crate::mover::Mover;
use crate::shared::Shared;

/// A total that differs from the directory by this part of the cap is wrong even while peers change
/// both.
const NOISE: u64 = 128;
/// How many entries are compared with a count while the index is locked.
const COMPARED_AT_ONCE: usize = 4096;

impl<M: Mover> Shared<M> {
    /// Counts `bytes` in the ledger if they fit below the cap and `make` creates their unfinished
    /// file. A ledger that fails grants nothing.
    pub fn claim_bytes(&self, bytes: u64, make: &mut dyn FnMut() -> bool) -> Claimed {
        self.space.ledger.claim(bytes, self.limits.capacity_bytes, make).unwrap_or_else(|e| {
            self.failed("cannot use the ledger", &e);
            Claimed::Unavailable
        })
    }

    /// Releases the bytes of files that were deleted after `since` was read.
    pub fn uncount(&self, bytes: u64, since: Generation) {
        if bytes > 0
            && let Err(e) = self.space.ledger.release(bytes, since)
        {
            self.failed("cannot use the ledger", &e);
        }
    }

    /// What to release for a chunk's file of a foreign layout that is about to be deleted or replaced;
    /// `None` in layout `kvtier`. No more than the index of this process has, which a scan or a save
    /// counted, and than is there: another program may have written the file or cut it since, and a
    /// peer may have counted what it is now. What is released too little is found by the next scan.
    pub fn foreign_bytes_to_release(&self, digest: &Digest, indexed: u64) -> Option<u64> {
        let foreign = self.data_dir.foreign()?;
        if foreign.is_uncounted(digest) {
            return Some(0);
        }
        let there = self.data_dir.bytes_on_disk(digest, 0).ok().flatten();
        Some(indexed.min(there.unwrap_or(0)))
    }

    /// Has the ledger compared with the directory soon.
    pub fn compare_ledger_soon(&self) {
        match self.data_dir.foreign() {
            // The scan counts.
            Some(foreign) => foreign.request_scan(),
            None => self.space.ledger_validity.suspect(),
        }
    }

    /// Notes a missing file that this process did not delete. If this process is alone, and no peer
    /// changed the ledger meanwhile, the ledger still counts the file, and its bytes are released.
    /// Otherwise a record must explain it. The caller holds [`moving`](crate::ledger::validity::LedgerValidity::moving) since it
    /// removed the chunk from the index.
    pub fn lost(&self, digest: &Digest, bytes: u64) {
        // In a foreign layout the scan counts.
        if self.data_dir.foreign().is_some() || self.data_dir.is_read_only() {
            return;
        }
        let check = &self.space.ledger_validity;
        if !check.has_peers() {
            // Under the registration lock no peer can open the directory, so "alone" holds until
            // the release is written.
            let mut is_released = false;
            let release = || {
                // A process that died may have taken the file for another chunk: it is counted until the
                // unfinished files of that process are deleted and released.
                if self.data_dir.has_only_own_staging()?
                    // The generation in which this process saw index and ledger agree.
                    && let Some(since) = check.matched()
                {
                    is_released = self.space.ledger.release_found(bytes, since)?;
                }
                Ok(())
            };
            match self.data_dir.if_alone(release) {
                Ok(true) if is_released => return,
                // A peer came and went, and may have removed the file.
                Ok(true) => check.set_matched(None),
                Ok(is_alone) => _ = check.set_has_peers(!is_alone),
                Err(e) => self.failed("cannot correct the ledger", &e),
            }
        }
        // Among peers, one of them deleted the file and its record comes soon. Alone, no record can
        // come: the directory is compared.
        if !check.has_peers() || !check.note_lost(digest, self.clock.now()) {
            check.suspect();
        }
    }

    /// Whether the ledger should be compared with the directory.
    pub fn is_ledger_suspect(&self) -> bool {
        let check = &self.space.ledger_validity;
        let may_be_high = self.space.ledger.may_be_high() | self.data_dir.is_count_uncertain();
        if check.has_unexplained(self.clock.now()) || may_be_high {
            check.suspect();
        }
        check.is_suspect()
    }

    /// Checks whether peers have the directory open.
    pub fn detect_peers(&self) -> io::Result<()> {
        let is_alone = self.data_dir.if_alone(|| Ok(()))?;
        let had = self.space.ledger_validity.set_has_peers(!is_alone);
        if had && is_alone {
            // From now on the index and the ledger can agree exactly.
            self.space.ledger_validity.suspect();
            self.space.ledger_validity.set_matched(None);
        }
        Ok(())
    }

    /// Writes pending changes to the ledger. Recounts a damaged ledger, and reopens one that fails.
    pub fn share_ledger(&self) -> io::Result<()> {
        match self.space.ledger.fold() {
            Err(e) if is_damage(&e) => self.recount(false),
            // Postponed: a stopped process holds the lock.
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Err(e),
            Err(_) => {
                self.space.ledger.reopen(&self.data_dir.own())?;
                self.space.ledger.fold()
            }
            Ok(()) => Ok(()),
        }
    }

    /// Compares the ledger with the directory, and recounts if they differ. Small differences are
    /// ignored while peers change both.
    pub fn check_ledger(&self) {
        // In a foreign layout the scan counts.
        if self.data_dir.foreign().is_some() {
            return;
        }
        let own = self.data_dir.own();
        // Twice the total and the directory between them. If both totals are equal, no process
        // changed the ledger while the directory was read, and a difference is real.
        // No lock is held: counting a large directory takes seconds.
        let look = || {
            let before = Ledger::peek(&own)?;
            let there = self.data_dir.count_once()?;
            Ok::<_, io::Error>((before, there, Ledger::peek(&own)?))
        };
        let checked = look().and_then(|(before, there, after)| match after {
            // What waits may change the total.
            Some(total) if total == there && self.space.ledger.has_pending() => Ok(()),
            // All three agree: the total, the directory, and by an earlier recount the index.
            Some(total) if total == there && self.space.ledger_validity.matched().is_some() => {
                self.space.ledger_validity.clear();
                Ok(())
            }
            Some(total)
                if before != after
                    && total.abs_diff(there) <= self.limits.capacity_bytes / NOISE =>
            {
                Ok(())
            }
            // Damaged, or different although no peer changed it, or by too much; or the index was
            // never compared with the directory.
            _ => self.recount(true),
        });
        if let Err(e) = checked {
            self.failed("cannot check the ledger", &e);
        }
    }

    /// Counts the directory while no process is granted space: `always`, or only where the ledger is
    /// damaged.
    pub fn recount(&self, always: bool) -> io::Result<()> {
        // Threads of this process stand still, so that no file of ours moves behind the reader.
        // Those of peers wait for the ledger's lock.
        let still = self.space.ledger_validity.stand_still();
        let mut chunks = Vec::new();
        let count = || {
            let counted = self.data_dir.count()?;
            chunks = counted.chunks;
            Ok(counted.bytes)
        };
        let Some(Recounted { before, after, generation }) =
            self.space.ledger.recount(always, count)?
        else {
            return Ok(());
        };
        if self.data_dir.foreign().is_none() {
            chunks.sort_unstable();
            // From now on the bytes of chunks that were not counted need no release, and those of
            // all others are released as they were counted.
            self.match_index(&chunks);
            self.space.ledger_validity.set_matched(Some(generation));
        }
        drop(still);
        if before != Some(after) {
            tracing::warn!(tier = %self.caps.name, before, after, "the ledger differed from the directory; recounted");
        }
        // The total may be lower now, and the index too: saves that wait try again.
        self.space.queue.notify();
        self.listeners.notify();
        Ok(())
    }

    /// Removes chunks from the index whose files are missing and were not counted, and enters what was
    /// counted for the others.
    fn match_index(&self, counted: &[CountedChunk]) {
        let mut next = Some(SlotCursor::default());
        while let Some(cursor) = next {
            let page = self.index().keys_page(cursor, COMPARED_AT_ONCE);
            next = page.next;
            for chunk in &page.chunks {
                let named = (chunk.digest, chunk.len);
                match counted.binary_search_by_key(&named, |seen| (seen.digest, seen.len)) {
                    Ok(at) if counted[at].bytes == chunk.bytes => {}
                    Ok(at) => _ = self.index().resize(&chunk.digest, chunk.len, counted[at].bytes),
                    Err(_) => self.forget_uncounted(chunk),
                }
            }
        }
    }

    /// Removes a chunk from the index if its file is missing.
    fn forget_uncounted(&self, chunk: &Chunk) {
        if !self.data_dir.find(&chunk.digest, chunk.len).is_ok_and(|there| there.is_none()) {
            return;
        }
        // One chunk at a time: lookups go on meanwhile.
        let mut index = self.index();
        // Then it was reported when it was marked.
        let was_suspect = index.is_suspect(&chunk.digest);
        if let Some(entry) = index.forget(&chunk.digest).filter(|_| !was_suspect) {
            self.listeners.push(Event::Gone { key: chunk.digest, len: entry.chunk.len });
        }
    }

    /// Removes the unfinished files of dead processes, and releases their bytes. Returns whether any
    /// process had died.
    pub fn remove_stale(&self) -> bool {
        // Before the first file is deleted, as for every release.
        let since = self.space.ledger.generation();
        let check = &self.space.ledger_validity;
        // Among them may be files that the index has: they are released once, here.
        let removed_stale =
            self.data_dir.remove_stale(|| check.set_matched(None)).unwrap_or_else(|e| {
                self.fault(format!("cannot remove the files of dead processes: {e}"));
                RemovedStale::default()
            });
        if removed_stale.dirs == 0 {
            return false;
        }
        self.uncount(removed_stale.bytes, since);
        // Claims without allocated files are found by a recount.
        self.compare_ledger_soon();
        // A process may have died between publishing a chunk and appending its record.
        if self.data_dir.foreign().is_none() {
            self.changes.append_lost();
        }
        true
    }

    /// Deletes the older of a chunk's files of two lengths: that of the index and `other`.
    pub fn resolve_duplicate(&self, digest: &Digest, other: u64) {
        // Two threads of this process may find the same pair at once.
        let _one = self.name(digest);
        let Some(IndexEntry { mut chunk, .. }) = self.index().known(digest) else { return };
        if chunk.len == other {
            return;
        }
        let _moving = self.space.ledger_validity.moving();
        let since = self.space.ledger.generation();
        match self.data_dir.keep_newer(digest, chunk.len, other) {
            Ok(kept) => {
                (chunk.len, chunk.bytes) = (kept.len, kept.bytes);
                let _ = self.index().insert(chunk);
                if kept.gone_bytes > 0 {
                    self.uncount(kept.gone_bytes, since);
                }
            }
            Err(e) => self.fault(format!("cannot delete one of two files of {digest}: {e}")),
        }
    }
}
