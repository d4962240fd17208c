//! Unfinished files that could not be deleted. They are tried again in each round of the maintenance;
//! until then the ledger counts their bytes.

use std::io::ErrorKind as Io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{DataDir, Draft};

/// A file that could not be deleted.
#[derive(Debug)]
struct Undeleted {
    file: Draft,
    /// What the ledger counts for it.
    counted_bytes: u64,
}

/// All of them.
#[derive(Debug, Default)]
pub struct UndeletedFiles(Mutex<Vec<Undeleted>>);

/// What a try to delete them has brought.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Deleted {
    /// Bytes that the ledger counts for files that are gone now.
    pub bytes: u64,
    /// Files were gone before, and a recount may have noticed that.
    pub were_absent: bool,
}

impl UndeletedFiles {
    fn lock(&self) -> MutexGuard<'_, Vec<Undeleted>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DataDir {
    /// Deletes an unfinished file for which the ledger counts `counted_bytes`. Returns whether it is
    /// gone: then the caller releases its bytes, else the maintenance does later.
    pub fn discard(&self, file: Draft, counted_bytes: u64) -> bool {
        let is_gone = !self.unlink_draft(&file).is_err_and(|e| e.kind() != Io::NotFound);
        if !is_gone {
            self.undeleted.lock().push(Undeleted { file, counted_bytes });
        }
        is_gone
    }

    /// Tries again to delete what could not be deleted before.
    pub fn delete_undeleted(&self) -> Deleted {
        let mut deleted = Deleted::default();
        let all = std::mem::take(&mut *self.undeleted.lock());
        for one in all {
            match self.unlink_draft(&one.file) {
                Ok(()) => deleted.bytes += one.counted_bytes,
                Err(e) if e.kind() == Io::NotFound => deleted.were_absent = true,
                Err(_) => self.undeleted.lock().push(one),
            }
        }
        deleted
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_that_cannot_be_deleted_is_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = DataDir::open(dir.path(), None).unwrap();
        let draft = || data_dir.create_small(b"bytes", false).unwrap();
        // A directory in the place of the file cannot be unlinked, by root neither.
        let block = |draft: &Draft| {
            let path = draft.staging.path().join(&draft.name);
            fs::remove_file(&path).unwrap();
            fs::create_dir(&path).unwrap();
            path
        };
        let (first, second) = (draft(), draft());
        let (becomes_a_file, goes) = (block(&first), block(&second));
        assert!(!data_dir.discard(first, 4096) && !data_dir.discard(second, 8192));
        assert_eq!(data_dir.delete_undeleted(), Deleted::default());
        fs::remove_dir(&becomes_a_file).unwrap();
        fs::write(&becomes_a_file, "").unwrap();
        fs::remove_dir(goes).unwrap();
        let deleted = data_dir.delete_undeleted();
        assert_eq!(deleted, Deleted { bytes: 4096, were_absent: true });
        assert!(!becomes_a_file.exists());
        assert_eq!(data_dir.delete_undeleted(), Deleted::default());
        assert!(data_dir.discard(draft(), 0));
    }
}
