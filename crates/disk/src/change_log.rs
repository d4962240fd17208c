//! The change log: what the processes over one directory published and deleted, in files that all
//! of them append to and read.
//!
//! A file name holds the chunk's length, so a process cannot ask the file system for a chunk whose
//! length it does not know. Therefore each process appends a record of what it has published and
//! deleted, and reads the records of the others before it answers that a chunk is absent. Where
//! nothing is new that takes two system calls for a whole lookup, however many keys it has.
//!
//! # Records
//!
//! A record is appended after the change that it names, and it is only a hint: the reader asks the
//! file system whether that file exists, and takes the answer into its index. So records may be
//! read twice, and in any order. When a reader has read every record, its index agrees
//! with the directory: the last change of each file is followed by a record, and the file did not
//! change after that record was compared.
//!
//! # Segments
//!
//! The log is a sequence of files `.kvtier/changes.<number>`. Each holds journal frames with
//! checksums of their own, and a batch is appended with one write (`O_APPEND`), so that batches do
//! not mix. The first number is the time in milliseconds, so that a number is not used again should
//! `.kvtier` be deleted. It is created under the registration lock: there must be only one. A writer
//! that finds the newest segment long creates the next number with `O_EXCL`, then deletes all but
//! the last two, the oldest first. Nothing is renamed and, on a local file system, nothing else is
//! locked: a process that is stopped at any point holds up no other. If it holds the lock and there
//! is no segment, records wait in memory.
//!
//! A *writer*, after each append to segment n, checks (1) that segment n+1 does not exist and (2)
//! that segment n still has its name. If either fails, it appends the same batch again to the
//! newest segment.
//!
//! A *reader* that holds segment n opens segment n+1 first, then checks that n still has its name,
//! then reads n to its end, and only then goes on with n+1.
//!
//! No record is lost between them. Let a batch be appended to n and not again. Its writer found (1)
//! no n+1, and then (2) that n was still named. Segments are deleted in ascending order, so at (2)
//! n+1 had not been deleted either, and at (1) it had not been created. A reader leaves n only
//! after it found n+1, which was later than (1), and it reads n to the end after that. So it reads
//! the batch.
//!
//! A writer that was stopped before it created n+1 may do so when n and n+1 were deleted long ago.
//! No reader takes that file for the real n+1: it goes on to n+1 only while n has its name, and
//! then n+1 cannot have been deleted before. Numbers after which one is missing are deleted once in
//! a tick ([`delete_strays`](ChangeLog::delete_strays)).
//!
//! # Gaps
//!
//! A reader counts what it misses ([`has_missed`](ChangeLog::has_missed)), and the owner then lists
//! the directory, which is the truth:
//!
//! - The segment that it holds lost its name: it was slow by more than a whole segment, or
//!   `.kvtier` was deleted.
//! - There was no segment when it opened the log, and it finds one.
//! - A batch is torn and a whole one follows, or its segment has a successor, or it stays torn for
//!   a second.
//! - A writer reports that it dropped records (the record [`LOST`]): it could not append for long,
//!   or it found that another process died, which may have published chunks without a record.
//! - The log cannot be read.
//!
//! A miss is settled only by a listing that began after it and succeeded. What changes during the
//! listing is covered by reading the log again from where it was when the listing began
//! ([`position`](ChangeLog::position), [`rewind`](ChangeLog::rewind)).
//!
//! # Network mounts
//!
//! There an append would cost a round trip for each save, and `O_APPEND` of two hosts is not
//! atomic. Appends are collected and written once in a tick, under a lock on the segment. A lock
//! that another process keeps is not waited for twice: after three seconds the writer creates the
//! next segment, and the other appends its batch again when it goes on. Saves and lookups never
//! wait for that lock.

mod append;
mod follower;
mod pending;
mod segment;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvtier_core::Clock;
use kvtier_index::journal::Record;
use kvtier_key::Digest;

use self::follower::Held;
use self::pending::Pending;
use self::segment::Segment;

/// A longer segment is followed by a new one.
const SEGMENT_BYTES_MAX: u64 = 4 << 20;
/// The most slices that one call reads; two long segments have about 130. What is appended faster
/// than it is read must not keep a caller.
const STEPS_MAX: usize = 1024;
/// In the change log a touch of this digest means: records are missing here, list the directory.
const LOST: Record = Record::Touch(Digest([0; 32]));

/// The change log of one directory, as one tier uses it.
#[derive(Debug)]
pub struct ChangeLog {
    /// The directory `.kvtier`.
    own: PathBuf,
    /// Locks and file attributes concern this machine alone.
    is_local: bool,
    clock: Clock,
    segment_bytes_max: u64,
    pending: Mutex<Pending>,
    /// The segment that this process appends to. Held during appends.
    writer: Mutex<Option<Segment>>,
    follower: Mutex<Option<Held>>,
    /// How often records were missed, and how often that was when the last listing began that
    /// succeeded.
    missed: AtomicU64,
    settled: AtomicU64,
    is_failing: AtomicBool,
}

/// What reading the log came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Followed {
    /// How many records were applied.
    pub records: usize,
    /// There is more than was to be read.
    pub is_more: bool,
}

/// A place in the log, to which a reader can go back.
#[derive(Debug)]
pub struct Position(Option<(Arc<Segment>, u64)>);

/// How one step of reading ended.
enum Step {
    /// All was read.
    Done,
    /// There may be more.
    Again,
    /// There is more than was to be read.
    TooMuch,
}

impl ChangeLog {
    /// The log below `.kvtier`, read from its present end on. To be opened before the directory is
    /// listed. A process that may write [creates](Self::create) it before that.
    pub fn open(own: &Path, is_local: bool, clock: &Clock) -> Self {
        let log = ChangeLog {
            own: own.to_owned(),
            is_local,
            clock: clock.clone(),
            segment_bytes_max: SEGMENT_BYTES_MAX,
            pending: Mutex::default(),
            writer: Mutex::default(),
            follower: Mutex::default(),
            missed: AtomicU64::new(0),
            settled: AtomicU64::new(0),
            is_failing: AtomicBool::new(false),
        };
        let at_end = Segment::newest(own).and_then(|newest| {
            let Some(newest) = newest else { return Ok(None) };
            let read_to = newest.file.metadata()?.len();
            Ok(Some(Held::new(Arc::new(newest), read_to)))
        });
        match at_end {
            Ok(held) => *log.follower() = held,
            Err(_) => log.note_missed(),
        }
        log
    }

    /// Creates the log's first segment, so that readers hold one from the start. The caller holds the
    /// registration lock.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn create(own: &Path, clock: &Clock) -> io::Result<()> {
        segment::create_first(own, clock.unix_ms())
    }

    /// Whether what another process appended is seen at once.
    pub fn is_prompt(&self) -> bool {
        self.is_local
    }

    /// Continues in the log of another directory. All of its records count as missed.
    pub fn begin_anew(&self) {
        *self.writer.lock().unwrap_or_else(PoisonError::into_inner) = None;
        *self.follower() = None;
        self.note_missed();
    }

    /// Appends what this process has just done. What cannot be appended now is with the next
    /// [`flush`](Self::flush).
    pub fn append(&self, record: Record) {
        self.pending().push(record);
        if self.is_local {
            // `flush` reports a failure.
            let _ = self.flush();
        }
    }

    /// Appends, with the next [`flush`](Self::flush), that records are missing: all processes, this
    /// one too, list the directory.
    pub fn append_lost(&self) {
        self.pending().lost = true;
        self.note_missed();
    }

    /// Appends what waits.
    ///
    /// # Errors
    /// Those of the file system; waiting records stay, or are appended twice.
    pub fn flush(&self) -> io::Result<()> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let batch = std::mem::take(&mut *self.pending());
        if batch.records.is_empty() && !batch.lost {
            return Ok(());
        }
        match self.append_batch(&mut writer, &batch) {
            Ok(number) => number.map_or(Ok(()), |number| self.begin_next(number)),
            Err(e) => {
                self.pending().put_back(batch);
                Err(e)
            }
        }
    }

    /// Whether something waits to be appended.
    pub fn has_pending(&self) -> bool {
        let pending = self.pending();
        pending.lost || !pending.records.is_empty()
    }

    /// Calls `apply` with what was appended since the last call: all of it, or, where that is more
    /// than `bytes_max`, nothing. Records that this process appended may be among it. Callers
    /// wait for one another, but for no more than one slice of a long log.
    ///
    /// # Errors
    /// Those of the file system. What cannot be read counts as missed, and the next call goes on behind it.
    pub fn follow(&self, bytes_max: u64, mut apply: impl FnMut(&Record)) -> io::Result<Followed> {
        let mut followed = Followed::default();
        for _ in 0..STEPS_MAX {
            let step = self.step(bytes_max, &mut followed, &mut apply);
            if step.is_err() {
                self.note_missed();
                self.give_up_held();
            }
            match step? {
                Step::Done => return Ok(followed),
                Step::Again => {}
                Step::TooMuch => break,
            }
        }
        Ok(Followed { is_more: true, ..followed })
    }

    /// Deletes segments after whose number one is missing: they belong to no log that is read to
    /// its end.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn delete_strays(&self) -> io::Result<()> {
        let before_gap = segment::last_before_gap(&segment::numbers(&self.own)?);
        before_gap.map_or(Ok(()), |number| segment::delete_up_to(&self.own, number))
    }

    /// How often records were missed so far: to be given to [`settle`](Self::settle) after a
    /// listing that began now.
    pub fn missed(&self) -> u64 {
        self.missed.load(Ordering::Acquire)
    }

    /// Whether records were missed, and no listing since shows what they said.
    pub fn has_missed(&self) -> bool {
        self.settled.load(Ordering::Acquire) < self.missed()
    }

    /// Notes that a listing succeeded which began when [`missed`](Self::missed) had this value.
    pub fn settle(&self, missed: u64) {
        self.settled.fetch_max(missed, Ordering::AcqRel);
    }

    /// Notes whether reading fails. Answers whether that has just begun, so that it is reported
    /// once.
    pub fn begins_to_fail(&self, is_failing: bool) -> bool {
        !self.is_failing.swap(is_failing, Ordering::Relaxed) && is_failing
    }

    /// How far the log is read.
    pub fn position(&self) -> Position {
        Position(self.follower().as_ref().map(|held| (Arc::clone(&held.segment), held.read_to)))
    }

    /// Reads on from an earlier position.
    pub fn rewind(&self, to: Position) {
        let mut follower = self.follower();
        let reported = follower.as_ref().and_then(Held::reported);
        *follower =
            to.0.map(|(segment, read_to)| Held::new(segment, read_to).with_reported(reported));
    }

    /// Notes that records were missed, or could not be compared with the files.
    pub fn note_missed(&self) {
        self.missed.fetch_add(1, Ordering::AcqRel);
    }

    /// How many records wait to be appended, and how many may.
    #[cfg(feature = "simulate")]
    pub fn pending_records(&self) -> (usize, usize) {
        (self.pending().records.len(), pending::pending_max())
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn follower(&self) -> MutexGuard<'_, Option<Held>> {
        self.follower.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One slice of one segment, or the way to the next.
    fn step(
        &self,
        bytes_max: u64,
        followed: &mut Followed,
        apply: &mut dyn FnMut(&Record),
    ) -> io::Result<Step> {
        let mut follower = self.follower();
        let Some(held) = follower.as_mut() else {
            let Some(oldest) = Segment::oldest(&self.own)? else { return Ok(Step::Done) };
            self.note_missed();
            *follower = Some(Held::new(Arc::new(oldest), 0));
            return Ok(Step::Again);
        };
        // First of all: see the module's text.
        let next = match held.segment.has_successor(&self.own)? {
            true => Segment::open(&self.own, held.segment.number + 1)?,
            false => None,
        };
        let extent = held.segment.extent(&self.own, self.is_local)?;
        let next_len =
            next.as_ref().map_or(Ok(0), |next| next.file.metadata().map(|meta| meta.len()))?;
        // A torn batch that was looked at is not new.
        let torn = if held.is_torn() { extent.len - extent.len.min(held.read_to) } else { 0 };
        if (extent.len + next_len).saturating_sub(held.read_to + torn) > bytes_max {
            return Ok(Step::TooMuch);
        }
        if extent.len < held.read_to {
            // Cut short from outside.
            held.read_to = extent.len;
            self.note_missed();
        }
        let read = held.read_slice(extent.len, &self.clock, apply)?;
        followed.records += read.records;
        if read.missed {
            self.note_missed();
        }
        if held.read_to < extent.len && !held.is_torn() {
            return Ok(Step::Again);
        }
        if !extent.is_linked {
            self.note_missed();
            *follower = None;
            return Ok(Step::Again);
        }
        let Some(next) = next else { return Ok(Step::Done) };
        // A batch that is torn now is appended again to the next segment, unless its writer died.
        if held.is_torn() {
            self.note_missed();
        }
        *follower = Some(Held::new(Arc::new(next), 0));
        Ok(Step::Again)
    }

    /// What is left of a segment that cannot be read is passed over.
    fn give_up_held(&self) {
        let mut follower = self.follower();
        let end = follower.as_ref().map(|held| held.segment.extent(&self.own, self.is_local));
        match (end, &mut *follower) {
            (Some(Ok(extent)), Some(held)) => held.read_to = held.read_to.max(extent.len),
            _ => *follower = None,
        }
    }
}
