//! A piece of a job, from its first request to its end.

use std::os::fd::RawFd;

use crate::config::RETRIES_MAX;
use crate::running::{PartRange, PieceRequest};
use crate::{Error, ErrorKind, JobClass};

/// A part of a job that one request can move, and how far it is.
pub struct Piece {
    pub job: u64,
    pub class: JobClass,
    /// How many it counts for.
    pub units: usize,
    pub part: usize,
    pub offset: usize,
    pub len: usize,
    pub done: usize,
    pub retries: u32,
}

/// What one completion means for its piece.
pub enum Verdict {
    Whole,
    Short,
    Retry,
    Failed(Error),
}

impl Piece {
    pub fn range(&self) -> PartRange {
        PartRange { part: self.part, offset: self.offset, len: self.len }
    }

    /// What the kernel has not done yet.
    pub fn remaining(&self) -> PartRange {
        let PartRange { part, offset, len } = self.range();
        PartRange { part, offset: offset + self.done, len: len - self.done }
    }

    /// What this result of the kernel means. Counts the bytes that are done.
    pub fn verdict(&mut self, result: i32, whole: &PieceRequest, stopping: bool) -> Verdict {
        let left = self.len - self.done;
        match usize::try_from(result) {
            // No progress is the end of the file for a read. To repeat the request would loop: it
            // is never a short read that could be continued.
            Ok(0) if whole.read => Verdict::Failed(Error::short_read(0)),
            Ok(0) => Verdict::Failed(Error::new(ErrorKind::Io, "a write moved nothing")),
            // The kernel does not do that. If it did, bytes behind the piece were overwritten, and
            // the chunk must not pass as loaded.
            Ok(n) if n > left => Verdict::Failed(Error::new(
                ErrorKind::Io,
                "the kernel moved more than it was asked",
            )),
            Ok(n) => {
                self.done += n;
                match (n == left, stopping) {
                    (true, _) => Verdict::Whole,
                    // Part of the piece moved, and the rest will not be requested: the piece failed
                    // as a whole.
                    (_, true) => Verdict::Failed(Error::closed()),
                    _ => Verdict::Short,
                }
            }
            Err(_) if stopping => Verdict::Failed(Error::closed()),
            Err(_) => self.refused(-result, whole),
        }
    }

    fn refused(&mut self, code: i32, whole: &PieceRequest) -> Verdict {
        let what = if whole.read { "read failed" } else { "write failed" };
        let failed = Error::io(what, std::io::Error::from_raw_os_error(code));
        match code {
            // Both mean that nothing happened. The limit is for a device or a filter that answers
            // so for ever: the job then fails with the kernel's own error.
            libc::EINTR | libc::EAGAIN if self.retries < RETRIES_MAX => {
                self.retries += 1;
                Verdict::Retry
            }
            // Direct I/O may refuse to go on from the odd end of a file instead of saying that it
            // is the end.
            libc::EINVAL
                if whole.read && self.done > 0 && is_end(whole.fd, whole.at + self.done as u64) =>
            {
                Verdict::Failed(Error::short_read(0))
            }
            _ => Verdict::Failed(failed),
        }
    }
}

fn is_end(fd: RawFd, at: u64) -> bool {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the descriptor is the job's, which is still here; the kernel fills `stat`, whose
    // zeroes are a valid value anyway.
    let stat = unsafe {
        if libc::fstat(fd, stat.as_mut_ptr()) != 0 {
            return false;
        }
        stat.assume_init()
    };
    at >= stat.st_size as u64
}
