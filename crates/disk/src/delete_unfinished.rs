//! Deletes unfinished files and releases what the ledger counts for them.

use crate::data_dir::Draft;
use crate::mover::Mover;
use crate::shared::Shared;

impl<M: Mover> Shared<M> {
    /// Deletes unfinished files for which the ledger counts these bytes together, and releases all but
    /// what a recount finds for files that stay. The caller does not hold
    /// [`moving`](crate::ledger::validity::LedgerValidity::moving).
    pub fn delete_unfinished(&self, files: impl IntoIterator<Item = Draft>, counted_bytes: u64) {
        let _moving = self.space.ledger_validity.moving();
        let since = self.space.ledger.generation();
        let mut left = counted_bytes;
        for file in files {
            left = self.data_dir.discard(file, left);
        }
        self.uncount(left, since);
    }

    /// Tries again to delete what could not be deleted before.
    pub fn delete_undeleted(&self) {
        let _moving = self.space.ledger_validity.moving();
        let since = self.space.ledger.generation();
        let deleted = self.data_dir.delete_undeleted();
        self.uncount(deleted.bytes, since);
        if deleted.are_gone {
            self.compare_ledger_soon();
        }
    }
}
