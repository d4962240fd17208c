use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Wake, Waker};

use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Condvar, Mutex, MutexGuard};

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// One thread that drives the tickets of a stack: the smallest executor that does. The stack's gate
/// bounds how much it has to do.
pub struct Exec {
    spawner: Spawner,
    thread: Option<JoinHandle<()>>,
}

/// Gives the thread work, as long as it takes some.
#[derive(Clone)]
pub struct Spawner(Arc<Shared>);

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    work: Condvar,
}

#[derive(Default)]
struct Queue {
    ready: VecDeque<Arc<Task>>,
    open: usize,
    closed: bool,
}

struct Task {
    work: Mutex<Option<Work>>,
    shared: Arc<Shared>,
}

impl Exec {
    pub fn start(name: &str) -> std::io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let theirs = Arc::clone(&shared);
        let thread = thread::Builder::new().name(name.into()).spawn(move || theirs.run())?;
        Ok(Exec { spawner: Spawner(shared), thread: Some(thread) })
    }

    pub fn spawner(&self) -> &Spawner {
        &self.spawner
    }

    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.spawner.spawn(work);
    }
}

impl Spawner {
    /// Work that comes when the thread is about to end is dropped, unless other work is still under
    /// way.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut queue = self.0.lock();
        if queue.closed && queue.open == 0 {
            drop(queue);
            return drop(work);
        }
        queue.open += 1;
        queue.ready.push_back(Arc::new(Task {
            work: Mutex::new(Some(Box::pin(work))),
            shared: Arc::clone(&self.0),
        }));
        drop(queue);
        self.0.work.notify_one();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut queue = self.lock();
        loop {
            match queue.ready.pop_front() {
                Some(task) => {
                    drop(queue);
                    let done = task.step();
                    queue = self.lock();
                    queue.open -= usize::from(done);
                }
                None if queue.closed && queue.open == 0 => return,
                None => queue = self.work.wait(queue).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

impl Task {
    /// Polls once; answers whether the work has just ended. A panic ends this work only: the slots
    /// it held answer `Closed`.
    fn step(self: &Arc<Self>) -> bool {
        let mut slot = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(work) = slot.as_mut() else { return false };
        let waker = Waker::from(Arc::clone(self));
        let polled =
            catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(&mut Context::from_waker(&waker))));
        let done = !matches!(polled, Ok(std::task::Poll::Pending));
        if done {
            *slot = None;
        }
        done
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        let shared = Arc::clone(&self.shared);
        shared.lock().ready.push_back(self);
        shared.work.notify_one();
    }
}

impl Drop for Exec {
    /// Waits for what is under way: every op below has a deadline, so this ends.
    fn drop(&mut self) {
        self.spawner.0.lock().closed = true;
        self.spawner.0.work.notify_one();
        if let Some(thread) =
            self.thread.take().filter(|t| t.thread().id() != thread::current().id())
        {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Exec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Exec({} open)", self.spawner.0.lock().open)
    }
}

impl fmt::Debug for Spawner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Spawner")
    }
}
