use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::engine::Counts;
use crate::job::Done;
use crate::queue::{Queue, answer, show};
use crate::{Error, ErrorKind, Finished, Job};

const RETRIES_MAX: u32 = 16;

/// The engine for machines without io_uring: each thread moves one job at a time with blocking calls, piece by piece.
#[derive(Debug)]
pub struct Threads {
    handles: Mutex<Vec<JoinHandle<()>>>,
}

impl Threads {
    pub fn start(queue: &Arc<Queue>, counts: &Arc<Counts>, threads: usize, piece_bytes: usize) -> io::Result<Self> {
        let spawn = |n| {
            let (queue, counts) = (Arc::clone(queue), Arc::clone(counts));
            let run = move || {
                while let Some((job, done)) = next(&queue) {
                    answer(done, work(job, &counts, piece_bytes));
                }
            };
            std::thread::Builder::new().name(format!("kvtier-io-{n}")).spawn(run)
        };
        Ok(Threads { handles: Mutex::new((0..threads.max(1)).map(spawn).collect::<Result<_, _>>()?) })
    }

    pub fn join(&self) {
        let handles = std::mem::take(&mut *self.handles.lock().unwrap_or_else(PoisonError::into_inner));
        for handle in handles.into_iter().filter(|h| h.thread().id() != std::thread::current().id()) {
            let _ = handle.join();
        }
    }
}

fn next(queue: &Queue) -> Option<(Job, Done)> {
    let mut state = queue.lock();
    loop {
        let read = state.reads.pop_front();
        if let Some(next) = read.or_else(|| state.writes.pop_front()) {
            return Some(next);
        }
        if state.closed {
            return None;
        }
        state = queue.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
    }
}

fn work(mut job: Job, counts: &Counts, piece_bytes: usize) -> Finished {
    let mut moved = 0;
    let fd = job.file.as_raw_fd();
    for part in 0..job.parts.len() {
        let result = move_part(&mut job, fd, part, (piece_bytes, counts));
        match result {
            Ok(n) => moved += n,
            Err(e) => {
                (0..job.parts.len()).for_each(|part| job.fill(part, 0));
                let e = if e.kind() == (ErrorKind::ShortRead { got: 0 }) {
                    Error::new(ErrorKind::ShortRead { got: moved }, "the file ended early")
                } else {
                    e
                };
                return Finished { job, result: Err(e) };
            }
        }
    }
    Finished { job, result: Ok(moved) }
}

fn move_part(job: &mut Job, fd: RawFd, part: usize, (piece_bytes, counts): (usize, &Counts)) -> Result<u64, Error> {
    let (at, addr, len) = job.parts[part].range();
    let read = job.parts[part].is_read();
    let mut done = 0;
    while done < len {
        let n = piece_bytes.min(len - done);
        move_piece(fd, read, (at + done as u64, addr + done, n), counts)?;
        if read {
            job.fill(part, done + n);
            if !show(job, part, done, n) {
                return Err(Error::new(ErrorKind::Invalid, "the watch of an I/O job panicked"));
            }
        }
        done += n;
        counts.piece(n, false);
    }
    Ok(len as u64)
}

/// Moves one piece whole, or says why not.
fn move_piece(fd: RawFd, read: bool, (at, addr, len): (u64, usize, usize), counts: &Counts) -> Result<(), Error> {
    let (mut done, mut retries) = (0, 0);
    while done < len {
        let (ptr, n, offset) = ((addr + done) as *mut libc::c_void, len - done, (at + done as u64) as libc::off_t);
        // SAFETY: `addr..addr + len` is memory of a lease or view that the job on this thread's stack owns, and `done < len`. Reads
        // write only to leases, which are exclusive.
        let got = unsafe { if read { libc::pread(fd, ptr, n, offset) } else { libc::pwrite(fd, ptr, n, offset) } };
        match got {
            0 if read => return Err(Error::new(ErrorKind::ShortRead { got: 0 }, "the file ended early")),
            0 => return Err(Error::new(ErrorKind::Io, "a write moved nothing")),
            n if n > 0 => {
                done += n as usize;
                if done < len {
                    counts.short();
                }
            }
            _ => {
                let e = io::Error::last_os_error();
                retries += 1;
                let again = matches!(e.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock);
                if !again || retries > RETRIES_MAX {
                    return Err(Error::io(if read { "read failed" } else { "write failed" }, e));
                }
                counts.retry();
            }
        }
    }
    Ok(())
}
