//! The executor of one GPU: a few threads that poll tasks and call the GPU's libraries.
//!
//! A task is a future. While it waits (for a file read, for pinned memory, for an event) it uses no
//! thread. While it copies it blocks its thread in the driver, with a stream that no other task
//! uses. CUDA signals no waker when an event passes, so tasks that wait for one sleep in `sleepers`,
//! and a thread wakes all of them every [`EVENT_POLL_INTERVAL`], also under load.
//!
//! Why no wake-up is lost: `Task::poll` clears `queued` before it polls. A wake-up during the poll
//! therefore finds `queued` clear and queues the task once more; the `future` mutex makes the second
//! poll wait for the first.
//!
//! Closing: threads finish the poll that they are in and exit. Tasks that are left are dropped, and
//! their completions report that the tier was closed. A call of NVIDIA's libraries may never return.
//! `close` therefore waits for a limited time, and leaves a stuck thread its task with the memory
//! that the call uses.

use std::collections::{HashMap, VecDeque};
use std::error::Error;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kvtier_mem::cuda::{Gpu, GpuEvent, GpuStream};

/// The interval at which tasks check the events that they wait for.
const EVENT_POLL_INTERVAL: Duration = Duration::from_micros(100);

/// The longest wait for an event.
const EVENT_TIMEOUT: Duration = Duration::from_secs(30);

type BoxedFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs tasks for one GPU. The tier limits the number of operations, and so of tasks.
pub struct GpuExecutor {
    gpu: Gpu,
    queue: Arc<TaskQueue>,
    /// Streams that no task uses; at most one per thread.
    idle_streams: Mutex<Vec<GpuStream>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// The longest that `close` waits for calls that have not returned.
    close_timeout: Duration,
}

#[derive(Default)]
struct TaskQueue {
    state: Mutex<QueueState>,
    changed: Condvar,
    thread_exited: Condvar,
}

#[derive(Default)]
struct QueueState {
    ready: VecDeque<Arc<Task>>,
    /// All tasks that have not completed.
    tasks: HashMap<u64, Arc<Task>>,
    /// Tasks that wait for the next check of events.
    sleepers: Vec<Waker>,
    last_wake: Option<Instant>,
    /// Threads that have not exited.
    threads: usize,
    next_id: u64,
    is_closed: bool,
}

struct Task {
    id: u64,
    queue: Arc<TaskQueue>,
    /// Whether it is in `ready`.
    queued: AtomicBool,
    /// `None` once it has completed.
    future: Mutex<Option<BoxedFuture>>,
}

impl GpuExecutor {
    /// Starts the threads. `close` waits at most `close_timeout` for calls that have not returned.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start(gpu: &Gpu, threads: usize, close_timeout: Duration) -> io::Result<Arc<Self>> {
        let executor = Arc::new(GpuExecutor {
            gpu: gpu.clone(),
            queue: Arc::default(),
            idle_streams: Mutex::default(),
            threads: Mutex::default(),
            close_timeout,
        });
        // On an error the drop stops the threads that were started.
        (0..threads).try_for_each(|n| executor.start_thread(n))?;
        Ok(executor)
    }

    fn start_thread(&self, n: usize) -> io::Result<()> {
        let queue = Arc::clone(&self.queue);
        let name = format!("gpu{}-{n}", self.gpu.ordinal());
        // Counted before it runs: `close` must not miss a thread that has started and not yet taken
        // the lock.
        self.queue.lock().threads += 1;
        let started = std::thread::Builder::new().name(name).spawn(move || queue.run());
        let started = started.inspect_err(|_| self.queue.lock().threads -= 1)?;
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(started);
        Ok(())
    }

    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Runs a future on the executor's threads. A closed executor drops it.
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        let mut state = self.queue.lock();
        // Dropped without the lock: the drop completes an operation, whose callback may call this
        // executor.
        if state.is_closed {
            drop(state);
            return drop(future);
        }
        let id = state.next_id;
        state.next_id += 1;
        let task = Arc::new(Task {
            id,
            queue: Arc::clone(&self.queue),
            // It enters `ready` below, so that a wake-up before its first poll does not add it
            // twice.
            queued: AtomicBool::new(true),
            future: Mutex::new(Some(Box::pin(future))),
        });
        state.tasks.insert(id, Arc::clone(&task));
        state.ready.push_back(task);
        drop(state);
        self.queue.changed.notify_one();
    }

    /// Runs `work` with a stream that no other task uses meanwhile.
    pub fn with_stream<T, E>(&self, work: impl FnOnce(&GpuStream) -> Result<T, E>) -> io::Result<T>
    where
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        // A stream of its own for each call: `work` waits for the stream, and must not wait for
        // copies of other tasks.
        let idle = self.idle_streams.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let stream = idle.map_or_else(|| self.gpu.stream(), Ok).map_err(io::Error::other)?;
        let done = work(&stream).map_err(io::Error::other);
        // Also after an error. A call that never returns keeps its stream.
        self.idle_streams.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
        done
    }

    /// Waits until an event has passed, without blocking a thread.
    ///
    /// # Errors
    /// `TimedOut` after 30 s; what the driver reports.
    pub async fn wait_for(&self, event: &GpuEvent) -> io::Result<()> {
        let deadline = Instant::now() + EVENT_TIMEOUT;
        // CUDA has no notification for events that an async task could wait for, so this polls.
        while !event.has_passed().map_err(io::Error::other)? {
            if Instant::now() > deadline {
                let what = format!(
                    "the event before this memory has not passed within {} s",
                    EVENT_TIMEOUT.as_secs()
                );
                return Err(io::Error::new(io::ErrorKind::TimedOut, what));
            }
            self.sleep().await;
        }
        Ok(())
    }

    /// Waits for the next check of events.
    fn sleep(&self) -> impl Future<Output = ()> {
        let mut slept = false;
        let queue = Arc::clone(&self.queue);
        poll_fn(move |cx| {
            // The waker is only called for the next check, so the second poll means that it is due.
            if std::mem::replace(&mut slept, true) {
                return Poll::Ready(());
            }
            queue.lock().sleepers.push(cx.waker().clone());
            queue.changed.notify_one();
            Poll::Pending
        })
    }

    /// Stops the threads after the polls that they are in, then drops the remaining tasks. Returns
    /// whether all threads exited in time. A call of the GPU's libraries that never returns keeps
    /// its thread and its arguments for good.
    pub fn close(&self) -> bool {
        // The last user of a tier may be a callback on one of these threads. It cannot wait for
        // itself.
        let own = self.stop_threads();
        let state = self.queue.lock();
        let deadline = Instant::now() + self.close_timeout;
        let wait = |state| {
            self.queue.thread_exited.wait_timeout_while(
                state,
                deadline - Instant::now(),
                |s: &mut QueueState| s.threads > own,
            )
        };
        let (mut state, _) = wait(state).unwrap_or_else(PoisonError::into_inner);
        let stuck = state.threads.saturating_sub(own);
        let remaining: Vec<_> = state.tasks.drain().map(|(_, task)| task).collect();
        state.ready.clear();
        let sleepers = std::mem::take(&mut state.sleepers);
        drop(state);
        // Wakers hold tasks, and dropping the last reference to a task runs callbacks: not under
        // the lock.
        drop(sleepers);
        if stuck > 0 {
            let wait = self.close_timeout.as_secs_f32();
            tracing::error!(
                "{stuck} threads of {:?} are in calls that have not returned within {wait} s, and stay there",
                self.gpu
            );
        }
        // A task that a stuck thread polls is left alone: its memory is in use by the call.
        remaining.into_iter().for_each(|task| drop(task.take_idle()));
        stuck == 0
    }

    /// Makes the threads exit. Returns 1 if the caller is one of them, else 0.
    fn stop_threads(&self) -> usize {
        self.queue.lock().is_closed = true;
        self.queue.changed.notify_all();
        let threads =
            std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        // The handles are dropped and not joined, since a join of a stuck thread would never end.
        threads.iter().filter(|t| t.thread().id() == std::thread::current().id()).count()
    }
}

impl Drop for GpuExecutor {
    fn drop(&mut self) {
        // After `close` this has no effect. Without it, `start` failed.
        self.stop_threads();
    }
}

impl TaskQueue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut state = self.lock();
        while !state.is_closed {
            if let Some(sleepers) = state.due_sleepers() {
                // Before ready tasks, so that load does not delay the check of events.
                drop(state);
                sleepers.into_iter().for_each(Waker::wake);
                state = self.lock();
            } else if let Some(task) = state.ready.pop_front() {
                drop(state);
                task.poll();
                state = self.lock();
            } else if state.sleepers.is_empty() {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            } else {
                state = self
                    .changed
                    .wait_timeout(state, EVENT_POLL_INTERVAL)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0;
            }
        }
        state.threads -= 1;
        drop(state);
        self.thread_exited.notify_all();
    }
}

impl QueueState {
    /// The tasks to wake for a check of events, if the interval has passed.
    fn due_sleepers(&mut self) -> Option<Vec<Waker>> {
        let is_early = self.last_wake.is_some_and(|at| at.elapsed() < EVENT_POLL_INTERVAL);
        if self.sleepers.is_empty() || is_early {
            return None;
        }
        self.last_wake = Some(Instant::now());
        Some(std::mem::take(&mut self.sleepers))
    }
}

impl Task {
    /// Takes the future unless a thread is polling it.
    fn take_idle(&self) -> Option<BoxedFuture> {
        match self.future.try_lock() {
            Ok(mut future) => future.take(),
            // A panic in the poll poisoned it; the future can still be dropped.
            Err(TryLockError::Poisoned(e)) => e.into_inner().take(),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn poll(self: Arc<Self>) {
        // Before the poll: a wake-up from now on queues the task again.
        self.queued.store(false, Ordering::SeqCst);
        let mut slot = self.future.lock().unwrap_or_else(PoisonError::into_inner);
        // Completed by an earlier poll, or taken by `close`.
        let Some(future) = slot.as_mut() else { return };
        let waker = Waker::from(Arc::clone(&self));
        let polled = catch_unwind(AssertUnwindSafe(|| {
            future.as_mut().poll(&mut Context::from_waker(&waker))
        }));
        if polled.is_err() {
            tracing::error!("a transfer to or from a GPU panicked");
        }
        if !matches!(polled, Ok(Poll::Pending)) {
            // A panic ends the task, not the thread: the drop completes the operation as closed.
            let completed = slot.take();
            // The future is dropped last and without locks, since its drop completes the operation.
            drop(slot);
            self.queue.lock().tasks.remove(&self.id);
            drop(completed);
        }
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        // It is in `ready` already, and the poll to come sees what this wake-up is about.
        if self.queued.swap(true, Ordering::SeqCst) {
            return;
        }
        let queue = Arc::clone(&self.queue);
        let mut state = queue.lock();
        // After `close` no thread would take it out again, and the queue and the task would hold
        // each other for ever.
        if !state.is_closed {
            state.ready.push_back(self);
        }
        drop(state);
        queue.changed.notify_one();
    }
}

impl fmt::Debug for GpuExecutor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.queue.lock();
        write!(f, "GpuExecutor({:?}, {} tasks)", self.gpu, state.tasks.len())
    }
}
