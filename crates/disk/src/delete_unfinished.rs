//! Deletes unfinished files; those that cannot be deleted now are tried again later.

use std::io::ErrorKind as Io;

use crate::data_dir::Draft;
use crate::mover::Mover;
use crate::shared::Shared;
use crate::undeleted_files::Undeleted;

impl<M: Mover> Shared<M> {
    /// Deletes unfinished files, then releases the bytes that the ledger counts for them. The caller
    /// does not hold [`moving`](crate::ledger::validity::LedgerValidity::moving).
    pub fn delete_unfinished(&self, files: Vec<Draft>, counted_bytes: u64) {
        let _moving = self.space.ledger_validity.moving();
        let since = self.space.ledger.generation();
        let files: Vec<Draft> = files.into_iter().filter(|file| !self.is_deleted(file)).collect();
        if files.is_empty() {
            self.uncount(counted_bytes, since);
        } else {
            self.space.undeleted.lock().push(Undeleted { files, counted_bytes });
        }
    }

    /// Deletes an unfinished file for which the ledger counts nothing.
    pub fn delete_uncounted(&self, file: Draft) {
        if !self.is_deleted(&file) {
            let undeleted = Undeleted { files: vec![file], counted_bytes: 0 };
            self.space.undeleted.lock().push(undeleted);
        }
    }

    /// Tries again to delete what could not be deleted before.
    pub fn delete_undeleted(&self) {
        let all = std::mem::take(&mut *self.space.undeleted.lock());
        all.into_iter().for_each(|one| self.delete_unfinished(one.files, one.counted_bytes));
    }

    fn is_deleted(&self, file: &Draft) -> bool {
        self.data_dir.unlink_draft(file).is_ok() || self.is_absent(file)
    }

    /// Whether the file has no name any more: the staging directory may have been deleted.
    fn is_absent(&self, file: &Draft) -> bool {
        self.data_dir.draft_bytes(file).is_err_and(|e| e.kind() == Io::NotFound)
    }
}
