//! How far a process has read the change log, and how it reads on.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvtier_core::Clock;
use kvtier_index::journal::{self as format, Record};

use super::LOST;
use super::segment::Segment;

/// The most bytes that are applied while the follower is locked, but at least one batch.
pub const SLICE_BYTES: u64 = 64 << 10;
/// The most bytes that are read to find one batch: twice the longest, so that one that begins in
/// the first half is whole.
const BATCH_BYTES: u64 = (2 << 20) + 4096;
/// A batch at a segment's end that has been torn for this long is not being written any more.
const TORN_AFTER: Duration = Duration::from_secs(1);
/// What a batch begins with.
const MAGIC: &[u8; 4] = b"KVTJ";

/// The segment that is being read, and how far.
#[derive(Debug)]
pub struct Held {
    pub segment: Arc<Segment>,
    pub read_to: u64,
    torn: Option<Torn>,
    reported: Option<Reported>,
}

/// A torn batch that was reported as missed: once, also where the segment is read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reported {
    number: u64,
    at: u64,
}

/// A batch at the end of the segment that is not whole.
#[derive(Debug)]
struct Torn {
    at: u64,
    since: Instant,
}

/// What reading came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Read {
    /// How many records were applied.
    pub records: usize,
    /// Records were lost: only a listing of the directory shows what they said.
    pub missed: bool,
}

impl Held {
    /// A segment, read up to here.
    pub fn new(segment: Arc<Segment>, read_to: u64) -> Self {
        Held { segment, read_to, torn: None, reported: None }
    }

    /// The torn batch that was reported last.
    pub fn reported(&self) -> Option<Reported> {
        self.reported
    }

    /// The same, where this batch was reported before.
    pub fn with_reported(self, reported: Option<Reported>) -> Self {
        Held { reported, ..self }
    }

    /// Whether what is left up to `len` is a batch that is not whole.
    pub fn is_torn(&self) -> bool {
        self.torn.as_ref().is_some_and(|torn| torn.at == self.read_to)
    }

    /// Applies about [`SLICE_BYTES`] of whole batches before `len`. When none is left but a torn
    /// one, [`is_torn`](Self::is_torn) says so.
    pub fn read_slice(
        &mut self,
        len: u64,
        clock: &Clock,
        apply: &mut dyn FnMut(&Record),
    ) -> io::Result<Read> {
        let mut read = Read::default();
        let mut most = SLICE_BYTES;
        let mut is_second_look = false;
        let mut buffer = Vec::new();
        while self.read_to < len {
            let left = len - self.read_to;
            buffer.resize(left.min(most) as usize, 0);
            let wanted = buffer.len();
            let got =
                kvtier_os::read_at_least(&self.segment.file, &mut buffer, self.read_to, wanted)?;
            let bytes = &buffer[..got];
            let used = apply_whole(bytes, &mut read, apply);
            if used > 0 {
                (self.read_to, self.torn) = (self.read_to + used, None);
                return Ok(read);
            }
            if left > most && most < BATCH_BYTES {
                most = BATCH_BYTES;
                continue;
            }
            match next_whole(bytes) {
                // Writes do not overlap: before a batch that is whole, nothing is being written.
                // But this one may have been, when the first part of the buffer was
                // read.
                Some(_) if !std::mem::replace(&mut is_second_look, true) => {}
                Some(next) => return Ok(self.skip(next, read)),
                None if left > most => return Ok(self.skip(BATCH_BYTES / 2, read)),
                None => {
                    read.missed |= self.note_torn(clock);
                    return Ok(read);
                }
            }
        }
        Ok(read)
    }

    fn skip(&mut self, bytes: u64, read: Read) -> Read {
        (self.read_to, self.torn) = (self.read_to + bytes, None);
        Read { missed: true, ..read }
    }

    /// A torn batch may still be in the course of being written. Answers whether it is to be
    /// reported as cut off, which happens once. It stays where it is: it may yet become whole,
    /// or be followed by one that is.
    fn note_torn(&mut self, clock: &Clock) -> bool {
        let this = Some(Reported { number: self.segment.number, at: self.read_to });
        match &self.torn {
            Some(torn) if torn.at == self.read_to => {
                let is_due = self.reported != this && clock.elapsed(torn.since) > TORN_AFTER;
                self.reported = if is_due { this } else { self.reported };
                is_due
            }
            _ => {
                self.torn = Some(Torn { at: self.read_to, since: clock.now() });
                false
            }
        }
    }
}

/// Applies the batches at the front of `bytes` that are whole. Answers how many bytes they have.
fn apply_whole(bytes: &[u8], read: &mut Read, apply: &mut dyn FnMut(&Record)) -> u64 {
    let mut batches = format::decode(bytes);
    for record in batches.by_ref().flat_map(|batch| batch.records) {
        if record == LOST {
            read.missed = true;
        } else {
            apply(&record);
            read.records += 1;
        }
    }
    match batches.end() {
        Some(kvtier_index::ReadEnd::Torn { at } | kvtier_index::ReadEnd::Version { at, .. }) => {
            at as u64
        }
        _ => bytes.len() as u64,
    }
}

/// Where the next whole batch begins, behind one that is not.
fn next_whole(bytes: &[u8]) -> Option<u64> {
    let begins =
        bytes.windows(MAGIC.len()).enumerate().skip(1).filter(|(_, window)| *window == MAGIC);
    begins
        .map(|(at, _)| at)
        .find(|at| format::decode(&bytes[*at..]).next().is_some())
        .map(|at| at as u64)
}
