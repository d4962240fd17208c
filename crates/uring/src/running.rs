use std::os::fd::{AsRawFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};

use crate::job::OnDone;
use crate::sync::Mutex;
use crate::{Error, ErrorKind, Finished, Job, JobClass, Watch};

/// An accepted job until its callback. Its memory stays here while the kernel has pieces of
/// it.
pub struct RunningJob {
    pub job: Job,
    done: OnDone,
    watch: Option<Arc<Mutex<Watch>>>,
    /// The next piece to cut: part and offset in it.
    pub next: (usize, usize),
    /// Whether it has begun.
    pub begun: bool,
    pub inflight: usize,
    /// How far each part was moved without a gap, once nothing is in flight.
    reach: Vec<usize>,
    error: Option<Error>,
}

/// A range of one part of a job.
#[derive(Clone, Copy, Debug)]
pub struct PartRange {
    pub part: usize,
    pub offset: usize,
    pub len: usize,
}

/// One request to the kernel: the memory is the job's, which the scheduler keeps until
/// [`Scheduler::completed`](crate::scheduler::Scheduler::completed) gets this number.
#[derive(Clone, Copy, Debug)]
pub struct PieceRequest {
    pub number: u64,
    pub fd: RawFd,
    pub read: bool,
    pub at: u64,
    pub addr: usize,
    pub len: usize,
}

/// Bytes of a whole piece that a watch is to see before the piece ends.
pub struct Show {
    pub number: u64,
    watch: Arc<Mutex<Watch>>,
    part: usize,
    offset: usize,
    addr: usize,
    len: usize,
}

/// A job that is over: to be answered with no lock held.
pub struct EndedJob {
    done: OnDone,
    finished: Finished,
}

impl RunningJob {
    pub fn new(mut job: Job, done: OnDone) -> Self {
        let watch = job.watch.take().map(|watch| Arc::new(Mutex::new(watch)));
        let error = job.check().err();
        let reach = job.parts.iter().map(|part| part.range().2).collect();
        RunningJob { job, done, watch, next: (0, 0), begun: false, inflight: 0, reach, error }
    }

    pub fn class(&self) -> JobClass {
        self.job.class
    }

    pub fn failed(&self) -> bool {
        self.error.is_some()
    }

    /// A job reports its first error.
    pub fn fail(&mut self, error: Error) {
        // Later errors are mostly consequences of the first, such as the cancelled rest of the job.
        self.error.get_or_insert(error);
    }

    /// Bytes of `part` from `offset` on did not move.
    pub fn lost(&mut self, part: usize, offset: usize) {
        self.reach[part] = self.reach[part].min(offset);
    }

    /// Cuts the next piece: part, offset and length. `None` when there is no more to cut.
    pub fn cut(&mut self, piece_bytes: usize) -> Option<(usize, usize, usize)> {
        while self.error.is_none() {
            let (part, offset) = self.next;
            let len = self.job.parts.get(part)?.range().2;
            let n = piece_bytes.min(len - offset);
            self.next = if offset + n == len { (part + 1, 0) } else { (part, offset + n) };
            // An empty part has no piece; it counts as moved.
            if n > 0 {
                return Some((part, offset, n));
            }
        }
        None
    }

    /// Whether every piece was cut, or none will be any more.
    pub fn is_cut(&self) -> bool {
        self.failed() || self.next.0 >= self.job.parts.len()
    }

    pub fn request(&self, number: u64, range: PartRange) -> PieceRequest {
        let PartRange { part, offset, len } = range;
        let (at, addr, _) = self.job.parts[part].range();
        let fd = self.job.file.as_raw_fd();
        let read = self.job.parts[part].is_read();
        PieceRequest { number, fd, read, at: at + offset as u64, addr: addr + offset, len }
    }

    pub fn show(&self, number: u64, range: PartRange) -> Option<Show> {
        let PartRange { part, offset, len } = range;
        // The bytes of a job that failed are of no use to the watch, and may be incomplete.
        let watch = Arc::clone(self.watch.as_ref().filter(|_| self.error.is_none())?);
        let addr = self.job.parts[part].range().1 + offset;
        Some(Show { number, watch, part, offset, addr, len })
    }

    /// What the caller gets: its memory, filled as far as it was, and how it went.
    pub fn end(mut self) -> EndedJob {
        // Bytes behind the last cut were never requested. Leases of parts behind it hold nothing.
        let (cut_part, cut_offset) = self.next;
        for (part, reach) in self.reach.iter_mut().enumerate() {
            let cut = if part < cut_part {
                usize::MAX
            } else {
                cut_offset * usize::from(part == cut_part)
            };
            *reach = (*reach).min(cut);
            self.job.fill(part, *reach);
        }
        let moved = self.reach.iter().map(|n| *n as u64).sum();
        self.job.watch = self.watch.take().and_then(Arc::into_inner).map(unlocked);
        let result = match self.error {
            Some(e) if matches!(e.kind(), ErrorKind::ShortRead { .. }) => {
                Err(Error::short_read(moved))
            }
            Some(e) => Err(e),
            None => Ok(moved),
        };
        EndedJob { done: self.done, finished: Finished { job: self.job, result } }
    }

    /// The end of a job whose memory the kernel may use for ever: the memory is leaked, the
    /// result has no parts.
    pub fn abandon(mut self) -> EndedJob {
        if self.inflight > 0 {
            std::mem::forget(std::mem::take(&mut self.job.parts));
            self.reach.clear();
        }
        self.fail(Error::closed());
        self.end()
    }
}

fn unlocked(watch: Mutex<Watch>) -> Watch {
    watch.into_inner().unwrap_or_else(PoisonError::into_inner)
}

impl Show {
    /// Calls the watch; `false` if it panicked.
    pub fn call(&self) -> bool {
        // SAFETY: a piece that was read whole into a lease of host memory; the scheduler keeps the
        // job, and so the lease, until `shown` is called for this piece, and asks the
        // kernel for nothing in this range again.
        let bytes = unsafe { std::slice::from_raw_parts(self.addr as *const u8, self.len) };
        let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        let survived =
            catch_unwind(AssertUnwindSafe(|| watch(self.part, self.offset as u64, bytes))).is_ok();
        if !survived {
            tracing::error!("the watch of an I/O job panicked");
        }
        survived
    }
}

impl EndedJob {
    /// Calls back; a panic of the callback is contained.
    pub fn answer(self) {
        let EndedJob { done, finished } = self;
        if catch_unwind(AssertUnwindSafe(|| done(finished))).is_err() {
            tracing::error!("the callback of an I/O job panicked");
        }
    }
}
