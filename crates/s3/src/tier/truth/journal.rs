//! What this node used, saved and removed, until it is written to the bucket: one object at a time, each a file of kvtier-index's journal
//! format.

use std::collections::{HashSet, VecDeque};
use std::sync::{Mutex, PoisonError};

use kvtier_index::journal::{self as format, Record};

/// The most records that wait to be written; beyond, the oldest touches are worth least and go first.
const WAITING_MAX: usize = 1 << 16;
/// So many go at once, so that the most recent do not each look for one.
const SHED: usize = WAITING_MAX / 4;
/// A journal object is never longer: 65,536 records of at most 65 bytes, and the heads of their frames.
pub const OBJECT_BYTES_MAX: usize = 5 << 20;
/// The most objects of one node that wait to be merged; beyond, the oldest is deleted.
pub const OBJECTS_MAX: usize = 64;

/// This node's journal.
#[derive(Debug, Default)]
pub struct Journal(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    records: Vec<Record>,
    /// The number of the next object.
    next: u64,
    /// Numbers of objects that were written and may still be there.
    written: VecDeque<u64>,
    /// All records there ever were.
    noted: u64,
}

impl Journal {
    /// Notes what happened, in the order of use.
    pub fn note(&self, records: impl IntoIterator<Item = Record>) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for record in records {
            if waiting.records.len() == WAITING_MAX {
                waiting.shrink();
            }
            waiting.records.push(record);
            waiting.noted += 1;
        }
    }

    /// How much was noted in all.
    pub fn noted(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).noted
    }

    /// What is to be written now: the object's number, and its records. `None` when nothing happened.
    pub fn take(&self) -> Option<(u64, Vec<Record>)> {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let records = last_touches(std::mem::take(&mut waiting.records));
        if records.is_empty() {
            return None;
        }
        waiting.next += 1;
        Some((waiting.next, records))
    }

    /// The object was written. Answers the number of one that is too many.
    pub fn wrote(&self, number: u64) -> Option<u64> {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.written.push_back(number);
        (waiting.written.len() > OBJECTS_MAX).then(|| waiting.written.pop_front()).flatten()
    }

    /// It could not be written: its records wait for the next, before what happened since.
    pub fn give_back(&self, records: Vec<Record>) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let since = std::mem::replace(&mut waiting.records, records);
        waiting.records.extend(since);
        if waiting.records.len() > WAITING_MAX {
            waiting.shrink();
        }
    }
}

impl Waiting {
    /// Of several touches of one chunk the last stays; if that is not enough, the oldest touches go, and then the oldest of all.
    fn shrink(&mut self) {
        self.records = last_touches(std::mem::take(&mut self.records));
        for touches_only in [true, false] {
            let mut over = self.records.len().saturating_sub(WAITING_MAX - SHED);
            self.records.retain(|record| {
                let goes = over > 0 && (!touches_only || matches!(record, Record::Touch(_)));
                over -= usize::from(goes);
                !goes
            });
        }
    }
}

/// The object's bytes.
pub fn encode(at_ms: u64, records: &[Record]) -> Vec<u8> {
    let mut bytes = Vec::new();
    format::encode(at_ms, records, &mut bytes);
    bytes
}

/// Of several touches of one chunk the last is enough.
fn last_touches(records: Vec<Record>) -> Vec<Record> {
    let mut seen = HashSet::new();
    let mut kept: Vec<Record> = records
        .into_iter()
        .rev()
        .filter(|record| if let Record::Touch(digest) = record { seen.insert(*digest) } else { true })
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
        Digest::of("test", &n.to_le_bytes())
    }

    #[test]
    fn touches_are_aggregated_and_what_could_not_be_written_waits() {
        let journal = Journal::default();
        assert_eq!(journal.take(), None);
        let (a, b) = (digest(1), digest(2));
        journal.note([Record::Touch(a), Record::Touch(b), Record::Remove(b), Record::Touch(a)]);
        let (number, records) = journal.take().unwrap();
        assert_eq!((number, records.as_slice()), (1, &[Record::Touch(b), Record::Remove(b), Record::Touch(a)][..]));
        journal.note([Record::Touch(b)]);
        journal.give_back(records);
        let (number, records) = journal.take().unwrap();
        assert_eq!((number, records), (2, vec![Record::Remove(b), Record::Touch(a), Record::Touch(b)]));
        assert_eq!(journal.take(), None);
    }

    #[test]
    fn it_is_bounded_in_memory_and_in_the_bucket_and_forgets_old_touches_first() {
        let journal = Journal::default();
        let chunk = Chunk::new(digest(0), 1, 1);
        journal.note([Record::Insert(chunk)]);
        journal.note((1..=200_000).map(|n| Record::Touch(digest(n))));
        let (_, records) = journal.take().unwrap();
        assert!(records.len() <= WAITING_MAX && records.contains(&Record::Insert(chunk)));
        assert_eq!(records.last(), Some(&Record::Touch(digest(200_000))));
        assert!(!records.contains(&Record::Touch(digest(1))));
        journal.note((0..200_000).map(|n| Record::Insert(Chunk::new(digest(n), 1, 1))));
        let (_, records) = journal.take().unwrap();
        assert!(records.len() <= WAITING_MAX, "{}", records.len());
        assert!(encode(1, &records).len() <= OBJECT_BYTES_MAX);
        let too_many: Vec<u64> = (1..=OBJECTS_MAX as u64 + 2).filter_map(|number| journal.wrote(number)).collect();
        assert_eq!(too_many, [1, 2]);
    }
}
