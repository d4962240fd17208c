//! The ledger and the change log of a directory that is changed from outside.
//!
//! Both are written after a change, which stands whether or not they can be. What cannot be written
//! waits for the next change, and for [`finish`](Accounting::finish).

use std::io;
use std::path::{Path, PathBuf};

use kvtier_core::Clock;
use kvtier_index::journal::Record;

use crate::change_log::ChangeLog;
use crate::data_dir::{self, StagingDir};
use crate::ledger::{Claimed, Generation, Ledger};

/// Opened with the first change and kept, since a command may change many chunks.
#[derive(Debug)]
pub struct Accounting {
    own: PathBuf,
    /// `None` where no process has counted yet: the next start does.
    ledger: Option<Ledger>,
    /// `None` in a layout of another program.
    changes: Option<ChangeLog>,
    /// So that a tier which finds a file gone does not correct the ledger for it too.
    _registered: Option<StagingDir>,
}

impl Accounting {
    /// Opens what there is below `.kvtier`. Where this process cannot be registered (a full device,
    /// say), a tier corrects the ledger for a file that it finds gone: then nothing is released
    /// or logged here, and the next change tries again.
    ///
    /// # Errors
    /// Those of the file system, and `Other` for a directory of another format, which this build
    /// must not change.
    pub fn open(own: &Path, is_foreign: bool) -> io::Result<Self> {
        data_dir::refuse_other_formats(own)?;
        let ledger = Ledger::peek(own)?.map(|_| Ledger::open(own, true)).transpose()?;
        let registered = ledger.as_ref().and_then(|_| data_dir::register(own).ok());
        if ledger.is_some() && registered.is_none() {
            return Ok(Accounting {
                own: own.to_owned(),
                ledger: None,
                changes: None,
                _registered: None,
            });
        }
        ledger.iter().for_each(|ledger| drop(ledger.fold()));
        let is_local = data_dir::is_local(own)?;
        let changes = (!is_foreign).then(|| ChangeLog::open(own, is_local, &Clock::real()));
        Ok(Accounting { own: own.to_owned(), ledger, changes, _registered: registered })
    }

    /// The same, with a ledger in any case: where no tier has counted yet, with what `count` finds.
    pub fn open_to_count(own: &Path, count: impl FnOnce() -> io::Result<u64>) -> io::Result<Self> {
        let ledger = Ledger::open(own, true)?;
        ledger.recount(false, count)?;
        // What is written must be counted.
        let accounting = Accounting::open(own, false)?;
        let unregistered = || {
            io::Error::other(format!(
                "cannot register in {}: see whether its device is full",
                own.display()
            ))
        };
        if accounting.ledger.is_some() { Ok(accounting) } else { Err(unregistered()) }
    }

    /// Whether the ledger is the file that has its name now. Another process may have deleted
    /// `.kvtier`, or counted for the first time.
    pub fn is_current(&self) -> bool {
        match &self.ledger {
            Some(ledger) => ledger.is_linked(),
            None => matches!(Ledger::peek(&self.own), Ok(None)),
        }
    }

    /// Counts `bytes` more, unless the total would then be over `cap`, or `make` cannot make their
    /// file.
    pub fn claim(
        &self,
        bytes: u64,
        cap: u64,
        make: &mut dyn FnMut() -> bool,
    ) -> io::Result<Claimed> {
        match &self.ledger {
            Some(ledger) => ledger.claim(bytes, cap, make),
            None => Ok(if make() { Claimed::Granted } else { Claimed::Full }),
        }
    }

    /// To be asked before files go for which bytes are released.
    pub fn generation(&self) -> Option<Generation> {
        self.ledger.as_ref().map(Ledger::generation)
    }

    /// Counts bytes less that went after `since` was asked. What cannot be written waits.
    pub fn release(&self, bytes: u64, since: Option<Generation>) {
        if let (Some(ledger), Some(since)) = (&self.ledger, since) {
            let _ = ledger.release(bytes, since);
        }
    }

    /// Counts bytes more that are there. What cannot be written waits.
    pub fn add(&self, bytes: u64) {
        self.ledger.iter().for_each(|ledger| drop(ledger.add(bytes)));
    }

    /// Appends to the change log.
    pub fn append(&self, record: Record) {
        if let Some(changes) = &self.changes {
            changes.append(record);
            // What is left waits; `finish` reports it.
            let _ = changes.flush();
        }
    }

    /// Whether something waits for the change log.
    pub fn has_pending(&self) -> bool {
        self.changes.as_ref().is_some_and(ChangeLog::has_pending)
    }

    /// Writes what waits.
    ///
    /// # Errors
    /// The medium's, with the file that could not be written. The changes themselves stand.
    pub fn finish(&self) -> io::Result<()> {
        let failed = |what: &str, e: io::Error| {
            let own = self.own.display();
            io::Error::new(
                e.kind(),
                format!("cannot write {what} in {own}: {e}; the chunks were changed all the same"),
            )
        };
        if let Some(changes) = &self.changes {
            changes.flush().map_err(|e| failed("the change log", e))?;
        }
        match &self.ledger {
            Some(ledger) if ledger.has_pending() => {
                ledger.fold().map_err(|e| failed("the ledger", e))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use kvtier_index::Chunk;
    use kvtier_key::{BlockSums, Digest, Facts};

    use super::*;
    use crate::DiskConfig;
    use crate::data_dir::DataDir;
    use crate::inspect::{ChunkName, Directory, NewChunk};

    const BYTES: u64 = 8192;

    /// A directory in which no tier is open, with chunks 0, 1, 2, and its log.
    fn directory(root: &Path) -> (Directory, ChangeLog) {
        drop(DataDir::open(&DiskConfig::new(root, 1 << 20).path, None).unwrap());
        let directory = Directory::open(root).unwrap();
        let writer = directory.writer().unwrap();
        for n in 0..3 {
            let facts =
                Facts::plain(Digest([n; 32]), Digest::default(), BlockSums::from_bytes(&[n; 100]));
            assert!(
                writer
                    .write(&NewChunk { facts: &facts, canonical: b"", payload: &[n; 100] })
                    .unwrap()
            );
        }
        writer.finish().unwrap();
        (directory, ChangeLog::open(&root.join(".kvtier"), true, &Clock::real()))
    }

    fn named(n: u8) -> ChunkName {
        ChunkName { digest: Digest([n; 32]), name: None, len: 100 }
    }

    fn read(log: &ChangeLog) -> Vec<Record> {
        let mut records = Vec::new();
        log.follow(u64::MAX, |record| records.push(*record)).unwrap();
        records
    }

    fn removed(n: u8) -> Record {
        Record::Remove(Digest([n; 32]))
    }

    /// A segment that no process can append to.
    fn obstruct(root: &Path) -> PathBuf {
        let path = root.join(format!(".kvtier/changes.{}", u64::MAX / 2));
        fs::create_dir(&path).unwrap();
        path
    }

    #[test]
    fn of_many_that_are_removed_only_the_first_lists_the_log() {
        let dir = tempfile::tempdir().unwrap();
        let (directory, log) = directory(dir.path());
        assert!(directory.remove(&named(0)).unwrap());
        obstruct(dir.path());
        assert!(directory.remove(&named(1)).unwrap() && !directory.remove(&named(1)).unwrap());
        directory.finish().unwrap();
        assert_eq!(read(&log), [removed(0), removed(1)]);
        assert_eq!(Ledger::peek(&dir.path().join(".kvtier")).unwrap(), Some(BYTES));
    }

    #[test]
    fn a_process_that_cannot_be_registered_leaves_the_ledger_to_the_tiers() {
        let dir = tempfile::tempdir().unwrap();
        let (directory, log) = directory(dir.path());
        let own = dir.path().join(".kvtier");
        let tmp = dir.path().join(".kvtier/tmp");
        fs::remove_dir_all(&tmp).unwrap();
        fs::write(&tmp, "").unwrap();
        assert!(directory.remove(&named(0)).unwrap());
        assert_eq!((Ledger::peek(&own).unwrap(), read(&log)), (Some(3 * BYTES), vec![]));
        assert!(directory.writer().is_err());
        // The next one tries again.
        fs::remove_file(&tmp).unwrap();
        fs::create_dir(&tmp).unwrap();
        assert!(directory.remove(&named(1)).unwrap());
        assert_eq!((Ledger::peek(&own).unwrap(), read(&log)), (Some(2 * BYTES), vec![removed(1)]));
    }

    #[test]
    fn a_chunk_is_removed_also_where_the_log_cannot_be_written_and_its_record_follows() {
        let dir = tempfile::tempdir().unwrap();
        let (directory, log) = directory(dir.path());
        let obstacle = obstruct(dir.path());
        assert!(directory.remove(&named(0)).unwrap());
        let e = directory.finish().unwrap_err().to_string();
        assert!(
            e.contains("cannot write the change log in ") && e.contains("the chunks were changed"),
            "{e}"
        );
        fs::remove_dir(obstacle).unwrap();
        assert!(directory.remove(&named(1)).unwrap());
        directory.finish().unwrap();
        assert_eq!(read(&log), [removed(0), removed(1)]);
    }

    #[test]
    fn a_chunk_is_written_also_where_the_log_cannot_be_and_its_record_follows() {
        let dir = tempfile::tempdir().unwrap();
        let (directory, log) = directory(dir.path());
        let writer = directory.writer().unwrap();
        let obstacle = obstruct(dir.path());
        let facts =
            Facts::plain(Digest([9; 32]), Digest::default(), BlockSums::from_bytes(&[9; 100]));
        assert!(
            writer.write(&NewChunk { facts: &facts, canonical: b"", payload: &[9; 100] }).unwrap()
        );
        assert!(writer.finish().is_err());
        fs::remove_dir(obstacle).unwrap();
        writer.finish().unwrap();
        assert_eq!(read(&log), [Record::Insert(Chunk::new(Digest([9; 32]), 100, BYTES))]);
    }

    #[test]
    fn a_ledger_that_is_made_again_is_the_one_that_counts() {
        let dir = tempfile::tempdir().unwrap();
        let (directory, _) = directory(dir.path());
        let own = dir.path().join(".kvtier");
        assert!(directory.remove(&named(0)).unwrap());
        fs::remove_file(own.join("ledger")).unwrap();
        assert!(directory.remove(&named(1)).unwrap());
        assert_eq!(Ledger::peek(&own).unwrap(), None, "the next start counts");
        Ledger::open(&own, true).unwrap().recount(true, || Ok(BYTES)).unwrap();
        assert!(directory.remove(&named(2)).unwrap());
        assert_eq!(Ledger::peek(&own).unwrap(), Some(0));
    }
}
