use std::fs::File;
use std::io::{self, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, ThreadId};
use std::time::{Duration, Instant};

use io_uring::{IoUring, opcode, types};
use kvtier_mem::Arena;

use crate::config::EngineConfig;
use crate::registered_memory::{Registered, RingMemory};
use crate::ring_setup::build;
use crate::running::{EndedJob, PieceRequest};
use crate::shared_schedule::{AbandonOnPanic, Shared};
use crate::stats::EngineCounts;
use crate::{Error, ErrorKind};

/// `user_data` of the read that wakes the thread, and of cancels; pieces have numbers without the
/// top bit.
const WAKE: u64 = u64::MAX;
const CANCEL: u64 = u64::MAX - 1;
/// While the engine closes: the pause before requests are cancelled again.
const CANCEL_AGAIN_MS: u32 = 20;
/// The most commands that wait for the thread; further callers block.
const COMMANDS_MAX: usize = 16;

// How the thread sleeps, wakes and ends, and why memory stays valid:
//
// - Only the thread itself submits to its ring, so the ring needs no lock. Callers put jobs into
//   the schedule and wake the thread; what else they want of it goes through `commands`.
// - The thread sleeps inside the kernel until a completion arrives. An eventfd read is always armed
//   in the ring, so a write to that eventfd is a completion too. A caller first pushes its job and
//   then writes. The thread first consumes the completion, arms the read again, and then looks into
//   the schedule. So a job pushed at any time is seen in this round or causes the next one.
// - The order in `run` is: commands, arm, feed, enter, reap. The thread sleeps
//   in `enter`, and for a job pushed after `feed` only an armed read ends that sleep.
// - The engine ends in order only when no piece is in flight and the read of the eventfd has ended.
//   Then the kernel holds no address of ours, and the ring, the buffer and the pinned memory go in
//   this order.
// - A thread that panics drops none of that (`ManuallyDrop`): the kernel may still write. The guard
//   of the thread ends every job meanwhile, and leaks the memory of pieces in flight.

/// The io_uring engine: one thread that builds its own ring, sleeps in it, and is woken by an
/// eventfd read armed in it.
#[derive(Debug)]
pub struct Reactor {
    wake: File,
    commands: SyncSender<ReactorCommand>,
    id: ThreadId,
    handle: Mutex<Option<JoinHandle<()>>>,
}

/// What only the ring's own thread can do.
pub enum ReactorCommand {
    /// Pins an arena's memory; returns how.
    Register(Arena, SyncSender<Registered>),
    /// Panics, for a test.
    #[cfg(test)]
    Panic,
}

impl Reactor {
    pub fn start(
        config: &EngineConfig,
        shared: &Arc<Shared>,
        counts: &Arc<EngineCounts>,
    ) -> Result<(Self, String), Error> {
        let failed = |e| Error::io("cannot start an I/O thread", e);
        let wake = eventfd().map_err(failed)?;
        let theirs = wake.try_clone().map_err(failed)?;
        let (commands, receiver) = sync_channel(COMMANDS_MAX);
        let (ready, started) = sync_channel(1);
        let config = config.clone();
        let shared = Arc::clone(shared);
        let counts = Arc::clone(counts);
        let run = move || {
            let ring = match build(&config) {
                Ok((ring, how)) => {
                    let _ = ready.send(Ok(how.to_owned()));
                    ring
                }
                Err(e) => return drop(ready.send(Err(e))),
            };
            let _guard = AbandonOnPanic(&shared);
            Loop::new(ring, &shared, counts, theirs, receiver).run();
        };
        let handle =
            std::thread::Builder::new().name("kvtier-uring".into()).spawn(run).map_err(failed)?;
        let died = |_| Error::new(ErrorKind::Closed, "the I/O thread died at its start");
        // The ring is built on its own thread, since io_uring may be set up for a single issuer. So
        // the result has to come back before the engine is handed out.
        let how = started.recv().map_err(died)??;
        let id = handle.thread().id();
        Ok((Reactor { wake, commands, id, handle: Mutex::new(Some(handle)) }, how))
    }

    pub fn wake(&self) {
        // Can only fail when the counter is at its limit, and then the thread is awake anyway.
        let _ = (&self.wake).write(&1u64.to_ne_bytes());
    }

    pub fn command(&self, command: ReactorCommand) -> Result<(), Error> {
        // First the command, then the wake-up, or the thread might look before the command is
        // there.
        self.commands.send(command).map_err(|_| Error::closed())?;
        self.wake();
        Ok(())
    }

    pub fn register(&self, arena: &Arena) -> Result<Registered, Error> {
        let (reply, answer) = sync_channel(1);
        self.command(ReactorCommand::Register(arena.clone(), reply))?;
        answer.recv().map_err(|_| Error::closed())
    }

    /// Whether this is the reactor's own thread.
    pub fn is_current(&self) -> bool {
        self.id == std::thread::current().id()
    }

    pub fn join(&self) {
        self.wake();
        let mut handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(handle) = handle.take() {
            let _ = handle.join();
        }
    }
}

fn eventfd() -> io::Result<File> {
    // SAFETY: a plain system call; the result is checked before it becomes a file.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the fresh descriptor is ours alone.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// What the kernel may use as long as it has requests. Let go of only at an orderly end: a thread
/// that dies leaves it all as it is.
struct KernelState {
    ring: IoUring,
    wake_buf: Box<[u8; 8]>,
    pinned: RingMemory,
}

struct Loop<'a> {
    kernel: ManuallyDrop<KernelState>,
    shared: &'a Shared,
    counts: Arc<EngineCounts>,
    wake: File,
    armed: bool,
    /// When the kernel was asked last to let go.
    cancelled: Option<Instant>,
    commands: Receiver<ReactorCommand>,
}

impl<'a> Loop<'a> {
    fn new(
        ring: IoUring,
        shared: &'a Shared,
        counts: Arc<EngineCounts>,
        wake: File,
        commands: Receiver<ReactorCommand>,
    ) -> Self {
        let kernel =
            KernelState { ring, wake_buf: Box::new([0; 8]), pinned: RingMemory::default() };
        Loop {
            kernel: ManuallyDrop::new(kernel),
            shared,
            counts,
            wake,
            armed: false,
            cancelled: None,
            commands,
        }
    }

    fn run(mut self) {
        loop {
            self.obey();
            // A closed engine needs no wake-up, and could not end while one is armed.
            if !self.shared.lock().is_closed() {
                self.arm();
            }
            self.feed();
            let (closed, idle) = {
                let sched = self.shared.lock();
                (sched.is_closed(), sched.is_idle())
            };
            if closed && idle {
                if !self.armed {
                    break;
                }
                // The wake-up's buffer is in the kernel's hands until that read has ended too.
                let _ = (&self.wake).write(&1u64.to_ne_bytes());
            }
            if closed {
                self.cancel_now_and_then();
            }
            // Not the failure of one request, which a completion would report: the ring itself does
            // not work. No later completion can be trusted to arrive, so every job ends now.
            if let Err(e) = self.enter(closed) {
                tracing::error!("io_uring failed: {e}");
                return self.shared.abandon();
            }
            self.reap();
        }
        // SAFETY: taken once, as the last thing; nothing is in flight, so the ring goes first and
        // its memory after it.
        let KernelState { ring, wake_buf, pinned } =
            unsafe { ManuallyDrop::take(&mut self.kernel) };
        drop(ring);
        drop((wake_buf, pinned));
    }

    fn obey(&mut self) {
        while let Ok(command) = self.commands.try_recv() {
            match command {
                ReactorCommand::Register(arena, reply) => {
                    let KernelState { ring, pinned, .. } = &mut *self.kernel;
                    let registered = pinned.add(ring, arena);
                    self.counts.registered(registered.bytes);
                    let _ = reply.send(registered);
                }
                #[cfg(test)]
                ReactorCommand::Panic => panic!("requested by a test"),
            }
        }
    }

    /// Hands the kernel as many pieces as it may have.
    fn feed(&mut self) {
        let free = {
            let queue = self.kernel.ring.submission();
            queue.capacity() - queue.len()
        };
        // The lock is taken once for all requests, and no system call happens under it.
        let mut ended = Vec::new();
        let requests: Vec<PieceRequest> = {
            let mut sched = self.shared.lock();
            std::iter::from_fn(|| sched.next(&mut ended)).take(free).collect()
        };
        for request in &requests {
            // Whether the memory is registered is decided here and not when the job was submitted,
            // since an arena may be registered at any time.
            let (entry, fixed) = self.kernel.pinned.entry(request);
            self.counts.request(fixed);
            // SAFETY: the piece's memory and file belong to a job that the schedule keeps until it
            // gets the piece's completion.
            let pushed = unsafe { self.kernel.ring.submission().push(&entry) };
            assert!(pushed.is_ok(), "the queue had space for {} requests", requests.len());
        }
        ended.into_iter().for_each(EndedJob::answer);
    }

    fn arm(&mut self) {
        if self.armed {
            return;
        }
        let read = opcode::Read::new(
            types::Fd(self.wake.as_raw_fd()),
            self.kernel.wake_buf.as_mut_ptr(),
            8,
        );
        // SAFETY: the buffer is boxed; it and the file are let go of only after this read was seen
        // to end.
        self.armed =
            unsafe { self.kernel.ring.submission().push(&read.build().user_data(WAKE)) }.is_ok();
    }

    /// A cancel that ends nothing is answered at once: repeated after each completion, it would
    /// keep a core busy.
    fn cancel_now_and_then(&mut self) {
        let wait = Duration::from_millis(CANCEL_AGAIN_MS.into());
        let rest = self.cancelled.map_or(Duration::ZERO, |at| wait.saturating_sub(at.elapsed()));
        if !rest.is_zero() {
            if self.kernel.ring.params().is_feature_ext_arg() {
                return;
            }
            // Such a kernel waits without a limit: not before it was asked again.
            std::thread::sleep(rest);
        }
        self.cancelled = Some(Instant::now());
        self.cancel_all();
    }

    /// Asks the kernel to cancel its requests; disks ignore that, pipes do not. What finds no space is
    /// asked the next time.
    fn cancel_all(&mut self) {
        // Only pieces are cancelled, and each by its own number. A cancel that comes too late finds
        // no such request, because numbers are not reused.
        let inflight = self.shared.lock().inflight();
        for number in inflight {
            let cancel = opcode::AsyncCancel::new(number).build().user_data(CANCEL);
            // SAFETY: a cancel refers to no memory.
            if unsafe { self.kernel.ring.submission().push(&cancel) }.is_err() {
                return;
            }
        }
    }

    /// Submits, and sleeps until something completes; while closing not for long, since a cancel
    /// may miss its target.
    fn enter(&self, closed: bool) -> io::Result<()> {
        let ring = &self.kernel.ring;
        let entered = if closed && ring.params().is_feature_ext_arg() {
            let wait = types::Timespec::new().nsec(CANCEL_AGAIN_MS * 1_000_000);
            ring.submitter().submit_with_args(1, &types::SubmitArgs::new().timespec(&wait))
        } else {
            ring.submit_and_wait(1)
        };
        // Interrupted, out of memory for now, or the completion queue is full: what is submitted
        // stays submitted, and the next round reaps and enters again.
        match entered {
            Err(e)
                if !matches!(
                    e.raw_os_error(),
                    Some(libc::EINTR | libc::EAGAIN | libc::EBUSY | libc::ETIME)
                ) =>
            {
                Err(e)
            }
            _ => Ok(()),
        }
    }

    fn reap(&mut self) {
        // Copied out first: `completed` runs callbacks, which may take long, and the kernel needs
        // the space in its queue meanwhile.
        let completed: Vec<(u64, i32)> =
            self.kernel.ring.completion().map(|c| (c.user_data(), c.result())).collect();
        for (user_data, result) in completed {
            match user_data {
                WAKE => self.armed = false,
                CANCEL => {}
                piece => self.shared.completed(piece, result),
            }
        }
    }
}
