//! The quarantine and the ledger: files in quarantine are counted below the cap, and they are the
//! first to be deleted for space.

use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;

use kvtier_index::Chunk;
use kvtier_key::Digest;

use crate::data_dir::quarantine::{self, Cleared};
use crate::mover::Mover;
use crate::shared::Shared;

impl<M: Mover> Shared<M> {
    /// Moves a chunk's damaged file into quarantine, or deletes it where it does not fit. The
    /// caller holds the chunk's [name](Self::name). `known` was its entry in the index. In a foreign
    /// layout the ledger counts what the
    /// index had, and not what another program wrote since.
    pub fn quarantine(&self, digest: &Digest, len: u64, known: Option<Chunk>) -> io::Result<()> {
        let _moving = self.space.ledger_validity.moving();
        let since = self.space.ledger.generation();
        let max = quarantine::bytes_max(self.limits.capacity_bytes);
        // The sidecar first: without it LMCache has no such chunk.
        self.data_dir.delete_sidecar(digest)?;
        let path = self.data_dir.root().join(self.data_dir.at(digest, len)?);
        // Before the file moves.
        let counted = self.counted_in_ledger(digest, len, known);
        let kept = quarantine::keep(&self.data_dir.own(), &path, max)?;
        // A peer may have saved the chunk in between: then its file is the one that moved, and its
        // sidecar is alone.
        let sidecar_bytes = match self.data_dir.delete_lone_sidecar(digest) {
            Ok(()) => 0,
            Err(_) => self.data_dir.head_bytes(),
        };
        self.data_dir.foreign().into_iter().for_each(|foreign| foreign.forget_gone(digest));
        self.space.quarantine_bytes.fetch_add(kept, Ordering::Relaxed);
        let left = kept + sidecar_bytes;
        // Of both differences one is zero: the file is shorter or longer than what was counted for
        // it.
        self.space.ledger.release_later(counted.saturating_sub(left), since);
        self.space.ledger.add(left.saturating_sub(counted))
    }

    /// The bytes that the ledger counts for a chunk's file, whatever its length is now. In layout
    /// `kvtier` never more than it counts: those that the file had when it was saved or listed, or
    /// those that it has now, which a recount of a peer may have counted.
    fn counted_in_ledger(&self, digest: &Digest, len: u64, known: Option<Chunk>) -> u64 {
        let measured = || self.data_dir.bytes_on_disk(digest, len).ok().flatten();
        let indexed = known.map_or(0, |chunk| chunk.bytes);
        if let Some(bytes) = self.foreign_bytes_to_release(digest, indexed) {
            return bytes;
        }
        let there = self.data_dir.released(len, measured());
        let earlier = known.map_or(there, |chunk| chunk.bytes);
        if earlier != there {
            self.space.ledger_validity.suspect();
        }
        earlier.min(there)
    }

    /// Deletes files in quarantine until `wanted` bytes are free. Returns the bytes deleted.
    pub fn free_quarantined(&self, wanted: u64) -> u64 {
        self.clear_quarantine(|own| quarantine::free_space(own, wanted))
    }

    /// Deletes files that were in quarantine for too long, and counts those that other processes
    /// put there.
    pub fn trim_quarantine(&self) {
        self.clear_quarantine(|own| {
            quarantine::trim(
                own,
                quarantine::bytes_max(self.limits.capacity_bytes),
                self.clock.wall(),
            )
        });
    }

    fn clear_quarantine(&self, clear: impl FnOnce(&Path) -> io::Result<Cleared>) -> u64 {
        let _moving = self.space.ledger_validity.moving();
        let since = self.space.ledger.generation();
        let cleared =
            clear(&self.data_dir.own()).unwrap_or_else(|e| Cleared { bytes: 0, failed: Some(e) });
        if let Some(e) = cleared.failed {
            self.fault(format!("cannot clear the quarantine: {e}"));
        }
        if cleared.bytes > 0 {
            self.uncount(cleared.bytes, since);
        }
        if let Ok(all) = quarantine::list(&self.data_dir.own()) {
            self.space
                .quarantine_bytes
                .store(all.iter().map(|kept| kept.bytes).sum(), Ordering::Relaxed);
        }
        cleared.bytes
    }
}
