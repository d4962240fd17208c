use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use io_uring::{IoUring, opcode, types};
use kvtier_mem::Arena;

use crate::active::Active;
use crate::engine::{Counts, EngineConfig, Registered};
use crate::queue::Queue;
use crate::{Error, ErrorKind};

/// `user_data` of the read that wakes the thread; pieces count up from 0 and cancels are told by [`CANCEL`].
const WAKE: u64 = u64::MAX;
const CANCEL: u64 = u64::MAX - 1;
/// Registered ranges; the kernel takes at most 1 GiB in one.
const RANGES_MAX: usize = 256;
const RANGE_BYTES_MAX: usize = 1 << 30;
/// Commands that wait for the thread; who comes beyond waits to hand its own over.
const COMMANDS_MAX: usize = 16;

/// The io_uring engine: one thread that builds its own ring, sleeps in it, and is woken by an eventfd read armed in it.
#[derive(Debug)]
pub struct Reactor {
    wake: File,
    commands: Mutex<SyncSender<Command>>,
    handle: Mutex<Option<JoinHandle<()>>>,
}

/// Pins an arena's memory, on the ring's own thread; answers how.
struct Command(Arena, SyncSender<Registered>);

impl Reactor {
    pub fn start(config: &EngineConfig, queue: &Arc<Queue>, counts: &Arc<Counts>) -> Result<(Self, String), Error> {
        let failed = |e| Error::io("cannot start an I/O thread", e);
        // SAFETY: a plain system call; the result is checked before it becomes a file.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(failed(io::Error::last_os_error()));
        }
        // SAFETY: the fresh descriptor is ours alone.
        let wake = unsafe { File::from_raw_fd(fd) };
        let theirs = wake.try_clone().map_err(failed)?;
        let (commands, receiver) = sync_channel(COMMANDS_MAX);
        let (ready, started) = sync_channel(1);
        let (config, queue, counts) = (config.clone(), Arc::clone(queue), Arc::clone(counts));
        let run = move || {
            let ring = match build(&config) {
                Ok((ring, how)) => {
                    let _ = ready.send(Ok(how));
                    ring
                }
                Err(e) => return drop(ready.send(Err(e))),
            };
            // However this thread ends, nobody waits for it in vain: the guard answers what has not begun, dropping `Active` the rest.
            let _guard = CloseOnDrop(Arc::clone(&queue));
            let active = Active::new(&config, counts);
            Loop {
                ring,
                queue,
                active,
                wake: theirs,
                wake_buf: Box::new([0; 8]),
                armed: false,
                pinned: Vec::new(),
                commands: receiver,
            }
            .run();
        };
        let handle = std::thread::Builder::new().name("kvtier-uring".into()).spawn(run).map_err(failed)?;
        match started.recv() {
            Ok(Ok(how)) => {
                Ok((Reactor { wake, commands: Mutex::new(commands), handle: Mutex::new(Some(handle)) }, how))
            }
            Ok(Err(e)) => Err(e),
            Err(_) => Err(Error::new(ErrorKind::Closed, "the I/O thread died at its start")),
        }
    }

    pub fn wake(&self) {
        // Can only fail when the counter is at its limit, and then the thread is awake anyway.
        let _ = (&self.wake).write(&1u64.to_ne_bytes());
    }

    pub fn register(&self, arena: &Arena) -> Result<Registered, Error> {
        let closed = || Error::new(ErrorKind::Closed, "the I/O engine was closed");
        let (reply, answer) = sync_channel(1);
        let sender = self.commands.lock().unwrap_or_else(PoisonError::into_inner).clone();
        sender.send(Command(arena.clone(), reply)).map_err(|_| closed())?;
        self.wake();
        answer.recv().map_err(|_| closed())
    }

    pub fn join(&self) {
        self.wake();
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(handle) = handle.filter(|h| h.thread().id() != std::thread::current().id()) {
            let _ = handle.join();
        }
    }
}

struct CloseOnDrop(Arc<Queue>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Builds the best ring the kernel allows.
fn build(config: &EngineConfig) -> Result<(IoUring, String), Error> {
    let entries = (config.pieces_inflight as u32 * 2 + 8).next_power_of_two();
    let best = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(entries);
    let (ring, how) = match best {
        Ok(ring) => (ring, "io_uring, deferred task run"),
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
            let ring = IoUring::builder().build(entries).map_err(|e| Error::io("cannot set up io_uring", e))?;
            (ring, "io_uring")
        }
        Err(e) => {
            return Err(Error::io(
                "cannot set up io_uring (seccomp profile, kernel.io_uring_disabled or an old kernel?)",
                e,
            ));
        }
    };
    Ok((ring, how.into()))
}

struct Loop {
    ring: IoUring,
    queue: Arc<Queue>,
    active: Active,
    wake: File,
    wake_buf: Box<[u8; 8]>,
    armed: bool,
    pinned: Vec<Arena>,
    commands: Receiver<Command>,
}

impl Loop {
    fn run(mut self) {
        let mut canceling = false;
        loop {
            self.obey();
            let closed = self.queue.lock().closed;
            if closed && !std::mem::replace(&mut canceling, closed) {
                self.active.stop();
                self.cancel_all();
            }
            self.feed(closed);
            if closed && self.active.is_idle() {
                if !self.armed {
                    return;
                }
                // The wake-up's buffer is in the kernel's hands until that read has ended too.
                let _ = (&self.wake).write(&1u64.to_ne_bytes());
            }
            if let Err(e) = self.ring.submit_and_wait(1)
                && !matches!(e.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
            {
                tracing::error!("io_uring failed: {e}");
                return self.abandon();
            }
            self.reap();
        }
    }

    /// Keeps the wake-up armed and the kernel busy.
    fn feed(&mut self, closed: bool) {
        let over = closed && self.active.is_idle();
        if !self.armed && !over {
            let read = opcode::Read::new(types::Fd(self.wake.as_raw_fd()), self.wake_buf.as_mut_ptr(), 8);
            // SAFETY: the buffer is boxed and lives, with the file, until this thread has seen the read end or the ring is gone.
            self.armed = unsafe { self.ring.submission().push(&read.build().user_data(WAKE)).is_ok() };
        }
        while !self.ring.submission().is_full() {
            if self.active.wants_job() && !closed {
                let mut state = self.queue.lock();
                let next = state.reads.pop_front().or_else(|| state.writes.pop_front());
                drop(state);
                if let Some((job, done)) = next {
                    self.active.add(job, done);
                }
            }
            let Some(entry) = self.active.next_piece() else { return };
            // SAFETY: the piece's memory belongs to a job that `Active` keeps until the piece's completion has been reaped.
            if unsafe { self.ring.submission().push(&entry) }.is_err() {
                tracing::error!("the submission queue was full after it said it was not");
                return;
            }
        }
    }

    fn reap(&mut self) {
        let done: Vec<(u64, i32)> = self.ring.completion().map(|c| (c.user_data(), c.result())).collect();
        for (user_data, result) in done {
            match user_data {
                WAKE => self.armed = false,
                CANCEL => {}
                piece => self.active.complete(piece, result),
            }
        }
    }

    /// Asks the kernel to end what it is at; disks take no notice, pipes do.
    fn cancel_all(&mut self) {
        for piece in self.active.pieces() {
            let cancel = opcode::AsyncCancel::new(piece).build().user_data(CANCEL);
            // SAFETY: a cancel refers to no memory.
            if unsafe { self.ring.submission().push(&cancel) }.is_err() {
                let _ = self.ring.submit();
                // SAFETY: as above.
                let _ = unsafe { self.ring.submission().push(&cancel) };
            }
        }
    }

    fn obey(&mut self) {
        while let Ok(Command(arena, reply)) = self.commands.try_recv() {
            let registered = self.pin(&arena);
            self.pinned.push(arena);
            let _ = reply.send(registered);
        }
    }

    fn pin(&mut self, arena: &Arena) -> Registered {
        let no = |reason: String| Registered { fixed: false, reason };
        if !self.active.has_table() {
            if let Err(e) = self.ring.submitter().register_buffers_sparse(RANGES_MAX as u32) {
                return no(format!("the kernel keeps no table of registered memory: {e}"));
            }
            self.active.made_table();
        }
        let mut bytes = 0;
        for region in arena.regions() {
            for start in (0..region.len).step_by(RANGE_BYTES_MAX) {
                let (addr, len) = (region.addr + start, RANGE_BYTES_MAX.min(region.len - start));
                let slot = self.active.ranges();
                if slot == RANGES_MAX {
                    return no(format!("more than {RANGES_MAX} ranges"));
                }
                let vec = libc::iovec { iov_base: addr as *mut libc::c_void, iov_len: len };
                // SAFETY: the range is the arena's, whose clone in `pinned` keeps it mapped longer than the ring lives.
                let update = unsafe { self.ring.submitter().register_buffers_update(slot as u32, &[vec], None) };
                if let Err(e) = update {
                    return no(format!("the kernel would not lock the memory (see ulimit -l): {e}"));
                }
                self.active.add_range(addr, len);
                bytes += len;
            }
        }
        Registered { fixed: true, reason: format!("{bytes} bytes registered") }
    }

    /// The ring is broken. What the kernel may still write to must never be used again: leak it, and answer everyone.
    fn abandon(self) {
        self.queue.close();
        self.active.leak();
        std::mem::forget((self.ring, self.wake_buf, self.pinned));
    }
}
