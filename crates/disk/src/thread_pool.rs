use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

type Job = Box<dyn FnOnce() + Send>;

/// The kind of a job: a caller waits for a read, but rarely for a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Loads and lookups.
    Read,
    /// Saves and removes.
    Write,
}

/// How many reads may run before a write that waits.
const READS_BEFORE_A_WRITE: u32 = 8;

/// A few threads for blocking calls: open, allocate, rename, unlink. The tier's gate bounds the
/// queue: each admitted operation has at most one job here. Reads go first, without starving
/// writes.
pub struct ThreadPool {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// How long all jobs together have waited for a thread, by the machine's clock.
    waited_us: AtomicU64,
    /// Wakes the thread that runs only reads.
    reads: Condvar,
    /// Wakes the other threads.
    work: Condvar,
}

#[derive(Default)]
struct Queue {
    reads: VecDeque<(Instant, Job)>,
    writes: VecDeque<(Instant, Job)>,
    /// Reads since the last write.
    reads_in_a_row: u32,
    /// The thread that runs only reads sleeps, and was not woken yet.
    reader_idle: bool,
    closed: bool,
}

impl ThreadPool {
    pub fn start(name: &str, threads: usize) -> std::io::Result<Self> {
        let mut n = 0;
        let spawn = |theirs: Arc<Shared>, writes| {
            n += 1;
            std::thread::Builder::new()
                .name(format!("{name}-{}", n - 1))
                .spawn(move || theirs.run(writes))
        };
        ThreadPool::start_by(Arc::default(), threads, spawn)
    }

    /// The same by `spawn`, which starts a thread; the flag says whether it runs writes too.
    fn start_by(
        shared: Arc<Shared>,
        threads: usize,
        mut spawn: impl FnMut(Arc<Shared>, bool) -> std::io::Result<JoinHandle<()>>,
    ) -> std::io::Result<Self> {
        let pool = ThreadPool { shared, threads: Mutex::default() };
        let threads = if kvtier_os::is_simulated() { 0 } else { threads };
        for n in 0..threads {
            // One thread runs only reads, so that loads continue while all writes block.
            let writes = n > 0 || threads == 1;
            // Where this fails, the drop of the pool ends the threads that run already.
            let thread = spawn(Arc::clone(&pool.shared), writes)?;
            pool.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        }
        Ok(pool)
    }

    /// Queues `job`. After [`close`](ThreadPool::close) it is dropped, and with it the operation's slot,
    /// which answers `Closed`.
    pub fn push(&self, lane: Lane, job: impl FnOnce() + Send + 'static) {
        let mut queue = self.shared.lock();
        if queue.closed {
            drop(queue);
            return drop(job);
        }
        if kvtier_os::is_simulated() {
            drop(queue);
            return kvtier_os::later(Duration::ZERO, job);
        }
        match lane {
            Lane::Read => queue.reads.push_back((kvtier_os::now(), Box::new(job))),
            Lane::Write => queue.writes.push_back((kvtier_os::now(), Box::new(job))),
        }
        // Taken under the lock: of two reads that arrive together the second wakes another thread.
        let reader = lane == Lane::Read && std::mem::take(&mut queue.reader_idle);
        drop(queue);
        let wake = if reader { &self.shared.reads } else { &self.shared.work };
        wake.notify_one();
    }

    /// How many microseconds all jobs together have waited for a thread.
    pub fn waited_us(&self) -> u64 {
        self.shared.waited_us.load(Ordering::Relaxed)
    }

    /// Runs what is queued, then ends the threads.
    pub fn close(&self) {
        self.shared.lock().closed = true;
        self.shared.work.notify_all();
        self.shared.reads.notify_all();
        let threads =
            std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads.into_iter().filter(|t| t.thread().id() != std::thread::current().id())
        {
            let _ = thread.join();
        }
    }
}

impl Queue {
    fn pop(&mut self, writes: bool) -> Option<(Instant, Job)> {
        // The thread for reads alone does not count: it never runs a write that could be due.
        if !writes {
            return self.reads.pop_front();
        }
        let write_is_due = self.reads_in_a_row >= READS_BEFORE_A_WRITE && !self.writes.is_empty();
        if !write_is_due && let Some(read) = self.reads.pop_front() {
            self.reads_in_a_row += 1;
            return Some(read);
        }
        self.reads_in_a_row = 0;
        self.writes.pop_front()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, writes: bool) {
        let mut queue = self.lock();
        loop {
            match queue.pop(writes) {
                Some((since, job)) => {
                    drop(queue);
                    self.waited_us.fetch_add(since.elapsed().as_micros() as u64, Ordering::Relaxed);
                    // A panic ends one operation (its slot answers `Closed`), never the pool.
                    if catch_unwind(AssertUnwindSafe(job)).is_err() {
                        tracing::error!("a job of the directory tier panicked");
                    }
                    queue = self.lock();
                }
                None if queue.closed => return,
                None if writes => {
                    queue = self.work.wait(queue).unwrap_or_else(PoisonError::into_inner)
                }
                None => {
                    queue.reader_idle = true;
                    queue = self.reads.wait(queue).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }
}

impl Drop for ThreadPool {
    /// Ends the threads of a pool that was never closed: one of a tier whose open failed.
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for ThreadPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queue = self.shared.lock();
        write!(f, "ThreadPool({} reads, {} writes queued)", queue.reads.len(), queue.writes.len())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    #[test]
    fn a_pool_whose_last_thread_cannot_start_ends_the_others() {
        let shared = Arc::<Shared>::default();
        let weak = Arc::downgrade(&shared);
        let mut left = 2;
        let start = |shared: Arc<Shared>, writes| {
            if left == 0 {
                return Err(std::io::ErrorKind::WouldBlock.into());
            }
            left -= 1;
            Ok(std::thread::spawn(move || shared.run(writes)))
        };
        ThreadPool::start_by(shared, 3, start).unwrap_err();
        assert!(weak.upgrade().is_none(), "a thread still runs");
    }

    #[test]
    fn a_read_passes_writes_that_are_stuck() {
        let pool = ThreadPool::start("test", 2).unwrap();
        let (go, wait) = sync_channel::<()>(1);
        pool.push(Lane::Write, move || {
            let _ = wait.recv();
        });
        let (sender, receiver) = sync_channel(100);
        for n in 0..100 {
            let sender = sender.clone();
            pool.push(Lane::Write, || {});
            pool.push(Lane::Read, move || sender.send(n).unwrap());
        }
        assert_eq!(receiver.iter().take(100).count(), 100, "while no write goes on");
        drop(go);
        pool.close();
    }

    #[test]
    fn reads_go_first_and_starve_no_write() {
        let pool = ThreadPool::start("test", 1).unwrap();
        let (sender, receiver) = sync_channel(100);
        let (go, wait) = sync_channel::<()>(1);
        let (began, begun) = sync_channel(100);
        pool.push(Lane::Write, move || {
            began.send(()).unwrap();
            let _ = wait.recv();
        });
        begun.recv().unwrap();
        let push = |lane, n: u32| {
            let sender = sender.clone();
            pool.push(lane, move || sender.send(n).unwrap());
        };
        push(Lane::Write, 100);
        push(Lane::Write, 101);
        (0..2 * READS_BEFORE_A_WRITE).for_each(|n| push(Lane::Read, n));
        drop(go);
        pool.close();
        drop(sender);
        let order: Vec<u32> = receiver.iter().collect();
        let first = READS_BEFORE_A_WRITE as usize;
        assert_eq!((order[0], order[first], order[2 * first + 1]), (0, 100, 101), "{order:?}");
        assert!(order.iter().filter(|n| **n < 100).is_sorted());
    }
}
