//! Eviction: deletes the files of victims that the index chose, and keeps the index, the ledger and
//! the journals in step.

use std::io;
use std::sync::atomic::Ordering;

use kvtier_core::Event;
use kvtier_index::journal::Record;
use kvtier_index::{Chunk, IndexEntry};

use crate::counters::add;
use crate::ledger::Ledger;
use crate::mover::Mover;
use crate::shared::Shared;

/// What became of a chunk that the index marked as leaving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// A save of the same key ended meanwhile: it stays.
    Stays,
    /// Its file is deleted.
    Deleted,
    /// It had no file any more.
    WasMissing,
}

impl<M: Mover> Shared<M> {
    /// Evicts until the index is below the cap, as far as chunks can be deleted.
    pub fn evict_to_cap(&self) {
        if !self.may_evict() {
            return self.space.is_eviction_due.store(true, Ordering::Relaxed);
        }
        loop {
            let victims = self.index().victims(self.now_ms(), 0);
            if victims.is_empty() {
                return;
            }
            // Where none of them can be deleted, another try would choose the same ones for ever.
            if self.evict(victims) == 0 {
                return self.space.is_eviction_due.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Tries again to evict to the cap, if chunks could not be deleted the last time.
    pub fn evict_again(&self) {
        // Not in a directory that is read-only now: the next round asks again.
        if self.may_evict() && self.space.is_eviction_due.swap(false, Ordering::Relaxed) {
            self.evict_to_cap();
        }
    }

    /// Evicts what the ledger counts above the cap though the index does not: quarantined files, and second files that
    /// a crash of the machine left without a chunk.
    pub fn evict_ledger_excess(&self) {
        // What was freed a moment ago must be in the file, or it would be freed twice.
        if !self.may_evict() || self.space.ledger.fold().is_err() {
            return;
        }
        let counted = Ledger::peek(&self.data_dir.own()).ok().flatten().unwrap_or_default();
        let excess = counted.saturating_sub(self.limits.capacity_bytes);
        if excess == 0 {
            return;
        }
        let excess = excess.saturating_sub(self.free_quarantined(excess));
        let victims = self.index().evict_bytes(self.now_ms(), excess);
        self.evict(victims);
    }

    /// Deletes victims and counts them as evicted. Returns how many are gone.
    pub fn evict(&self, victims: Vec<IndexEntry>) -> usize {
        let gone = self.delete(victims);
        add(&self.counters.evicted, gone as u64);
        gone
    }

    /// Deletes chunks that the index marked as leaving. A chunk that cannot be deleted returns to
    /// the index. Returns how many are gone.
    pub fn delete(&self, victims: Vec<IndexEntry>) -> usize {
        let is_gone = |victim: &IndexEntry| {
            let deleted = self.delete_one(&victim.chunk);
            let what = || format!("cannot delete the file of {}", victim.chunk.digest);
            deleted.inspect_err(|e| self.failed(&what(), e)).is_ok_and(|it| it != Deletion::Stays)
        };
        let gone = victims.iter().filter(|victim| is_gone(victim)).count();
        self.notify_deleted(gone);
        gone
    }

    /// Deletes one chunk that the index marked as leaving, as [`delete`](Self::delete) does.
    ///
    /// # Errors
    /// What the file system answers. Then the chunk is in the index again.
    pub fn delete_chunk(&self, victim: &Chunk) -> io::Result<Deletion> {
        let deleted = self.delete_one(victim);
        let is_gone = matches!(deleted, Ok(Deletion::Deleted | Deletion::WasMissing));
        self.notify_deleted(usize::from(is_gone));
        deleted
    }

    fn notify_deleted(&self, gone: usize) {
        // Only then: a save that freed nothing would wake itself, and try again without a pause.
        if gone > 0 {
            self.space.queue.notify();
        }
        self.listeners.notify();
    }

    fn delete_one(&self, victim: &Chunk) -> io::Result<Deletion> {
        let Chunk { digest, len, bytes, .. } = *victim;
        let _name = self.name(&digest);
        // A save of the same key may have ended since the index chose the victim: the chunk stays.
        if !self.index().is_evicting(&digest) {
            return Ok(Deletion::Stays);
        }
        let _moving = self.space.ledger_validity.moving();
        // Read before the unlink: if a recount begins in between, it may have missed the file
        // already, and then this release must not count.
        let since = self.space.ledger.generation();
        let foreign_bytes = self.foreign_bytes_to_release(&digest, bytes);
        match self.data_dir.delete(&digest, len) {
            Ok(gone) => {
                self.data_dir
                    .foreign()
                    .into_iter()
                    .for_each(|foreign| foreign.forget_gone(&digest));
                if let Some(gone_bytes) = gone {
                    let counted = foreign_bytes.unwrap_or(gone_bytes);
                    self.uncount(counted, since);
                    // A peer replaced the file, or another program or a crash of the machine
                    // changed its length, which the ledger may not count.
                    if foreign_bytes.is_none() && counted != bytes {
                        self.space.ledger_validity.suspect();
                    }
                    self.append_change(Record::Remove(digest));
                } else {
                    // Another process or program deleted it first. Whether the bytes are still
                    // counted depends on which.
                    self.lost(&digest, bytes);
                    // That process may have been stopped before it wrote a record.
                    self.append_change(Record::Touch(digest));
                }
                self.journal.note([Record::Remove(digest)]);
                // Only now the index releases the bytes: a save that is granted them would
                // otherwise write before the device has the space.
                let mut index = self.index();
                if !index.finish_evict(&digest) {
                    return Ok(Deletion::Stays);
                }
                // A suspect was reported when it was marked.
                if !index.is_suspect(&digest) {
                    self.listeners.push(Event::Gone { key: digest, len });
                }
                drop(index);
                Ok(gone.map_or(Deletion::WasMissing, |_| Deletion::Deleted))
            }
            Err(e) => {
                // Back into the index: the file exists and serves loads, or is gone and its sidecar
                // is not. Its bytes are still counted.
                self.index().abort_evict(&digest);
                Err(e)
            }
        }
    }
}
