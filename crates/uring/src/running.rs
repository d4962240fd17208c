use std::os::fd::{AsRawFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};

use crate::job::Done;
use crate::sync::Mutex;
use crate::{Class, Error, ErrorKind, Finished, Job, Watch};

/// A job that was taken, until it is answered. Its memory stays here while the kernel has pieces of
/// it.
pub struct Running {
    pub job: Job,
    done: Done,
    watch: Option<Arc<Mutex<Watch>>>,
    /// The next piece to cut: part and offset in it.
    pub next: (usize, usize),
    /// Whether its turn came.
    pub begun: bool,
    pub inflight: usize,
    /// How far each part was moved without a gap, once nothing is in flight.
    reach: Vec<usize>,
    error: Option<Error>,
}

/// One request to the kernel: the memory is the job's, which the scheduler keeps until
/// [`Sched::landed`](crate::sched::Sched::landed) is told of this number.
#[derive(Clone, Copy, Debug)]
pub struct Request {
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
pub struct Ended {
    done: Done,
    finished: Finished,
}

impl Running {
    pub fn new(mut job: Job, done: Done) -> Self {
        let watch = job.watch.take().map(|watch| Arc::new(Mutex::new(watch)));
        let error = job.check().err();
        let reach = job.parts.iter().map(|part| part.range().2).collect();
        Running { job, done, watch, next: (0, 0), begun: false, inflight: 0, reach, error }
    }

    pub fn class(&self) -> Class {
        self.job.class
    }

    pub fn failed(&self) -> bool {
        self.error.is_some()
    }

    /// The first error of a job is the one it answers.
    pub fn fail(&mut self, error: Error) {
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

    pub fn request(&self, number: u64, (part, offset, len): (usize, usize, usize)) -> Request {
        let (at, addr, _) = self.job.parts[part].range();
        let (fd, read) = (self.job.file.as_raw_fd(), self.job.parts[part].is_read());
        Request { number, fd, read, at: at + offset as u64, addr: addr + offset, len }
    }

    pub fn show(&self, number: u64, (part, offset, len): (usize, usize, usize)) -> Option<Show> {
        let watch = Arc::clone(self.watch.as_ref().filter(|_| self.error.is_none())?);
        let addr = self.job.parts[part].range().1 + offset;
        Some(Show { number, watch, part, offset, addr, len })
    }

    /// What the caller gets: its memory, filled as far as it was, and how it went.
    pub fn end(mut self) -> Ended {
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
        Ended { done: self.done, finished: Finished { job: self.job, result } }
    }

    /// The end of a job whose memory the kernel may use for ever: the memory is given up, the
    /// answer has no parts.
    pub fn give_up(mut self) -> Ended {
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
    /// Calls the watch; answers whether it survived.
    pub fn call(&self) -> bool {
        // SAFETY: a piece that was read whole into a lease of host memory; the scheduler keeps the
        // job, and so the lease, until it is told that this piece was shown, and asks the
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

impl Ended {
    /// Calls back; a panic in there is its own affair and ends nothing here.
    pub fn answer(self) {
        let Ended { done, finished } = self;
        if catch_unwind(AssertUnwindSafe(|| done(finished))).is_err() {
            tracing::error!("the callback of an I/O job panicked");
        }
    }
}
