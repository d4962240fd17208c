use std::io;
use std::sync::{Arc, PoisonError};

use crate::running::{EndedJob, PieceRequest};
use crate::shared_schedule::{AbandonOnPanic, Shared};
use crate::stats::EngineCounts;
use crate::sync::Mutex;
use crate::sync::thread::{self, JoinHandle, ThreadId};

/// The engine for machines without io_uring: threads that move one piece each with blocking calls.
#[derive(Debug)]
pub struct Threads {
    ids: Vec<ThreadId>,
    handles: Mutex<Vec<JoinHandle<()>>>,
}

impl Threads {
    pub fn start(
        shared: &Arc<Shared>,
        counts: &Arc<EngineCounts>,
        threads: usize,
    ) -> io::Result<Self> {
        let spawn = |n| {
            let shared = Arc::clone(shared);
            let counts = Arc::clone(counts);
            thread::Builder::new()
                .name(format!("kvtier-io-{n}"))
                .spawn(move || work(&shared, &counts))
        };
        let started: io::Result<Vec<_>> = (0..threads).map(spawn).collect();
        // If one cannot start, the others end.
        // Threads that did start would otherwise wait for a request of an engine that was never
        // returned to a caller.
        let handles = started.inspect_err(|_| shared.close())?;
        Ok(Threads {
            ids: handles.iter().map(|h| h.thread().id()).collect(),
            handles: Mutex::new(handles),
        })
    }

    /// Whether this is one of the engine's own threads.
    pub fn has_current(&self) -> bool {
        self.ids.contains(&thread::current().id())
    }

    pub fn join(&self) {
        let mut handles = self.handles.lock().unwrap_or_else(PoisonError::into_inner);
        for handle in handles.drain(..) {
            let _ = handle.join();
        }
    }
}

fn work(shared: &Shared, counts: &EngineCounts) {
    let _guard = AbandonOnPanic(shared);
    let mut ended = Vec::new();
    loop {
        let mut sched = shared.lock();
        let request = sched.next(&mut ended);
        let closed = sched.is_closed();
        // The check for work and the wait happen under one lock, so a push between them cannot be
        // missed.
        if request.is_none() && ended.is_empty() {
            if closed {
                return;
            }
            drop(shared.wait(sched));
            continue;
        }
        let more = sched.has_more();
        // From here on the lock is free: the transfer blocks for as long as the device needs.
        drop(sched);
        // One thread wakes the next, so that a burst of jobs reaches all threads although each push
        // woke only one.
        if more {
            shared.notify_one();
        }
        ended.drain(..).for_each(EndedJob::answer);
        if let Some(request) = request {
            counts.request(false);
            shared.completed(request.number, transfer(&request));
        }
    }
}

/// Moves one piece, or part of it; a negative error number as io_uring would give.
fn transfer(request: &PieceRequest) -> i32 {
    let ptr = request.addr as *mut libc::c_void;
    let n = request.len;
    let at = request.at as libc::off_t;
    // SAFETY: `addr..addr + len` is memory of a lease or view that the schedule keeps until it
    // has its completion. Reads write only to leases, which are exclusive, and no
    // two pieces overlap.
    let moved = unsafe {
        if request.read {
            libc::pread(request.fd, ptr, n, at)
        } else {
            libc::pwrite(request.fd, ptr, n, at)
        }
    };
    match moved {
        0.. => moved as i32,
        _ => -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO),
    }
}
