//! Unfinished files that could not be deleted. They are tried again in each round of the maintenance;
//! until then the ledger counts their bytes.

use std::io::ErrorKind as Io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{DataDir, Draft, staging};

/// The most files that wait to be deleted. Others stay until this process ends, and stay counted.
const UNDELETED_MAX: usize = 1 << 16;

/// A file that could not be deleted.
#[derive(Debug)]
struct Undeleted {
    file: Draft,
    /// What to release when it is gone: the ledger counts as much at least, before a recount and after.
    to_release: u64,
}

/// All of them.
#[derive(Debug, Default)]
pub struct UndeletedFiles(Mutex<Vec<Undeleted>>);

/// What a try to delete them has brought.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Deleted {
    /// Bytes that the ledger counts for files that are gone now.
    pub bytes: u64,
    /// Files are gone. A recount may have counted more for them, or noticed that they were gone before.
    pub are_gone: bool,
}

impl UndeletedFiles {
    fn lock(&self) -> MutexGuard<'_, Vec<Undeleted>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DataDir {
    /// Deletes an unfinished file for which the ledger counts `counted_bytes`. Returns how many of
    /// them the caller releases now: all where the file is gone. Where it stays, those stay counted
    /// that a recount by anyone would find for it; the maintenance releases them later.
    pub fn discard(&self, file: Draft, counted_bytes: u64) -> u64 {
        if !self.unlink_draft(&file).is_err_and(|e| e.kind() != Io::NotFound) {
            return counted_bytes;
        }
        let (kept, released) = match self.draft_bytes(&file) {
            Ok(there) => {
                let found = there.max(staging::claimed_by(&file.name).unwrap_or(0));
                let kept = found.min(counted_bytes);
                (kept, counted_bytes - kept)
            }
            // Unknown: all stay counted until the ledger is compared with the directory, after the file
            // is gone.
            Err(_) => (0, 0),
        };
        let mut undeleted = self.undeleted.lock();
        if undeleted.len() < UNDELETED_MAX {
            undeleted.push(Undeleted { file, to_release: kept });
        }
        released
    }

    /// How many files wait to be deleted, and how many may.
    #[cfg(feature = "simulate")]
    pub fn undeleted_files(&self) -> (usize, usize) {
        (self.undeleted.lock().len(), UNDELETED_MAX)
    }

    /// Tries again to delete what could not be deleted before.
    pub fn delete_undeleted(&self) -> Deleted {
        let mut deleted = Deleted::default();
        let all = std::mem::take(&mut *self.undeleted.lock());
        for one in all {
            match self.unlink_draft(&one.file) {
                Ok(()) => deleted.bytes += one.to_release,
                Err(e) if e.kind() == Io::NotFound => {}
                Err(_) => {
                    self.undeleted.lock().push(one);
                    continue;
                }
            }
            deleted.are_gone = true;
        }
        deleted
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;

    /// Puts a directory in the place of a file, which cannot be unlinked, by root neither. Returns its
    /// path and its length.
    fn block(draft: &Draft) -> (PathBuf, u64) {
        let path = draft.staging.path().join(&draft.name);
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        let len = fs::metadata(&path).unwrap().len();
        (path, len)
    }

    #[test]
    fn a_file_that_cannot_be_deleted_is_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = DataDir::open(dir.path(), None).unwrap();
        let draft = || data_dir.create_small(b"bytes", false).unwrap();
        let (first, (second, _)) = (draft(), data_dir.create(4096).unwrap());
        let ((becomes_a_file, kept), (goes, _)) = (block(&first), block(&second));
        assert_eq!(data_dir.discard(first, kept + 4096), 4096);
        assert_eq!(data_dir.discard(second, 4096), 0);
        assert_eq!(data_dir.delete_undeleted(), Deleted::default());
        fs::remove_dir(&becomes_a_file).unwrap();
        fs::write(&becomes_a_file, "").unwrap();
        fs::remove_dir(goes).unwrap();
        let deleted = data_dir.delete_undeleted();
        assert_eq!(deleted, Deleted { bytes: kept, are_gone: true });
        assert!(!becomes_a_file.exists());
        assert_eq!(data_dir.delete_undeleted(), Deleted::default());
        assert_eq!(data_dir.discard(draft(), 7), 7);
    }

    /// A recount between both tries counts the file as its name states. What is released later must be
    /// counted then too.
    #[test]
    fn what_stays_counted_for_a_file_is_what_a_recount_finds() {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = DataDir::open(dir.path(), None).unwrap();
        let (draft, _) = data_dir.create(1 << 20).unwrap();
        let (path, _) = block(&draft);
        assert_eq!(data_dir.discard(draft, (1 << 20) + 4096), 4096);
        assert_eq!(data_dir.count_once().unwrap(), 1 << 20);
        fs::remove_dir(&path).unwrap();
        fs::write(&path, "").unwrap();
        assert_eq!(data_dir.delete_undeleted().bytes, 1 << 20);
        assert_eq!(data_dir.count_once().unwrap(), 0);
        // Of one that was counted as nothing nothing is released; the ledger is compared then.
        let (draft, _) = data_dir.create(1 << 20).unwrap();
        let (path, _) = block(&draft);
        assert_eq!(data_dir.discard(draft, 0), 0);
        assert_eq!(data_dir.count_once().unwrap(), 1 << 20);
        fs::remove_dir(&path).unwrap();
        fs::write(&path, "").unwrap();
        assert_eq!(data_dir.delete_undeleted(), Deleted { bytes: 0, are_gone: true });
    }
}
