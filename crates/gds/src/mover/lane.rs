//! The threads of one GPU: what waits there costs no thread, what copies has one to itself.

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

/// How often events are looked at while somebody waits for one.
const LOOK_EVERY: Duration = Duration::from_micros(100);

/// The longest that an event is waited for.
const EVENT_WAIT_MAX: Duration = Duration::from_secs(30);

type Job = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs tasks for one GPU. Tasks are as many as the tier lets in ops.
pub struct Lane {
    gpu: Gpu,
    queue: Arc<Queue>,
    /// Those nobody copies with now; never more than threads.
    streams: Mutex<Vec<GpuStream>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// The longest that closing waits for calls that are under way.
    close_wait: Duration,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    ready: VecDeque<Arc<Task>>,
    /// All tasks that have not ended.
    alive: HashMap<u64, Arc<Task>>,
    /// Who looks again soon, and when that was last.
    naps: Vec<Waker>,
    looked: Option<Instant>,
    /// Threads that have not ended.
    running: usize,
    next: u64,
    closed: bool,
}

struct Task {
    id: u64,
    queue: Arc<Queue>,
    queued: AtomicBool,
    job: Mutex<Option<Job>>,
}

impl Lane {
    /// Starts its threads. Closing waits `close_wait` for calls that are under way.
    pub fn start(gpu: &Gpu, threads: usize, close_wait: Duration) -> io::Result<Arc<Self>> {
        let (gpu, queue) = (gpu.clone(), Arc::<Queue>::default());
        let lane = Arc::new(Lane {
            gpu,
            queue,
            streams: Mutex::default(),
            threads: Mutex::default(),
            close_wait,
        });
        // Dropped half started, it ends those that were.
        (0..threads).try_for_each(|n| lane.start_thread(n))?;
        Ok(lane)
    }

    fn start_thread(&self, n: usize) -> io::Result<()> {
        let (queue, name) = (Arc::clone(&self.queue), format!("gpu{}-{n}", self.gpu.ordinal()));
        self.queue.lock().running += 1;
        let started = std::thread::Builder::new().name(name).spawn(move || queue.run());
        let started = started.inspect_err(|_| self.queue.lock().running -= 1)?;
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(started);
        Ok(())
    }

    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Runs `job` on the lane's threads; once closed drops it.
    pub fn spawn(&self, job: impl Future<Output = ()> + Send + 'static) {
        let mut state = self.queue.lock();
        if state.closed {
            drop(state);
            return drop(job);
        }
        let id = state.next;
        state.next += 1;
        let (queue, job) = (Arc::clone(&self.queue), Mutex::new(Some(Box::pin(job) as Job)));
        let task = Arc::new(Task { id, queue, queued: AtomicBool::new(true), job });
        state.alive.insert(id, Arc::clone(&task));
        state.ready.push_back(task);
        drop(state);
        self.queue.changed.notify_one();
    }

    /// Does something with a stream that nobody else uses meanwhile.
    pub fn with_stream<T, E>(&self, work: impl FnOnce(&GpuStream) -> Result<T, E>) -> io::Result<T>
    where
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        let free = self.streams.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let stream = free.map_or_else(|| self.gpu.stream(), Ok).map_err(io::Error::other)?;
        let done = work(&stream).map_err(io::Error::other);
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
        done
    }

    /// Waits until an event has passed, on no thread.
    pub async fn passed(&self, event: &GpuEvent) -> io::Result<()> {
        let end = Instant::now() + EVENT_WAIT_MAX;
        while !event.has_passed().map_err(io::Error::other)? {
            if Instant::now() > end {
                let what = format!(
                    "the event before this memory has not passed within {} s",
                    EVENT_WAIT_MAX.as_secs()
                );
                return Err(io::Error::new(io::ErrorKind::TimedOut, what));
            }
            self.nap().await;
        }
        Ok(())
    }

    fn nap(&self) -> impl Future<Output = ()> {
        let mut slept = false;
        let queue = Arc::clone(&self.queue);
        poll_fn(move |cx| {
            if std::mem::replace(&mut slept, true) {
                return Poll::Ready(());
            }
            queue.lock().naps.push(cx.waker().clone());
            queue.changed.notify_one();
            Poll::Pending
        })
    }

    /// Ends the threads after what they are at, then drops what has not ended. Whether they all did
    /// in time: a call of the GPU's libraries that never returns keeps its thread, and what it
    /// was called with, for good.
    pub fn close(&self) -> bool {
        let own = self.end_threads();
        let state = self.queue.lock();
        let end = Instant::now() + self.close_wait;
        let wait = |state| {
            self.queue
                .ended
                .wait_timeout_while(state, end - Instant::now(), |s: &mut State| s.running > own)
        };
        let (mut state, _) = wait(state).unwrap_or_else(PoisonError::into_inner);
        let stuck = state.running.saturating_sub(own);
        let left: Vec<_> = state.alive.drain().map(|(_, task)| task).collect();
        (state.ready, state.naps) = Default::default();
        drop(state);
        if stuck > 0 {
            let wait = self.close_wait.as_secs_f32();
            tracing::error!(
                "{stuck} threads of {:?} are in calls that have not returned within {wait} s, and stay there",
                self.gpu
            );
        }
        left.into_iter().for_each(|task| drop(task.take_idle()));
        stuck == 0
    }

    /// Tells them, and answers how many of them are the caller.
    fn end_threads(&self) -> usize {
        self.queue.lock().closed = true;
        self.queue.changed.notify_all();
        let threads =
            std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        threads.iter().filter(|t| t.thread().id() == std::thread::current().id()).count()
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // Closed before, where it ever worked.
        self.end_threads();
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut state = self.lock();
        while !state.closed {
            if let Some(naps) = state.due() {
                // However much else is ready.
                drop(state);
                naps.into_iter().for_each(Waker::wake);
                state = self.lock();
            } else if let Some(task) = state.ready.pop_front() {
                drop(state);
                task.poll();
                state = self.lock();
            } else if state.naps.is_empty() {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            } else {
                state = self
                    .changed
                    .wait_timeout(state, LOOK_EVERY)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0;
            }
        }
        state.running -= 1;
        drop(state);
        self.ended.notify_all();
    }
}

impl State {
    /// Those who look again now, if it is time.
    fn due(&mut self) -> Option<Vec<Waker>> {
        if self.naps.is_empty() || self.looked.is_some_and(|at| at.elapsed() < LOOK_EVERY) {
            return None;
        }
        self.looked = Some(Instant::now());
        Some(std::mem::take(&mut self.naps))
    }
}

impl Task {
    /// What it was to do, if nobody is at it.
    fn take_idle(&self) -> Option<Job> {
        match self.job.try_lock() {
            Ok(mut job) => job.take(),
            Err(TryLockError::Poisoned(e)) => e.into_inner().take(),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn poll(self: Arc<Self>) {
        // Before the poll: what wakes it from now on makes it be polled again.
        self.queued.store(false, Ordering::SeqCst);
        let mut job = self.job.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(future) = job.as_mut() else { return };
        let waker = Waker::from(Arc::clone(&self));
        let polled = catch_unwind(AssertUnwindSafe(|| {
            future.as_mut().poll(&mut Context::from_waker(&waker))
        }));
        if polled.is_err() {
            tracing::error!("a transfer to or from a GPU panicked");
        }
        if !matches!(polled, Ok(Poll::Pending)) {
            // A panic ends one op, whose end is told when this drops; never the thread.
            let ended = job.take();
            drop(job);
            self.queue.lock().alive.remove(&self.id);
            drop(ended);
        }
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        if self.queued.swap(true, Ordering::SeqCst) {
            return;
        }
        let queue = Arc::clone(&self.queue);
        let mut state = queue.lock();
        if !state.closed {
            state.ready.push_back(self);
        }
        drop(state);
        queue.changed.notify_one();
    }
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.queue.lock();
        write!(f, "Lane({:?}, {} tasks)", self.gpu, state.alive.len())
    }
}
