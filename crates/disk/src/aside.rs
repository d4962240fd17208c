//! The quarantine and the books: what lies aside is counted, and the first to go.

use std::io;
use std::sync::atomic::Ordering;

use kvtier_key::Digest;

use crate::home::quarantine::{self, Cleared};
use crate::mover::Mover;
use crate::shared::Shared;

impl<M: Mover> Shared<M> {
    /// Moves a chunk's damaged file out of the way. Its [name](Self::name) is held.
    pub fn set_aside(&self, digest: &Digest, len: u64) -> io::Result<()> {
        let max = quarantine::bytes_max(self.capacity_bytes);
        self.home.delete_sidecar(digest)?;
        let kept = quarantine::keep(&self.home.own(), &self.home.root().join(self.home.at(digest, len)?), max)?;
        self.aside_bytes.fetch_add(kept, Ordering::Relaxed);
        // It was counted by the length in its name.
        self.ledger.shift(kept.cast_signed() - self.home.file_len(len).cast_signed())
    }

    /// Deletes what is in quarantine until `wanted` bytes are free. Answers how many went.
    pub fn clear_aside(&self, wanted: u64) -> u64 {
        self.account(quarantine::make_room(&self.home.own(), wanted))
    }

    /// Deletes what has been in quarantine for long, and learns what others put there.
    pub fn trim_aside(&self) {
        self.account(quarantine::trim(&self.home.own(), quarantine::bytes_max(self.capacity_bytes), self.clock.wall()));
    }

    fn account(&self, cleared: io::Result<Cleared>) -> u64 {
        let cleared = cleared.unwrap_or_else(|e| Cleared { bytes: 0, failed: Some(e) });
        let gone = cleared.bytes;
        if let Some(e) = cleared.failed {
            self.fault(format!("cannot clear the quarantine: {e}"));
        }
        if gone > 0 {
            self.uncount(gone);
        }
        if let Ok(all) = quarantine::list(&self.home.own()) {
            self.aside_bytes.store(all.iter().map(|kept| kept.bytes).sum(), Ordering::Relaxed);
        }
        gone
    }
}
