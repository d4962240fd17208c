use std::collections::{HashSet, VecDeque};
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use kvtier_core::Clock;
use kvtier_index::journal::{self as format, Record};

use super::snapshot::SnapshotMark;
use crate::data_dir::internal_files;

/// The most records that wait for a flush; beyond that new ones are dropped.
const WAITING_MAX: usize = 1 << 17;
/// The same in a simulation, so that it is reached there.
const SIMULATED_WAITING_MAX: usize = 64;
/// When this many records wait, superseded ones are dropped for the first time.
const FOLD_AT: usize = 1 << 14;
/// The same in a simulation.
const SIMULATED_FOLD_AT: usize = 16;
/// A journal file longer than this is followed by a new one.
const FILE_BYTES_MAX: u64 = 8 << 20;
/// The same in a simulation, whose processes write a few kB: they too begin several files.
const SIMULATED_FILE_BYTES_MAX: u64 = 512;
/// The most files of a process that are not merged into a snapshot. Before it begins another it
/// deletes its oldest.
const FILES_MAX: usize = 4;

/// This process's journal: `.kvtier/journal/<staging directory>.<number>`.
#[derive(Debug)]
pub struct Journal {
    own: PathBuf,
    dir: PathBuf,
    clock: Clock,
    name: Mutex<String>,
    waiting: Mutex<WaitingRecords>,
    file: Mutex<Tail>,
}

/// What waits for a flush.
#[derive(Debug)]
struct WaitingRecords {
    records: Vec<Record>,
    /// The number of records at which superseded ones are dropped next.
    fold_at: usize,
}

fn waiting_max() -> usize {
    if kvtier_os::is_simulated() { SIMULATED_WAITING_MAX } else { WAITING_MAX }
}

fn fold_at() -> usize {
    if kvtier_os::is_simulated() { SIMULATED_FOLD_AT } else { FOLD_AT }
}

impl Default for WaitingRecords {
    fn default() -> Self {
        WaitingRecords { records: Vec::new(), fold_at: fold_at() }
    }
}

impl WaitingRecords {
    fn note(&mut self, record: Record) {
        if self.records.len() >= self.fold_at {
            let mut kept = last_touches(self.records.drain(..));
            self.records.append(&mut kept);
            // Twice as many, so that repeated passes do not cost the square.
            self.fold_at = fold_at().max(2 * self.records.len());
        }
        if self.records.len() < waiting_max() {
            self.records.push(record);
        }
    }

    /// Swaps the waiting records with `to`.
    fn swap(&mut self, to: &mut Vec<Record>) {
        std::mem::swap(&mut self.records, to);
        self.fold_at = fold_at();
    }
}

#[derive(Debug, Default)]
struct Tail {
    file: Option<File>,
    number: u64,
    /// The numbers of the last files, which may be deleted by now.
    numbers: VecDeque<u64>,
    bytes: u64,
    snapshot: SnapshotMark,
    /// Bytes written since the last snapshot, in all files.
    since_snapshot: u64,
    /// An empty vector, reused so that its memory is not allocated on another thread each time.
    spare: Vec<Record>,
}

impl Journal {
    /// The journal of the process whose staging directory is `name`. Its batches have this clock's
    /// wall time.
    pub fn new(own: &Path, name: &str, clock: &Clock) -> Self {
        let dir = own.join("journal");
        let own = own.to_owned();
        let clock = clock.clone();
        let name = Mutex::new(name.to_owned());
        Journal { own, dir, clock, name, waiting: Mutex::default(), file: Mutex::default() }
    }

    /// Notes what happened; it is written at the next [`flush`](Journal::flush).
    pub fn note(&self, records: impl IntoIterator<Item = Record>) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        records.into_iter().for_each(|record| waiting.note(record));
    }

    /// How many records wait for a flush, and how many may.
    #[cfg(feature = "simulate")]
    pub fn waiting_records(&self) -> (usize, usize) {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        (waiting.records.len(), waiting_max())
    }

    /// Writes the waiting records. A batch that fails is given up, and the next one goes to a new
    /// file: nothing behind a torn batch is ever read.
    pub fn flush(&self) -> io::Result<()> {
        // The lock of the file is held for the write, that of the waiting records only for the
        // swap: operations never wait for the medium here.
        let mut tail = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).swap(&mut tail.spare);
        if tail.spare.is_empty() {
            return Ok(());
        }
        let mut bytes = Vec::new();
        // By this mark a reader with another clock places the batch after the snapshot.
        let follows = tail.snapshot.mark(&self.own);
        let records = last_touches(tail.spare.drain(..));
        format::encode_after(follows, self.clock.unix_ms(), &records, &mut bytes);
        // Whole files can be deleted, parts of one cannot.
        let bytes_max = match kvtier_os::is_simulated() {
            true => SIMULATED_FILE_BYTES_MAX,
            false => FILE_BYTES_MAX,
        };
        if tail.bytes > bytes_max {
            tail.file = None;
        }
        // Taken, and put back only after a whole write: a failed one is never appended to.
        let mut file = match tail.file.take() {
            Some(file) => file,
            None => {
                tail.bytes = 0;
                self.next_file(&mut tail)?
            }
        };
        kvtier_os::write_all(&mut file, &bytes)?;
        tail.bytes += bytes.len() as u64;
        tail.since_snapshot += bytes.len() as u64;
        tail.file = Some(file);
        Ok(())
    }

    /// Creates a new file. An existing one belongs to another process, whatever its name.
    fn next_file(&self, tail: &mut Tail) -> io::Result<File> {
        let name = self.name.lock().unwrap_or_else(PoisonError::into_inner);
        let path = |number| self.dir.join(format!("{name}.{number}"));
        let file = loop {
            tail.number += 1;
            match internal_files::open(
                &path(tail.number),
                OpenOptions::new().append(true).create_new(true),
            ) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                other => break other?,
            }
        };
        tail.numbers.push_back(tail.number);
        // One that cannot be deleted keeps no others. It is tried again with the next file.
        let mut undeleted = Vec::new();
        while undeleted.len() + tail.numbers.len() > FILES_MAX
            && tail.numbers.len() > 1
            && let Some(oldest) = tail.numbers.pop_front()
        {
            match kvtier_os::remove_file(path(oldest)) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => undeleted.push(oldest),
                // Deleted already, if a snapshot has it.
                _ => {}
            }
        }
        undeleted.into_iter().rev().for_each(|number| tail.numbers.push_front(number));
        Ok(file)
    }

    /// Continues under this name. Under another one than before, the files so far were deleted; under
    /// the same they may be there, and are deleted in their turn.
    pub fn rename(&self, name: &str) {
        let before = std::mem::replace(
            &mut *self.name.lock().unwrap_or_else(PoisonError::into_inner),
            name.to_owned(),
        );
        if before != name {
            self.file.lock().unwrap_or_else(PoisonError::into_inner).numbers.clear();
        }
        self.begin_anew();
    }

    /// Bytes written since the last snapshot.
    pub fn since_snapshot(&self) -> u64 {
        self.file.lock().unwrap_or_else(PoisonError::into_inner).since_snapshot
    }

    /// Begins a new file after a snapshot. Returns the number below which files are obsolete.
    pub fn begin_anew(&self) -> u64 {
        let mut tail = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        (tail.file, tail.bytes, tail.since_snapshot) = (None, 0, 0);
        tail.number + 1
    }
}

/// Keeps only the last of several touches of one chunk.
fn last_touches(records: impl DoubleEndedIterator<Item = Record>) -> Vec<Record> {
    let mut seen = HashSet::new();
    let mut kept: Vec<Record> = records
        .rev()
        .filter(
            |record| if let Record::Touch(digest) = record { seen.insert(*digest) } else { true },
        )
        .collect();
    kept.reverse();
    kept
}

#[cfg(test)]
mod tests {
    use kvtier_core::ManualClock;
    use kvtier_key::Digest;
    use std::fs;

    use super::*;
    use crate::use_order::Reader;
    use crate::use_order::journal_reader::names;

    #[test]
    fn a_journal_of_another_with_our_name_is_read_and_not_written_to() {
        let own = tempfile::tempdir().unwrap();
        fs::create_dir(own.path().join("journal")).unwrap();
        let digests = [Digest::derive("test", b"theirs"), Digest::derive("test", b"ours")];
        for digest in digests {
            let journal = Journal::new(own.path(), "host.1.5.0", &Clock::real());
            journal.note([Record::Touch(digest)]);
            journal.flush().unwrap();
        }
        let mut files = names(&own.path().join("journal")).unwrap();
        files.sort_unstable();
        assert_eq!(files, ["host.1.5.0.1", "host.1.5.0.2"]);
        let read = Reader::new(own.path(), 0).read(None).unwrap();
        assert!(
            read.len() == 2 && digests.iter().all(|digest| read.contains(&Record::Touch(*digest))),
            "{read:?}"
        );
    }

    #[test]
    fn batches_have_the_time_of_the_clock_that_the_tier_was_opened_with() {
        let own = tempfile::tempdir().unwrap();
        fs::create_dir(own.path().join("journal")).unwrap();
        let time = ManualClock::new();
        let journal = Journal::new(own.path(), "host.1.5.0", &time.clock());
        let digest = |n: u8| Digest([n; 32]);
        journal.note([Record::Touch(digest(1))]);
        journal.flush().unwrap();
        let between = time.clock().unix_ms();
        time.jump(std::time::Duration::from_secs(86400));
        journal.note([Record::Touch(digest(2))]);
        journal.flush().unwrap();
        let read = |from_ms| Reader::new(own.path(), from_ms).read(None).unwrap();
        assert_eq!(read(between), [Record::Touch(digest(2))]);
        assert_eq!((read(0).len(), read(between + 86_400_000).len()), (2, 0));
    }

    #[test]
    fn repeated_uses_wait_once_and_crowd_nothing_out() {
        let own = tempfile::tempdir().unwrap();
        fs::create_dir(own.path().join("journal")).unwrap();
        let journal = Journal::new(own.path(), "host.1.5.0", &Clock::real());
        let digest = |n: usize| Digest::derive("test", &n.to_le_bytes());
        let hot = [digest(0), digest(1)];
        let last = digest(2);
        for round in 1..3 {
            (0..2 * WAITING_MAX).for_each(|n| journal.note([Record::Touch(hot[n % 2])]));
            journal.note([Record::Touch(last)]);
            assert!(journal.waiting.lock().unwrap().records.capacity() <= 2 * FOLD_AT);
            journal.flush().unwrap();
            let read = Reader::new(own.path(), 0).read(None).unwrap();
            assert_eq!(read, [hot[0], hot[1], last].map(Record::Touch).repeat(round));
        }
        (0..2 * WAITING_MAX).for_each(|n| journal.note([Record::Touch(digest(n))]));
        assert_eq!(
            journal.waiting.lock().unwrap().records.len(),
            WAITING_MAX,
            "and no more of any"
        );
    }

    #[test]
    fn journals_that_are_never_merged_are_bounded_and_the_newest_stay() {
        let own = tempfile::tempdir().unwrap();
        fs::create_dir(own.path().join("journal")).unwrap();
        let journal = Journal::new(own.path(), "host.1.5.0", &Clock::real());
        let digest = |n: usize| Digest::derive("test", &n.to_le_bytes());
        for n in 0..3 * FILES_MAX {
            journal.note([Record::Touch(digest(n))]);
            journal.flush().unwrap();
            journal.begin_anew();
        }
        let read = Reader::new(own.path(), 0).read(None).unwrap();
        assert_eq!(
            read,
            (2 * FILES_MAX..3 * FILES_MAX).map(|n| Record::Touch(digest(n))).collect::<Vec<_>>()
        );
        // A file of another under a number of ours is not ours to delete, and costs none of ours.
        fs::write(own.path().join(format!("journal/host.1.5.0.{}", 3 * FILES_MAX + 1)), "")
            .unwrap();
        journal.note([Record::Touch(digest(0))]);
        journal.flush().unwrap();
        assert_eq!(names(&own.path().join("journal")).unwrap().len(), FILES_MAX + 1);
    }

    #[test]
    fn a_file_that_cannot_be_deleted_at_first_is_deleted_later() {
        let own = tempfile::tempdir().unwrap();
        let dir = own.path().join("journal");
        fs::create_dir(&dir).unwrap();
        let journal = Journal::new(own.path(), "host.1.5.0", &Clock::real());
        let begin = |files: usize| {
            for n in 0..files {
                journal.note([Record::Touch(Digest::derive("test", &n.to_le_bytes()))]);
                journal.flush().unwrap();
                journal.begin_anew();
            }
        };
        begin(FILES_MAX);
        // A part of `.kvtier` was created again, and not its journals.
        journal.rename("host.1.5.0");
        // A directory in the place of a file cannot be unlinked, by root neither.
        let oldest = dir.join("host.1.5.0.1");
        fs::remove_file(&oldest).unwrap();
        fs::create_dir(&oldest).unwrap();
        begin(1);
        fs::remove_dir(&oldest).unwrap();
        fs::write(&oldest, "").unwrap();
        // The next one was deleted in its place.
        assert!(!dir.join("host.1.5.0.2").exists());
        assert_eq!(names(&dir).unwrap().len(), FILES_MAX);
        begin(1);
        assert!(!oldest.exists());
        assert_eq!(names(&dir).unwrap().len(), FILES_MAX);
    }

    fn journal_in(own: &Path) -> Journal {
        fs::create_dir(own.join("journal")).unwrap();
        Journal::new(own, "host.1.5.0", &Clock::real())
    }

    fn touch(n: usize) -> Record {
        Record::Touch(Digest::derive("test", &n.to_le_bytes()))
    }

    #[test]
    fn superseded_records_are_dropped_when_many_wait_and_beyond_the_most_all_new_ones() {
        let mut waiting = WaitingRecords::default();
        for n in 0..FOLD_AT {
            waiting.note(touch(0));
            assert_eq!(waiting.records.len(), n + 1);
        }
        waiting.note(touch(1));
        assert_eq!((waiting.records.len(), waiting.fold_at), (2, FOLD_AT));
        // Of records that are all kept, the next pass is after as many again.
        let mut waiting = WaitingRecords { records: (0..FOLD_AT).map(touch).collect(), fold_at: 1 };
        waiting.note(touch(0));
        assert_eq!((waiting.records.len(), waiting.fold_at), (FOLD_AT + 1, 2 * FOLD_AT));
        waiting.swap(&mut Vec::new());
        assert_eq!((waiting.records.len(), waiting.fold_at), (0, FOLD_AT));
        let records = vec![touch(0); WAITING_MAX - 1];
        let mut waiting = WaitingRecords { records, fold_at: usize::MAX };
        for _ in 0..3 {
            waiting.note(touch(1));
            assert_eq!(waiting.records.len(), WAITING_MAX);
        }
    }

    #[cfg(feature = "simulate")]
    #[test]
    fn how_many_wait_is_reported() {
        let own = tempfile::tempdir().unwrap();
        let journal = journal_in(own.path());
        assert_eq!(journal.waiting_records(), (0, WAITING_MAX));
        journal.note([touch(1), touch(2), touch(2)]);
        assert_eq!(journal.waiting_records(), (3, WAITING_MAX));
        journal.flush().unwrap();
        assert_eq!(journal.waiting_records(), (0, WAITING_MAX));
    }

    #[test]
    fn a_file_that_is_longer_than_the_most_is_followed_by_another() {
        let own = tempfile::tempdir().unwrap();
        let journal = journal_in(own.path());
        let flush = |bytes_before: Option<u64>| {
            if let Some(bytes) = bytes_before {
                journal.file.lock().unwrap().bytes = bytes;
            }
            journal.note([touch(1)]);
            journal.flush().unwrap();
            names(&own.path().join("journal")).unwrap().len()
        };
        assert_eq!([flush(None), flush(None)], [1, 1]);
        let written = fs::metadata(own.path().join("journal/host.1.5.0.1")).unwrap().len();
        assert_eq!(journal.file.lock().unwrap().bytes, written);
        assert_eq!(journal.since_snapshot(), written);
        assert_eq!(flush(Some(FILE_BYTES_MAX)), 1);
        assert_eq!(flush(Some(FILE_BYTES_MAX + 1)), 2);
        assert_eq!(journal.file.lock().unwrap().bytes, written / 2, "of the new file");
        assert_eq!(journal.since_snapshot(), 2 * written, "of both");
        assert_eq!(journal.begin_anew(), 3);
        assert_eq!(journal.since_snapshot(), 0);
    }

    #[test]
    fn under_another_name_a_journal_goes_on_with_the_next_number() {
        let own = tempfile::tempdir().unwrap();
        let journal = journal_in(own.path());
        let flush = || {
            journal.note([touch(1)]);
            journal.flush().unwrap();
        };
        flush();
        journal.rename("host.2.7.0");
        assert!(journal.file.lock().unwrap().numbers.is_empty(), "they were deleted");
        flush();
        let mut files = names(&own.path().join("journal")).unwrap();
        files.sort_unstable();
        assert_eq!(files, ["host.1.5.0.1", "host.2.7.0.2"]);
    }

    #[test]
    fn the_newest_file_stays_though_no_other_can_be_deleted_and_those_that_are_gone_are_forgotten()
    {
        let own = tempfile::tempdir().unwrap();
        let journal = journal_in(own.path());
        let dir = own.path().join("journal");
        let begin = || {
            journal.note([touch(1)]);
            journal.flush().unwrap();
            journal.begin_anew();
        };
        (0..FILES_MAX).for_each(|_| begin());
        for number in 1..=FILES_MAX {
            fs::remove_file(dir.join(format!("host.1.5.0.{number}"))).unwrap();
            fs::create_dir(dir.join(format!("host.1.5.0.{number}"))).unwrap();
        }
        begin();
        assert_eq!(names(&dir).unwrap(), [format!("host.1.5.0.{}", FILES_MAX + 1)]);
        for number in 1..=FILES_MAX {
            fs::remove_dir(dir.join(format!("host.1.5.0.{number}"))).unwrap();
        }
        (0..FILES_MAX).for_each(|_| begin());
        assert_eq!(journal.file.lock().unwrap().numbers.len(), FILES_MAX);
        assert_eq!(names(&dir).unwrap().len(), FILES_MAX);
    }
}
