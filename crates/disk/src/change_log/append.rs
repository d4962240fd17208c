//! Appends batches to the newest segment, as the [writer](super) of the protocol does.

use std::io::{self, ErrorKind as Io};

use super::ChangeLog;
use super::pending::Pending;
use super::segment::{self, Segment};
use crate::data_dir::{REGISTRATION_WAIT_MAX, lock_within};

/// How often an append is tried again because the segment got a successor meanwhile.
const TRIES_MAX: u32 = 8;

/// A batch that this process appended.
#[derive(Clone, Copy)]
pub(super) struct Appended {
    pub(super) bytes: u64,
    /// How long the segment was after that, at least.
    pub(super) len: u64,
}

impl ChangeLog {
    /// Appends a batch. Answers the number of the segment if that has become too long.
    pub(super) fn append_batch(
        &self,
        writer: &mut Option<Segment>,
        batch: &Pending,
    ) -> io::Result<Option<u64>> {
        let bytes = batch.encode(self.clock.unix_ms());
        for _ in 0..TRIES_MAX {
            let segment = match writer.take() {
                Some(segment) => segment,
                None => Segment::newest_to_append(&self.own, self.clock.unix_ms())?,
            };
            let read_to = self.read_to(segment.number);
            match self.write(&segment, &bytes) {
                // Kept by a process that is stopped, perhaps.
                Err(e) if e.kind() == Io::WouldBlock => {
                    self.begin_next(segment.number)?;
                    continue;
                }
                other => other?,
            }
            // Otherwise readers may have left it: once more, to the newest.
            if segment.has_successor(&self.own)? {
                continue;
            }
            let extent = segment.extent(&self.own, self.is_local)?;
            if !extent.is_linked {
                continue;
            }
            self.pass_over_own(
                segment.number,
                read_to,
                Appended { bytes: bytes.len() as u64, len: extent.len },
            );
            if extent.len > self.segment_bytes_max {
                return Ok(Some(segment.number));
            }
            *writer = Some(segment);
            return Ok(None);
        }
        Err(io::Error::new(
            Io::ResourceBusy,
            "other processes replaced the change log again and again",
        ))
    }

    /// One write, so that batches of several processes do not mix.
    fn write(&self, segment: &Segment, bytes: &[u8]) -> io::Result<()> {
        let file = &segment.file;
        if !self.is_local {
            lock_within(file, REGISTRATION_WAIT_MAX)?;
        }
        let written = kvtier_os::write(file, bytes);
        if !self.is_local {
            file.unlock()?;
        }
        match written? {
            n if n < bytes.len() => {
                Err(io::Error::new(Io::WriteZero, "the file system took a part of a batch only"))
            }
            _ => Ok(()),
        }
    }

    /// How far a segment is read, if no other thread reads now.
    pub(super) fn read_to(&self, number: u64) -> Option<u64> {
        let follower = self.follower.try_lock().ok()?;
        follower.as_ref().filter(|held| held.segment.number == number).map(|held| held.read_to)
    }

    /// Passes over what this process appended itself. `read_to` is how far the segment was read
    /// before that: where it is so much shorter than now, and was not read further, no other
    /// process appended, before or after.
    pub(super) fn pass_over_own(&self, number: u64, read_to: Option<u64>, own: Appended) {
        let Ok(mut follower) = self.follower.try_lock() else { return };
        if let Some(held) = follower.as_mut()
            && held.segment.number == number
            && read_to == Some(held.read_to)
            && held.read_to + own.bytes == own.len
        {
            held.read_to = own.len;
        }
    }

    /// Makes the segment after `number`, and deletes those that are not needed for readers to come
    /// from `number` to it.
    pub(super) fn begin_next(&self, number: u64) -> io::Result<()> {
        segment::create(&self.own, number + 1)?;
        segment::delete_up_to(&self.own, number.saturating_sub(1))
    }
}
