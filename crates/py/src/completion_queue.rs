//! The completion side of a queue: batches as futures without a thread, and an event descriptor.
//!
//! A tier's thread that finishes an operation wakes the batch's future. The waker only records the
//! batch's id and signals the descriptor: it takes no Python lock and polls nothing, so a tier's
//! thread never waits for Python. The caller sees the descriptor readable and calls
//! [`CompletionQueue::poll`], which polls the futures that were woken, on the caller's thread.
//!
//! No wake-up is lost. `EventSignal` clears the descriptor and takes the recorded ids under one
//! lock, under which `notify` records an id and signals. An id recorded after the clear therefore
//! signals again, and one recorded before it is among those taken. A future that is woken while it
//! is polled is recorded again and polled by the next call. A batch that completes while it is
//! started signals without an id, so that the caller collects its result.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use nix::sys::eventfd::{EfdFlags, EventFd};

type BatchFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A batch that completed.
#[derive(Debug)]
pub struct Completion<T> {
    /// The id that its submission returned.
    pub id: u64,
    pub result: T,
}

/// Batches without a collected result.
pub struct CompletionQueue<T> {
    signal: Arc<EventSignal>,
    batches: Mutex<Batches<T>>,
}

struct Batches<T> {
    last_id: u64,
    running: HashMap<u64, BatchFuture<T>>,
    completed: Vec<Completion<T>>,
}

/// An event descriptor, signalled once for all wake-ups until they are taken.
struct EventSignal {
    fd: EventFd,
    /// A duplicate for the caller, which may have closed it. The number then belongs to another file.
    /// Therefore nothing is written to it, and it is closed only after a check.
    caller_fd: RawFd,
    /// Changed under the lock on `woken`, read without it.
    is_signalled: AtomicBool,
    /// The ids of the batches that were woken.
    woken: Mutex<Vec<u64>>,
    /// Called when a batch is woken, once until the wake-ups are taken.
    when_woken: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

struct BatchWaker {
    id: u64,
    signal: Arc<EventSignal>,
}

impl Wake for BatchWaker {
    fn wake(self: Arc<Self>) {
        self.signal.notify(Some(self.id));
    }
}

impl EventSignal {
    fn new() -> std::io::Result<Self> {
        // Non-blocking: a write to a full counter and a read of an empty one must not stop a tier's
        // thread. Close-on-exec: a child of the host has no use for it.
        let fd = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
        // The caller may close its descriptor: wake-ups go to the other one.
        let caller_fd = fd.as_fd().try_clone_to_owned()?.into_raw_fd();
        Ok(EventSignal {
            fd,
            caller_fd,
            is_signalled: AtomicBool::new(false),
            woken: Mutex::default(),
            when_woken: OnceLock::new(),
        })
    }

    /// Makes the descriptor readable and records the batch that was woken, if one was.
    fn notify(&self, id: Option<u64>) {
        let mut woken = self.woken.lock().unwrap_or_else(PoisonError::into_inner);
        woken.extend(id);
        let is_first = !self.is_signalled.swap(true, Ordering::AcqRel);
        if is_first {
            // Fails only if the counter is full, and then the descriptor is readable anyway.
            let _ = self.fd.write(1);
        }
        drop(woken);
        if is_first && let Some(call) = self.when_woken.get() {
            call();
        }
    }

    /// Clears the descriptor and takes the ids of the batches that were woken.
    fn take(&self) -> Vec<u64> {
        let mut woken = self.woken.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_signalled.swap(false, Ordering::AcqRel) {
            let _ = self.fd.read();
        }
        std::mem::take(&mut *woken)
    }
}

impl Drop for EventSignal {
    fn drop(&mut self) {
        let own = eventfd_id(self.fd.as_fd().as_raw_fd());
        // Two descriptors of one counter have one id. Where the caller closed its own, the number
        // may mean another file by now, which must stay open.
        if own.is_some() && own == eventfd_id(self.caller_fd) {
            // SAFETY: the number still names the duplicate made in `new`, which nothing else owns.
            drop(unsafe { OwnedFd::from_raw_fd(self.caller_fd) });
        }
    }
}

/// The kernel's id of the event counter behind a descriptor; `None` for any other file.
fn eventfd_id(fd: RawFd) -> Option<String> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).ok()?;
    info.lines().find(|line| line.starts_with("eventfd-id:")).map(str::to_owned)
}

impl<T> CompletionQueue<T> {
    /// An empty queue.
    ///
    /// # Errors
    /// The kernel refuses an event descriptor.
    pub fn new() -> std::io::Result<Self> {
        let batches = Batches { last_id: 0, running: HashMap::new(), completed: Vec::new() };
        Ok(CompletionQueue { signal: Arc::new(EventSignal::new()?), batches: Mutex::new(batches) })
    }

    /// The descriptor that is readable while [`CompletionQueue::poll`] has something to do.
    pub fn event_fd(&self) -> RawFd {
        self.signal.caller_fd
    }

    /// Starts a batch and returns its id, which is unique within this queue.
    pub fn start(&self, batch: impl Future<Output = T> + Send + 'static) -> u64 {
        let mut batches = self.batches();
        batches.last_id += 1;
        let id = batches.last_id;
        batches.running.insert(id, Box::pin(batch));
        // Polled here for the first time, since a tier answers many batches from memory at once.
        // Then no wake-up comes, and a signal without an id makes the caller collect the result.
        if batches.poll(id, &self.signal) {
            self.signal.notify(None);
        }
        id
    }

    /// The batches that completed since the last call, in the order of their completion. Never
    /// waits.
    pub fn poll(&self) -> Vec<Completion<T>> {
        // Before the lock on the batches: a thread that wakes one meanwhile only records its id.
        let mut woken = self.signal.take();
        // A batch that was woken several times is polled once.
        woken.sort_unstable();
        woken.dedup();
        let mut batches = self.batches();
        for id in woken {
            batches.poll(id, &self.signal);
        }
        std::mem::take(&mut batches.completed)
    }

    /// Calls this, on the thread that wakes a batch, when there is something to
    /// [poll](CompletionQueue::poll). Only the first call of this sets it.
    pub fn when_woken(&self, call: impl Fn() + Send + Sync + 'static) {
        let _ = self.signal.when_woken.set(Box::new(call));
    }

    /// Whether [`poll`](CompletionQueue::poll) has something to do. No lock is taken.
    pub fn is_signalled(&self) -> bool {
        self.signal.is_signalled.load(Ordering::Acquire)
    }

    /// The number of batches without a collected result.
    pub fn pending(&self) -> usize {
        let batches = self.batches();
        batches.running.len() + batches.completed.len()
    }

    /// Whether a batch has no collected result yet.
    pub fn is_pending(&self, id: u64) -> bool {
        let batches = self.batches();
        batches.running.contains_key(&id) || batches.completed.iter().any(|done| done.id == id)
    }

    fn batches(&self) -> MutexGuard<'_, Batches<T>> {
        self.batches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Batches<T> {
    /// Polls a batch; returns whether it completed.
    fn poll(&mut self, id: u64, signal: &Arc<EventSignal>) -> bool {
        // A batch may be woken again after it completed.
        // The id is never used again, so a late wake-up finds nothing.
        let Some(batch) = self.running.get_mut(&id) else { return false };
        let waker = Waker::from(Arc::new(BatchWaker { id, signal: Arc::clone(signal) }));
        let Poll::Ready(result) = batch.as_mut().poll(&mut Context::from_waker(&waker)) else {
            return false;
        };
        self.running.remove(&id);
        self.completed.push(Completion { id, result });
        true
    }
}
