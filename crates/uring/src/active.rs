use std::collections::VecDeque;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use io_uring::{opcode, squeue, types};

use crate::engine::{Counts, EngineConfig};
use crate::job::Done;
use crate::queue::{answer, show};
use crate::{Error, ErrorKind, Finished, Job};

const RETRIES_MAX: u32 = 16;

/// The jobs at the kernel, and the pieces they were cut into. A piece's number is its `user_data`; a job stays here, with its memory,
/// until the last of its pieces has completed.
pub struct Active {
    jobs: Vec<Option<Running>>,
    /// Jobs with pieces not yet at the kernel, in order.
    order: VecDeque<usize>,
    pieces: Vec<Option<Piece>>,
    again: VecDeque<usize>,
    inflight: usize,
    inflight_max: usize,
    piece_bytes: usize,
    ranges: Option<Vec<(usize, usize)>>,
    stopped: bool,
    counts: Arc<Counts>,
}

struct Running {
    job: Job,
    done: Done,
    /// The next piece to cut: part and offset in it.
    next: (usize, usize),
    inflight: usize,
    moved: u64,
    error: Option<Error>,
}

struct Piece {
    job: usize,
    part: usize,
    offset: usize,
    len: usize,
    done: usize,
    retries: u32,
    fixed: bool,
}

impl Active {
    pub fn new(config: &EngineConfig, counts: Arc<Counts>) -> Self {
        Active {
            jobs: Vec::new(),
            order: VecDeque::new(),
            pieces: Vec::new(),
            again: VecDeque::new(),
            inflight: 0,
            inflight_max: config.pieces_inflight,
            piece_bytes: config.piece_bytes,
            ranges: None,
            stopped: false,
            counts,
        }
    }

    /// Whether another job would be begun at once.
    pub fn wants_job(&self) -> bool {
        self.order.is_empty() && self.inflight + self.again.len() < self.inflight_max
    }

    pub fn add(&mut self, job: Job, done: Done) {
        let running = Running { job, done, next: (0, 0), inflight: 0, moved: 0, error: None };
        let at = place(&mut self.jobs, running);
        self.order.push_back(at);
    }

    /// Cuts the next piece, if the kernel may have one more.
    pub fn next_piece(&mut self) -> Option<squeue::Entry> {
        if self.inflight >= self.inflight_max {
            return None;
        }
        let piece = match self.again.pop_front() {
            Some(piece) => piece,
            None => self.cut()?,
        };
        self.inflight += 1;
        Some(self.entry(piece))
    }

    fn cut(&mut self) -> Option<usize> {
        loop {
            let job = *self.order.front()?;
            let Some(running) = self.jobs[job].as_mut() else {
                self.order.pop_front();
                continue;
            };
            let (part, offset) = running.next;
            let Some(len) = running.job.parts.get(part).map(|p| p.range().2).filter(|_| running.error.is_none()) else {
                self.order.pop_front();
                self.finish_if_idle(job);
                continue;
            };
            let n = self.piece_bytes.min(len - offset);
            running.next = if offset + n == len { (part + 1, 0) } else { (part, offset + n) };
            if n == 0 {
                continue;
            }
            running.inflight += 1;
            let piece = Piece { job, part, offset, len: n, done: 0, retries: 0, fixed: false };
            return Some(place(&mut self.pieces, piece));
        }
    }

    fn entry(&mut self, number: usize) -> squeue::Entry {
        let piece = self.pieces[number].as_mut().expect("a piece is there until it completes");
        let running = self.jobs[piece.job].as_ref().expect("a job is there until its last piece completes");
        let part = &running.job.parts[piece.part];
        let (at, addr, _) = part.range();
        let from = piece.offset + piece.done;
        let (at, addr, len) = (at + from as u64, addr + from, piece.len - piece.done);
        let range = self.ranges.iter().flatten().position(|(start, n)| addr >= *start && addr + len <= start + n);
        piece.fixed = range.is_some();
        let fd = types::Fd(running.job.file.as_raw_fd() as RawFd);
        let entry = match (part.is_read(), range) {
            (true, Some(slot)) => {
                opcode::ReadFixed::new(fd, addr as *mut u8, len as u32, slot as u16).offset(at).build()
            }
            (true, None) => opcode::Read::new(fd, addr as *mut u8, len as u32).offset(at).build(),
            (false, Some(slot)) => {
                opcode::WriteFixed::new(fd, addr as *const u8, len as u32, slot as u16).offset(at).build()
            }
            (false, None) => opcode::Write::new(fd, addr as *const u8, len as u32).offset(at).build(),
        };
        entry.user_data(number as u64)
    }

    /// What the kernel says of a piece: done, done in part, interrupted, or failed.
    pub fn complete(&mut self, number: u64, result: i32) {
        let number = number as usize;
        let Some(Some(piece)) = self.pieces.get_mut(number) else {
            return tracing::error!(number, "a completion for a piece that is not there");
        };
        self.inflight -= 1;
        let running = self.jobs[piece.job].as_mut().expect("a job is there until its last piece completes");
        let read = running.job.parts[piece.part].is_read();
        let failed = match result {
            n if n > 0 => {
                piece.done += n as usize;
                (piece.done > piece.len).then(|| Error::new(ErrorKind::Io, "the kernel moved more than it was asked"))
            }
            0 if read => Some(Error::new(ErrorKind::ShortRead { got: running.moved }, "the file ended early")),
            0 => Some(Error::new(ErrorKind::Io, "a write moved nothing")),
            n if matches!(-n, libc::EINTR | libc::EAGAIN) && piece.retries < RETRIES_MAX && !self.stopped => {
                piece.retries += 1;
                self.counts.retry();
                None
            }
            _ if self.stopped => Some(Error::new(ErrorKind::Closed, "the I/O engine was closed")),
            n => Some(Error::io(
                if read { "read failed" } else { "write failed" },
                std::io::Error::from_raw_os_error(-n),
            )),
        };
        if failed.is_none() && piece.done < piece.len {
            if result > 0 {
                self.counts.short();
            }
            return self.again.push_back(number);
        }
        self.end_piece(number, failed);
    }

    fn end_piece(&mut self, number: usize, failed: Option<Error>) {
        let Some(piece) = self.pieces[number].take() else { return };
        let Some(running) = self.jobs[piece.job].as_mut() else { return };
        running.inflight -= 1;
        match failed {
            Some(e) => running.error = running.error.take().or(Some(e)),
            None => {
                running.moved += piece.len as u64;
                self.counts.piece(piece.len, piece.fixed);
                if running.job.parts[piece.part].is_read() && running.job.watch.is_some() {
                    // The watch reads what arrived through the lease, which must count as filled that far; earlier pieces may still be
                    // on their way, but nobody else sees the lease before the job ends.
                    running.job.fill(piece.part, piece.offset + piece.len);
                    if !show(&mut running.job, piece.part, piece.offset, piece.len) {
                        running.error = Some(Error::new(ErrorKind::Invalid, "the watch of an I/O job panicked"));
                    }
                }
            }
        }
        self.finish_if_idle(piece.job);
    }

    /// Ends a job that has nothing at the kernel and nothing left to send there.
    fn finish_if_idle(&mut self, at: usize) {
        let over = |r: &Running| r.inflight == 0 && (r.error.is_some() || r.next.0 >= r.job.parts.len());
        if !self.jobs[at].as_ref().is_some_and(over) {
            return;
        }
        let Some(Running { mut job, done, moved, error, .. }) = self.jobs[at].take() else { return };
        self.order.retain(|job| *job != at);
        for part in 0..job.parts.len() {
            let len = if error.is_none() { job.parts[part].range().2 } else { 0 };
            job.fill(part, len);
        }
        answer(done, Finished { job, result: error.map_or(Ok(moved), Err) });
    }

    /// Begins nothing more: what has pieces at the kernel ends with them, the rest ends now.
    pub fn stop(&mut self) {
        self.stopped = true;
        for number in std::mem::take(&mut self.again) {
            self.end_piece(number, Some(Error::new(ErrorKind::Closed, "the I/O engine was closed")));
        }
        for at in 0..self.jobs.len() {
            if let Some(running) = self.jobs[at].as_mut()
                && running.next.0 < running.job.parts.len()
            {
                running.error =
                    running.error.take().or(Some(Error::new(ErrorKind::Closed, "the I/O engine was closed")));
            }
            self.finish_if_idle(at);
        }
    }

    pub fn is_idle(&self) -> bool {
        self.inflight == 0 && self.again.is_empty() && self.order.is_empty()
    }

    /// The pieces at the kernel.
    pub fn pieces(&self) -> Vec<u64> {
        (0..self.pieces.len()).filter(|n| self.pieces[*n].is_some()).map(|n| n as u64).collect()
    }

    pub fn has_table(&self) -> bool {
        self.ranges.is_some()
    }

    pub fn made_table(&mut self) {
        self.ranges = Some(Vec::new());
    }

    pub fn ranges(&self) -> usize {
        self.ranges.as_ref().map_or(0, Vec::len)
    }

    pub fn add_range(&mut self, addr: usize, len: usize) {
        self.ranges.get_or_insert_default().push((addr, len));
    }

    /// Gives up memory that the kernel may still use, for ever, and lets the callbacks be dropped, which answers those who wait.
    pub fn leak(mut self) {
        for running in self.jobs.iter_mut().filter_map(Option::take) {
            std::mem::forget(running.job);
            drop(running.done);
        }
    }
}

/// Puts a value in the first empty place.
fn place<T>(all: &mut Vec<Option<T>>, value: T) -> usize {
    let at = all.iter().position(Option::is_none).unwrap_or(all.len());
    if at == all.len() {
        all.push(None);
    }
    all[at] = Some(value);
    at
}
