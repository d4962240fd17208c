//! Starts work on a thread of its own, because naming and submitting the chunks of a job costs more
//! than an engine's scheduler has time for.
//!
//! The thread polls the future of a job once, which submits its operations. Then it hands the future
//! over to the [`Started`] that waits for it, which polls it again, and so registers its own waker.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::thread::{self, JoinHandle};

use crate::catch_panic::{Panicked, catch_panic};

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Work = Box<dyn FnOnce() + Send>;

/// The most work that waits for the thread.
const WAITING_MAX: usize = 256;

/// The thread. Dropping this waits until its work is done and the thread has ended.
#[derive(Debug)]
pub struct Submitter {
    /// `None` once it is dropped, which the thread sees as the end of its work.
    work: Option<Arc<SyncSender<Work>>>,
    thread: Option<JoinHandle<()>>,
    /// The process that has the thread: a forked child has none to wait for.
    pid: u32,
}

/// The thread, which may have ended.
#[derive(Clone, Debug)]
pub struct WeakSubmitter(Weak<SyncSender<Work>>);

impl WeakSubmitter {
    /// Runs work on the thread. Where too much waits, or the thread ended, it is dropped.
    pub fn run_if_free(&self, work: impl FnOnce() + Send + 'static) {
        if let Some(sender) = self.0.upgrade() {
            drop(try_send(&sender, Box::new(work)));
        }
    }
}

/// Returns the work if too much waits.
fn try_send(sender: &SyncSender<Work>, work: Work) -> Option<Work> {
    match sender.try_send(work) {
        Ok(()) => None,
        Err(TrySendError::Full(work) | TrySendError::Disconnected(work)) => Some(work),
    }
}

/// A job that starts on the thread: a future. It resolves also where the job panics, on whichever
/// thread: what waits for a job must not wait for ever.
pub struct Started<T> {
    handover: Arc<Handover<T>>,
    running: Option<BoxFuture<Result<T, Panicked>>>,
}

struct Handover<T>(Mutex<State<T>>);

struct State<T> {
    started: Option<Progress<T>>,
    waker: Option<Waker>,
}

/// A future that was polled once.
enum Progress<T> {
    Done(Result<T, Panicked>),
    Running(BoxFuture<Result<T, Panicked>>),
}

impl<T> Default for State<T> {
    fn default() -> Self {
        State { started: None, waker: None }
    }
}

impl Submitter {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn start(name: &str) -> std::io::Result<Self> {
        // Bounded: a scheduler that submits faster than the thread works must feel it, since each
        // job pins rows of the engine's memory.
        let (sender, work) = sync_channel::<Work>(WAITING_MAX);
        let run = move || work.into_iter().for_each(run_one);
        let thread = thread::Builder::new().name(name.into()).spawn(run)?;
        Ok(Submitter {
            work: Some(Arc::new(sender)),
            thread: Some(thread),
            pid: std::process::id(),
        })
    }

    /// Runs work on the thread, after the work that waits there. Where too much waits, the caller
    /// does it.
    pub fn run(&self, work: impl FnOnce() + Send + 'static) {
        if let Some(work) = self.send(Box::new(work)) {
            work();
        }
    }

    /// The same for work that is not needed: where too much waits it is dropped, so that the caller
    /// never does it. Returns whether it will run.
    pub fn run_if_free(&self, work: impl FnOnce() + Send + 'static) -> bool {
        self.send(Box::new(work)).is_none()
    }

    /// Returns the work if too much waits.
    fn send(&self, work: Work) -> Option<Work> {
        let Some(sender) = &self.work else { return Some(work) };
        try_send(sender, work)
    }

    /// Gives work to the thread as long as it runs, and does not keep it running.
    pub fn downgrade(&self) -> WeakSubmitter {
        WeakSubmitter(self.work.as_ref().map_or_else(Weak::new, Arc::downgrade))
    }

    /// Makes a future on the thread and polls it there for the first time.
    pub fn future<T, F>(&self, make: impl FnOnce() -> F + Send + 'static) -> Started<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let handover = Arc::<Handover<T>>::default();
        let theirs = Arc::clone(&handover);
        self.run(move || theirs.begin(make));
        Started { handover, running: None }
    }

    /// The same for a future that is not needed: it does not begin once its caller has dropped it.
    /// `None` where too much waits, so that the caller never begins it itself.
    pub fn future_if_free<T, F>(
        &self,
        make: impl FnOnce() -> F + Send + 'static,
    ) -> Option<Started<T>>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let handover = Arc::<Handover<T>>::default();
        let theirs = Arc::downgrade(&handover);
        let is_sent = self.run_if_free(move || {
            if let Some(theirs) = theirs.upgrade() {
                theirs.begin(make);
            }
        });
        is_sent.then_some(Started { handover, running: None })
    }
}

impl Drop for Submitter {
    fn drop(&mut self) {
        self.work = None;
        if let Some(thread) = self.thread.take()
            && self.pid == std::process::id()
        {
            // `run_one` lets no panic end the thread, so there is no error to report.
            let _ = thread.join();
        }
    }
}

/// Runs one piece of work. Its panic must not end the thread, on which all later work depends.
fn run_one(work: Work) {
    // The hook for panics has reported it.
    let _ = catch_unwind(AssertUnwindSafe(work));
}

impl<T> Default for Handover<T> {
    fn default() -> Self {
        Handover(Mutex::default())
    }
}

impl<T: Send + 'static> Handover<T> {
    /// Makes the future and polls it for the first time.
    fn begin<F>(&self, make: impl FnOnce() -> F + Send + 'static)
    where
        F: Future<Output = T> + Send + 'static,
    {
        // The job is made within, so that this panic is caught too.
        let mut future: BoxFuture<Result<T, Panicked>> =
            Box::pin(catch_panic(async move { make().await }));
        let progress = match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            // The waker does nothing, which loses no wake-up: the future is polled again after the
            // handover, and reports then that it is ready.
            Poll::Ready(output) => Progress::Done(output),
            Poll::Pending => Progress::Running(future),
        };
        let waker = {
            // The result and the waker change hands under one lock: `poll` either finds the result,
            // or leaves its waker before the result is there.
            let mut state = self.lock();
            state.started = Some(progress);
            state.waker.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }
}

impl<T> Handover<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Future for Started<T> {
    type Output = Result<T, Panicked>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.running.is_none() {
            let mut state = self.handover.lock();
            match state.started.take() {
                Some(Progress::Done(output)) => return Poll::Ready(output),
                Some(Progress::Running(future)) => {
                    // Not polled under the lock: the future may run for long, and the thread needs
                    // the lock.
                    drop(state);
                    self.running = Some(future);
                }
                None => {
                    state.waker = Some(context.waker().clone());
                    return Poll::Pending;
                }
            }
        }
        match &mut self.running {
            Some(future) => future.as_mut().poll(context),
            None => Poll::Pending,
        }
    }
}
