use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

type Job = Box<dyn FnOnce() + Send>;

/// One thread that does jobs in order. The tier's gate bounds how many there are. Dropping it
/// forgets the jobs that have not begun, so that their slots answer `Closed`.
pub struct WorkerThread {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    closed: bool,
}

impl WorkerThread {
    pub fn start(name: &str) -> std::io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || theirs.run())?;
        Ok(WorkerThread { shared, thread: Some(thread) })
    }

    pub fn push(&self, job: impl FnOnce() + Send + 'static) {
        self.shared.lock().jobs.push_back(Box::new(job));
        self.shared.changed.notify_one();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut state = self.lock();
        while !state.closed {
            state = match state.jobs.pop_front() {
                Some(job) => {
                    // Before the jobs are dropped: their slots may call back into this queue.
                    drop(state);
                    // A panic ends this job only; its slot answers `Closed`.
                    let _ = catch_unwind(AssertUnwindSafe(job));
                    self.lock()
                }
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

impl Drop for WorkerThread {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.closed = true;
        // Jobs that have not begun are dropped, which answers their slots `Closed`.
        let forgotten = std::mem::take(&mut state.jobs);
        drop(state);
        self.shared.changed.notify_one();
        drop(forgotten);
        if let Some(thread) =
            // A job may drop the last handle of the tier, and this with it.
            self.thread.take().filter(|t| t.thread().id() != std::thread::current().id())
        {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for WorkerThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WorkerThread({} jobs)", self.shared.lock().jobs.len())
    }
}
