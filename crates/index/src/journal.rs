//! The journal of one process: what it used, entered and removed, in batches that are appended
//! every few seconds.
//!
//! A batch is one or more frames of at most 1 MiB, each with its own checksum; the order of records
//! in it is the order of use. A record is a kind (u8) and its fields: 1 touch (digest), 2 remove
//! (digest), 3 insert (digest 32 bytes, length u64, bytes u64, parent's tag u64 or 0, depth u32,
//! tenant 16 bytes; 4 in frames of version 1, which say nothing). A process appends to a journal of
//! its own, so nothing follows a torn tail: reading stops there. The number in a frame's header is
//! the [mark](snapshot_mark) of the snapshot after which it was written, or 0.

use kvtier_key::Digest;

use crate::chunk_record::{CHUNK_BYTES, ChunkEncoding, put_chunk};
use crate::fields::FieldReader;
use crate::frame::{self, BODY_BYTES_MAX, Frame, FrameHeader, Frames};
use crate::{Chunk, ReadEnd};

const MAGIC: [u8; 4] = *b"KVTJ";
/// The most records in one frame.
// As if each record were the longest kind: a frame then never exceeds its bound, whatever is in it.
const RECORDS_MAX: usize = BODY_BYTES_MAX / (1 + CHUNK_BYTES);

/// The same as a frame of this form has.
fn records_max(form: ChunkEncoding) -> usize {
    BODY_BYTES_MAX / (1 + form.chunk_bytes())
}

// Numbers on media: never reused for another kind.
const TOUCH: u8 = 1;
const REMOVE: u8 = 2;
const INSERT: u8 = 3;

/// One thing that happened to a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Record {
    /// It was used.
    Touch(Digest),
    /// It was evicted or removed.
    Remove(Digest),
    /// It was saved.
    Insert(Chunk),
}

/// Records that were written together.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordBatch {
    /// When they were written: Unix time in milliseconds.
    pub at_ms: u64,
    /// The [mark](snapshot_mark) of the snapshot after which they were written, as far as their
    /// writer saw; 0 where it saw none.
    pub follows: u32,
    /// The records, in the order of use; at least one.
    pub records: Vec<Record>,
}

/// What batches name a snapshot by: the low bits of the time at which it was taken, in Unix
/// milliseconds.
pub fn snapshot_mark(at_ms: u64) -> u32 {
    at_ms as u32
}

/// Appends `records` to `out`, as one batch for each 13,617 of them; none for none.
///
/// ```
/// use kvtier_index::journal::{self, Record};
/// use kvtier_key::Digest;
///
/// let used = Digest::derive("example", b"used");
/// let gone = Digest::derive("example", b"gone");
/// let records = [Record::Touch(used), Record::Remove(gone)];
/// let mut file = Vec::new();
/// journal::encode(1_790_000_000_000, &records, &mut file);
/// journal::encode(1_790_000_005_000, &records[..1], &mut file);
///
/// // The second batch is torn: the first one is read, nothing is invented.
/// let batches: Vec<_> = journal::decode(&file[..file.len() - 1]).collect();
/// assert_eq!(batches.len(), 1);
/// assert_eq!(batches[0].records, records);
/// ```
pub fn encode(at_ms: u64, records: &[Record], out: &mut Vec<u8>) {
    encode_after(0, at_ms, records, out);
}

/// The same for records that are written after the snapshot with the mark `follows`. They are not
/// in it, whatever its clock said.
pub fn encode_after(follows: u32, at_ms: u64, records: &[Record], out: &mut Vec<u8>) {
    // Each frame has a checksum of its own, so a torn write loses the last frame and not all
    // records.
    for records in records.chunks(RECORDS_MAX) {
        frame::encode(FrameHeader { magic: MAGIC, flags: 0, at_ms, number: follows }, out, |out| {
            records.iter().for_each(|record| put(record, out));
            records.len() as u32
        });
    }
}

/// Reads the batches in `bytes`, in order, until the end or the first fault. Any bytes may be
/// given.
pub fn decode(bytes: &[u8]) -> RecordBatches<'_> {
    RecordBatches { frames: Frames::new(MAGIC, bytes), end: None }
}

/// The batches of a journal. Holds one batch at a time.
#[derive(Clone, Debug)]
pub struct RecordBatches<'a> {
    frames: Frames<'a>,
    end: Option<ReadEnd>,
}

impl RecordBatches<'_> {
    /// Where reading stopped; `None` before it did.
    pub fn end(&self) -> Option<ReadEnd> {
        self.end
    }
}

impl Iterator for RecordBatches<'_> {
    type Item = RecordBatch;

    fn next(&mut self) -> Option<RecordBatch> {
        if self.end.is_some() {
            return None;
        }
        // Peeked and not taken: a frame with a valid checksum but wrong records must be reported at
        // its beginning.
        let read = self.frames.peek().and_then(|frame| match records(&frame) {
            Some(records) => Ok((frame, records)),
            None => Err(self.frames.torn()),
        });
        match read {
            Ok((frame, records)) => {
                self.frames.advance(&frame);
                Some(RecordBatch { at_ms: frame.head.at_ms, follows: frame.head.number, records })
            }
            Err(end) => {
                self.end = Some(end);
                None
            }
        }
    }
}

fn put(record: &Record, out: &mut Vec<u8>) {
    let (kind, digest) = match record {
        Record::Touch(digest) => (TOUCH, digest),
        Record::Remove(digest) => (REMOVE, digest),
        Record::Insert(chunk) => {
            out.push(INSERT);
            return put_chunk(chunk, out);
        }
    };
    out.push(kind);
    out.extend_from_slice(digest.as_bytes());
}

/// The records of a frame; `None` unless they are what its header says.
fn records(frame: &Frame<'_>) -> Option<Vec<Record>> {
    let head = frame.head;
    // A flag of a later version may change what the records mean.
    if head.flags != 0 || !(1..=records_max(frame.form) as u32).contains(&frame.records) {
        return None;
    }
    let mut fields = FieldReader(frame.body);
    let records: Option<Vec<Record>> =
        (0..frame.records).map(|_| record(&mut fields, frame.form)).collect();
    // Bytes behind the last record mean that the count is wrong, so none of it can be trusted.
    records.filter(|_| fields.0.is_empty())
}

fn record(fields: &mut FieldReader<'_>, form: ChunkEncoding) -> Option<Record> {
    match fields.array()? {
        [TOUCH] => fields.digest().map(Record::Touch),
        [REMOVE] => fields.digest().map(Record::Remove),
        [INSERT] => fields.chunk(form).map(Record::Insert),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads one frame of `touches` that says it has `records`.
    fn read(flags: u16, touches: usize, records: u32) -> (usize, Option<ReadEnd>) {
        let mut bytes = Vec::new();
        let head = FrameHeader { magic: MAGIC, flags, at_ms: 7, number: 0 };
        frame::encode(head, &mut bytes, |out| {
            (0..touches).for_each(|_| put(&Record::Touch(Digest([1; 32])), out));
            records
        });
        let mut batches = decode(&bytes);
        (batches.by_ref().map(|batch| batch.records.len()).sum(), batches.end())
    }

    const TORN: (usize, Option<ReadEnd>) = (0, Some(ReadEnd::Torn { at: 0 }));

    #[test]
    fn a_frame_has_as_many_records_as_it_says_and_no_flags() {
        assert_eq!(read(0, 2, 2), (2, Some(ReadEnd::Clean)));
        assert_eq!([read(1, 2, 2), read(0, 0, 0), read(0, 2, 1), read(0, 2, 3)], [TORN; 4]);
    }

    #[test]
    fn a_frame_has_at_most_the_records_of_one_that_is_written() {
        assert_eq!(read(0, RECORDS_MAX, RECORDS_MAX as u32), (RECORDS_MAX, Some(ReadEnd::Clean)));
        assert_eq!(read(0, RECORDS_MAX + 1, RECORDS_MAX as u32 + 1), TORN);
    }
}
