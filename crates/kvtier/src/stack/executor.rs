//! The stack's executor: one thread that polls the futures of batches.
//!
//! A task is polled by the thread only, and its waker puts it back into the queue. A task may be in
//! the queue twice if it is woken while it runs; polling a finished task does nothing. The thread
//! ends once the executor is dropped and no task is open: each op of a task has a deadline, so that
//! this always happens. A simulated process has no threads, and polls them among what it runs later.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Condvar, Mutex, MutexGuard};

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// One thread that polls the tickets of a stack. The stack's gate bounds the number of tasks.
pub struct Executor {
    spawner: Spawner,
    thread: Option<JoinHandle<()>>,
}

/// Adds tasks to an executor.
#[derive(Clone)]
pub struct Spawner(Arc<Shared>);

#[derive(Default)]
struct Shared {
    queue: Mutex<RunQueue>,
    work: Condvar,
}

#[derive(Default)]
struct RunQueue {
    ready: VecDeque<Arc<Task>>,
    open: usize,
    closed: bool,
}

struct Task {
    work: Mutex<Option<Work>>,
    shared: Arc<Shared>,
}

impl Executor {
    pub fn start(name: &str) -> std::io::Result<Self> {
        let shared = Arc::<Shared>::default();
        if kvtier_os::is_simulated() {
            return Ok(Executor { spawner: Spawner(shared), thread: None });
        }
        let theirs = Arc::clone(&shared);
        let thread = thread::Builder::new().name(name.into()).spawn(move || theirs.run())?;
        Ok(Executor { spawner: Spawner(shared), thread: Some(thread) })
    }

    pub fn spawner(&self) -> &Spawner {
        &self.spawner
    }

    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.spawner.spawn(work);
    }
}

impl Spawner {
    /// Adds a task. Once the executor was dropped and has no other task, the task is dropped
    /// instead.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut queue = self.0.lock();
        // The thread has ended or is about to. A task that is queued now would never be polled, and
        // its slots never answered; dropping it answers them.
        if queue.closed && queue.open == 0 {
            // Dropping the task runs the destructors of its slots, which may wake another task and
            // take this lock.
            drop(queue);
            return drop(work);
        }
        // An open task keeps the thread alive after the close: a task may spawn another while it
        // ends.
        queue.open += 1;
        queue.ready.push_back(Arc::new(Task {
            work: Mutex::new(Some(Box::pin(work))),
            shared: Arc::clone(&self.0),
        }));
        drop(queue);
        self.0.wake();
    }
}

impl Shared {
    /// A task is ready.
    fn wake(self: &Arc<Self>) {
        if kvtier_os::is_simulated() {
            let theirs = Arc::clone(self);
            return kvtier_os::later(Duration::ZERO, move || theirs.run_ready());
        }
        self.work.notify_one();
    }

    /// Polls what is ready.
    fn run_ready(&self) {
        loop {
            let Some(task) = self.lock().ready.pop_front() else { return };
            let done = task.step();
            self.lock().open -= usize::from(done);
        }
    }

    fn lock(&self) -> MutexGuard<'_, RunQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut queue = self.lock();
        loop {
            match queue.ready.pop_front() {
                Some(task) => {
                    drop(queue);
                    // The lock is free meanwhile, so that tasks can be woken and spawned while one
                    // is polled.
                    let done = task.step();
                    queue = self.lock();
                    queue.open -= usize::from(done);
                }
                // Nothing ready is not the end: an open task waits for a tier and will be woken.
                None if queue.closed && queue.open == 0 => return,
                None => queue = self.work.wait(queue).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

impl Task {
    /// Polls once; returns whether the task has just ended. A panic ends this task only: the slots
    /// that it held are answered `Closed`.
    fn step(self: &Arc<Self>) -> bool {
        let mut slot = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        // It was woken once more after it had ended.
        let Some(work) = slot.as_mut() else { return false };
        let waker = Waker::from(Arc::clone(self));
        let polled =
            // A panic in one operation must not end the thread that serves all others of the stack.
            catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(&mut Context::from_waker(&waker))));
        let done = !matches!(polled, Ok(std::task::Poll::Pending));
        if done {
            // Dropped here, on the executor's thread, although wakers of the task may live on in
            // tickets.
            *slot = None;
        }
        done
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        let shared = Arc::clone(&self.shared);
        // A task can be in the queue twice. The second poll finds it pending or ended, and both are
        // harmless.
        shared.lock().ready.push_back(self);
        shared.wake();
    }
}

impl Drop for Executor {
    /// Waits for the open tasks. Every op of a tier has a deadline, so this ends.
    fn drop(&mut self) {
        self.spawner.0.lock().closed = true;
        self.spawner.0.work.notify_one();
        if let Some(thread) =
            // The last handle of a stack may be dropped by a task, on this very thread, which
            // cannot join itself.
            self.thread.take().filter(|t| t.thread().id() != thread::current().id())
        {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Executor({} open)", self.spawner.0.lock().open)
    }
}

impl fmt::Debug for Spawner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Spawner")
    }
}
