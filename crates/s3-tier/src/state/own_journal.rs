//! What this node used, saved and deleted, until it is written to the bucket: one object at a time,
//! in kvtier-index's journal format.

use std::collections::{HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use kvtier_index::journal::{self as format, Record};
use tokio::time::Instant;

/// The most records that wait to be written. Beyond, the oldest touches are dropped first.
pub const WAITING_MAX: usize = 1 << 16;
/// Records that are dropped at once, so that not each new one has to search.
const DROPPED_AT_ONCE: usize = WAITING_MAX / 4;
/// Times are recorded in steps of this many milliseconds.
const STEP_MS: u64 = 250;
/// The most different times in an object. After a long wait steps become longer.
const TIMES_MAX: usize = 1 << 14;
/// The most bytes of an object: 65,536 records of at most 77 bytes, and the headers of their
/// frames.
pub const OBJECT_BYTES_MAX: usize = 6 << 20;
/// The most objects of a node that wait to be merged. Beyond, the oldest is deleted.
pub const OBJECTS_MAX: usize = 64;

/// This node's journal.
#[derive(Debug)]
pub struct NodeJournal {
    began: Instant,
    unwritten: Mutex<Unwritten>,
}

/// A record, with its step since the journal began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimedRecord {
    step: u32,
    record: Record,
}

/// How much of a journal waits.
#[cfg(feature = "simulate")]
#[derive(Clone, Copy, Debug)]
pub struct JournalLengths {
    /// Records that are not written.
    pub waiting: usize,
    /// Objects that are not merged, as far as this node remembers.
    pub written: usize,
}

#[derive(Debug, Default)]
struct Unwritten {
    records: Vec<TimedRecord>,
    /// The number of the next object.
    next: u64,
    /// Numbers of the last objects that were written.
    written: VecDeque<u64>,
    /// The last object that was deleted for the maximum, after all before it.
    deleted: u64,
    /// Records since the start.
    noted: u64,
}

impl Default for NodeJournal {
    fn default() -> Self {
        NodeJournal { began: Instant::now(), unwritten: Mutex::default() }
    }
}

impl NodeJournal {
    /// Records what happened now, in the order of use.
    pub fn note(&self, records: impl IntoIterator<Item = Record>) {
        let mut unwritten = self.unwritten();
        let step = (self.now_ms() / STEP_MS) as u32;
        for record in records {
            if unwritten.records.len() == WAITING_MAX {
                unwritten.shrink();
            }
            unwritten.records.push(TimedRecord { step, record });
            unwritten.noted += 1;
        }
    }

    /// How many records there were in total.
    pub fn noted(&self) -> u64 {
        self.unwritten().noted
    }

    /// How much waits.
    #[cfg(feature = "simulate")]
    pub fn lengths(&self) -> JournalLengths {
        let unwritten = self.unwritten();
        JournalLengths { waiting: unwritten.records.len(), written: unwritten.written.len() }
    }

    /// Takes the records for the next object, with its number; `None` if there are none.
    pub fn take(&self) -> Option<(u64, Vec<TimedRecord>)> {
        let mut unwritten = self.unwritten();
        // Only the last use of a chunk matters to the order, and a busy chunk is used in each
        // interval.
        let records = last_touches(std::mem::take(&mut unwritten.records));
        if records.is_empty() {
            return None;
        }
        unwritten.next += 1;
        Some((unwritten.next, records))
    }

    /// The records that are not written yet, in their order.
    pub fn waiting_records(&self) -> Vec<Record> {
        self.unwritten().records.iter().map(|noted| noted.record).collect()
    }

    /// The object's bytes. `at_ms` is now, in Unix milliseconds by the store's clock.
    pub fn encode(&self, at_ms: u64, records: &[TimedRecord]) -> Vec<u8> {
        encode(at_ms, self.now_ms(), records)
    }

    /// The object was written.
    pub fn wrote(&self, number: u64) {
        let mut unwritten = self.unwritten();
        unwritten.written.push_back(number);
        if unwritten.written.len() > OBJECTS_MAX {
            unwritten.written.pop_front();
        }
    }

    /// The oldest object beyond the maximum, to be deleted. It may be one whose answer was lost.
    pub fn beyond_max(&self) -> Option<u64> {
        let unwritten = self.unwritten();
        let is_full = unwritten.written.len() == OBJECTS_MAX;
        let first = unwritten.written.front().filter(|_| is_full);
        let oldest = unwritten.deleted + 1;
        first.is_some_and(|first| oldest < *first).then_some(oldest)
    }

    /// This object, the oldest, is deleted.
    pub fn deleted(&self, number: u64) {
        self.unwritten().deleted = number;
    }

    /// The object was not written: its records go into the next one, before newer records.
    pub fn restore(&self, records: Vec<TimedRecord>) {
        let mut unwritten = self.unwritten();
        // Records were added while the object was being written.
        let since = std::mem::replace(&mut unwritten.records, records);
        unwritten.records.extend(since);
        if unwritten.records.len() > WAITING_MAX {
            unwritten.shrink();
        }
    }

    fn unwritten(&self) -> MutexGuard<'_, Unwritten> {
        self.unwritten.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }
}

impl Unwritten {
    /// Keeps the last of several touches of a chunk. If that is not enough, drops the oldest
    /// touches, then the oldest records.
    fn shrink(&mut self) {
        self.records = last_touches(std::mem::take(&mut self.records));
        // A lost touch costs a little order; a lost save or delete is found only by the next
        // listing.
        for touches_only in [true, false] {
            let mut over = self.records.len().saturating_sub(WAITING_MAX - DROPPED_AT_ONCE);
            self.records.retain(|noted| {
                let goes = over > 0 && (!touches_only || matches!(noted.record, Record::Touch(_)));
                over -= usize::from(goes);
                !goes
            });
        }
    }
}

/// An object's bytes: a batch for each step with its own time. Now is `at_ms` for the store, and
/// `now_ms` since the journal began.
fn encode(at_ms: u64, now_ms: u64, records: &[TimedRecord]) -> Vec<u8> {
    let mut width = 1;
    // Each time costs a frame with its header, which would pass the limit of an object.
    while runs(records, width).count() > TIMES_MAX {
        width *= 2;
    }
    let mut bytes = Vec::new();
    for run in runs(records, width) {
        // A longer step has the time of its end: what was deleted existed until then.
        let ago_ms =
            run.last().map_or(0, |noted| now_ms.saturating_sub(u64::from(noted.step) * STEP_MS));
        let some: Vec<Record> = run.iter().map(|noted| noted.record).collect();
        format::encode(at_ms.saturating_sub(ago_ms), &some, &mut bytes);
    }
    bytes
}

/// The records of each step of this width.
fn runs(records: &[TimedRecord], width: u32) -> impl Iterator<Item = &[TimedRecord]> {
    records.chunk_by(move |a, b| a.step / width == b.step / width)
}

/// Keeps the last of several touches of a chunk.
fn last_touches(records: Vec<TimedRecord>) -> Vec<TimedRecord> {
    let mut seen = HashSet::new();
    let mut kept: Vec<TimedRecord> =
        records
            .into_iter()
            .rev()
            .filter(|noted| {
                if let Record::Touch(digest) = noted.record { seen.insert(digest) } else { true }
            })
            .collect();
    kept.reverse();
    kept
}

#[cfg(test)]
mod tests {
    use kvtier_index::Chunk;
    use kvtier_key::Digest;

    use super::*;

    fn digest(n: usize) -> Digest {
        Digest::derive("test", &n.to_le_bytes())
    }

    fn plain(records: &[TimedRecord]) -> Vec<Record> {
        records.iter().map(|noted| noted.record).collect()
    }

    fn at(step: usize, n: usize) -> TimedRecord {
        TimedRecord { step: step as u32, record: Record::Insert(Chunk::new(digest(n), 1, 1)) }
    }

    #[tokio::test(start_paused = true)]
    async fn records_have_their_times() {
        let records = [at(0, 1), at(0, 2), at(4, 3), at(120, 4)];
        let bytes = encode(1_000_000, 30_500, &records);
        let decoded: Vec<(u64, usize)> =
            format::decode(&bytes).map(|batch| (batch.at_ms, batch.records.len())).collect();
        assert_eq!(decoded, [(969_500, 2), (970_500, 1), (999_500, 1)]);
        let journal = NodeJournal::default();
        journal.note([Record::Touch(digest(1))]);
        tokio::time::advance(std::time::Duration::from_millis(2 * STEP_MS)).await;
        journal.note([Record::Touch(digest(2))]);
        let (_, records) = journal.take().unwrap();
        let bytes = journal.encode(1_000_000, &records);
        let decoded: Vec<u64> = format::decode(&bytes).map(|batch| batch.at_ms).collect();
        assert!(decoded == [1_000_000 - 2 * STEP_MS, 1_000_000], "{decoded:?}");
    }

    #[test]
    fn an_object_that_waited_for_hours_stays_below_the_maximum() {
        let records: Vec<TimedRecord> = (0..WAITING_MAX).map(|n| at(n, n)).collect();
        let bytes = encode(1 << 40, 1 << 30, &records);
        assert!(bytes.len() <= OBJECT_BYTES_MAX, "{}", bytes.len());
        let decoded: Vec<Record> = format::decode(&bytes).flat_map(|batch| batch.records).collect();
        assert!(
            decoded == plain(&records)
                && format::decode(&bytes).is_sorted_by_key(|batch| batch.at_ms)
        );
    }

    #[test]
    fn touches_are_merged_and_unwritten_records_wait() {
        let journal = NodeJournal::default();
        assert_eq!(journal.take(), None);
        let a = digest(1);
        let b = digest(2);
        journal.note([Record::Touch(a), Record::Touch(b), Record::Remove(b), Record::Touch(a)]);
        let (number, records) = journal.take().unwrap();
        assert_eq!(
            (number, plain(&records)),
            (1, vec![Record::Touch(b), Record::Remove(b), Record::Touch(a)])
        );
        journal.note([Record::Touch(b)]);
        journal.restore(records);
        let (number, records) = journal.take().unwrap();
        assert_eq!(
            (number, plain(&records)),
            (2, vec![Record::Remove(b), Record::Touch(a), Record::Touch(b)])
        );
        assert_eq!(journal.take(), None);
    }

    #[test]
    fn it_is_bounded_in_memory_and_in_the_bucket_and_drops_old_touches_first() {
        let journal = NodeJournal::default();
        let chunk = Chunk::new(digest(0), 1, 1);
        journal.note([Record::Insert(chunk)]);
        journal.note((1..=200_000).map(|n| Record::Touch(digest(n))));
        let (_, records) = journal.take().unwrap();
        let records = plain(&records);
        assert!(records.len() <= WAITING_MAX && records.contains(&Record::Insert(chunk)));
        assert_eq!(records.last(), Some(&Record::Touch(digest(200_000))));
        assert!(!records.contains(&Record::Touch(digest(1))));
        journal.note((0..200_000).map(|n| Record::Insert(Chunk::new(digest(n), 1, 1))));
        let (_, records) = journal.take().unwrap();
        assert!(records.len() <= WAITING_MAX, "{}", records.len());
        assert!(journal.encode(1, &records).len() <= OBJECT_BYTES_MAX);
    }

    #[test]
    fn the_oldest_objects_go_until_the_store_has_deleted_them_and_those_whose_answer_was_lost() {
        let journal = NodeJournal::default();
        let max = OBJECTS_MAX as u64;
        // The second one has no answer.
        (1..=max + 1).filter(|number| *number != 2).for_each(|number| journal.wrote(number));
        assert_eq!(journal.beyond_max(), None);
        journal.wrote(max + 2);
        assert_eq!(journal.beyond_max(), Some(1));
        journal.wrote(max + 3);
        assert_eq!(journal.beyond_max(), Some(1), "it was not deleted");
        for number in 1..=3 {
            assert_eq!(journal.beyond_max(), Some(number));
            journal.deleted(number);
        }
        assert_eq!(journal.beyond_max(), None);
    }

    fn inserts(count: usize) -> Vec<TimedRecord> {
        let chunk = Chunk::new(digest(0), 1, 1);
        vec![TimedRecord { step: 0, record: Record::Insert(chunk) }; count]
    }

    #[tokio::test(start_paused = true)]
    async fn the_age_of_a_record_is_that_since_it_was_noted() {
        let journal = NodeJournal::default();
        tokio::time::advance(std::time::Duration::from_millis(3 * STEP_MS)).await;
        journal.note([Record::Touch(digest(1))]);
        tokio::time::advance(std::time::Duration::from_millis(2 * STEP_MS)).await;
        let (_, records) = journal.take().unwrap();
        let bytes = journal.encode(1_000_000, &records);
        let decoded: Vec<u64> = format::decode(&bytes).map(|batch| batch.at_ms).collect();
        assert_eq!(decoded, [1_000_000 - 2 * STEP_MS]);
    }

    #[test]
    fn waiting_records_are_as_they_were_noted() {
        let journal = NodeJournal::default();
        let touch = Record::Touch(digest(1));
        journal.note([touch; 3]);
        assert_eq!((journal.waiting_records(), journal.noted()), (vec![touch; 3], 3));
        let records = std::mem::take(&mut journal.unwritten().records);
        journal.restore(records);
        assert_eq!(journal.waiting_records(), [touch; 3]);
    }

    #[test]
    fn a_part_is_dropped_once_more_records_wait_than_may() {
        let journal = NodeJournal::default();
        let waiting = || journal.unwritten().records.len();
        journal.restore(inserts(WAITING_MAX));
        assert_eq!(waiting(), WAITING_MAX);
        journal.restore(inserts(1));
        assert_eq!(waiting(), WAITING_MAX - DROPPED_AT_ONCE);
        journal.note(plain(&inserts(DROPPED_AT_ONCE)));
        assert_eq!(waiting(), WAITING_MAX);
        journal.note(plain(&inserts(1)));
        assert_eq!(waiting(), WAITING_MAX - DROPPED_AT_ONCE + 1);
    }

    #[test]
    fn steps_double_where_an_object_would_have_too_many_times() {
        let batches = |count: usize| {
            let records: Vec<TimedRecord> = (0..count).map(|n| at(n, 0)).collect();
            format::decode(&encode(1 << 40, 1 << 30, &records)).count()
        };
        assert_eq!(batches(TIMES_MAX), TIMES_MAX);
        assert_eq!(batches(TIMES_MAX + 1), TIMES_MAX / 2 + 1);
    }

    #[test]
    fn a_run_has_the_records_of_one_step_of_its_width() {
        let records: Vec<TimedRecord> = (0..7).map(|step| at(step, 0)).collect();
        let lengths = |width| runs(&records, width).map(<[_]>::len).collect::<Vec<_>>();
        assert_eq!([lengths(2), lengths(4)], [vec![2, 2, 2, 1], vec![4, 3]]);
    }

    #[cfg(feature = "simulate")]
    #[test]
    fn a_simulation_sees_how_much_waits() {
        let journal = NodeJournal::default();
        journal.restore(inserts(3));
        (1..=2).for_each(|number| journal.wrote(number));
        assert_eq!((journal.lengths().waiting, journal.lengths().written), (3, 2));
    }
}
