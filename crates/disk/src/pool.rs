use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

type Job = Box<dyn FnOnce() + Send>;

/// A few threads for what blocks: open, allocate, rename, unlink. Its queue is bounded by the tier's gate, which lets in no more
/// ops than it has places; each op has at most one job here at a time.
pub struct Pool {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    work: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    closed: bool,
}

impl Pool {
    pub fn start(name: &str, threads: usize) -> std::io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let spawn = |n| {
            let theirs = Arc::clone(&shared);
            std::thread::Builder::new().name(format!("{name}-{n}")).spawn(move || theirs.run())
        };
        let threads = (0..threads).map(spawn).collect::<Result<Vec<_>, _>>()?;
        Ok(Pool { shared, threads: Mutex::new(threads) })
    }

    /// Will run `job`; after [`close`](Pool::close) drops it, and with it the op's slot, which answers `Closed`.
    pub fn push(&self, job: impl FnOnce() + Send + 'static) {
        let mut queue = self.shared.lock();
        if queue.closed {
            drop(queue);
            return drop(job);
        }
        queue.jobs.push_back(Box::new(job));
        drop(queue);
        self.shared.work.notify_one();
    }

    /// Runs what is queued, then ends the threads.
    pub fn close(&self) {
        self.shared.lock().closed = true;
        self.shared.work.notify_all();
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads.into_iter().filter(|t| t.thread().id() != std::thread::current().id()) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut queue = self.lock();
        loop {
            match queue.jobs.pop_front() {
                Some(job) => {
                    drop(queue);
                    // A panic ends one op (its slot answers `Closed`), never the pool.
                    if catch_unwind(AssertUnwindSafe(job)).is_err() {
                        tracing::error!("a job of the directory tier panicked");
                    }
                    queue = self.lock();
                }
                None if queue.closed => return,
                None => queue = self.work.wait(queue).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({} queued)", self.shared.lock().jobs.len())
    }
}
