use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

type Job = Box<dyn FnOnce() + Send>;

/// Which work a job is part of: somebody waits for a read, nobody for a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Loads and lookups.
    Read,
    /// Saves and removes.
    Write,
}

/// How many reads go before a write that waits.
const READS_BEFORE_A_WRITE: u32 = 8;

/// A few threads for what blocks: open, allocate, rename, unlink. Its queue is bounded by the
/// tier's gate, which lets in no more ops than it has places; each op has at most one job here at a
/// time. Reads go first, without starving writes.
pub struct Pool {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// How long jobs have waited for a thread, all together. Measured, so on the machine's clock.
    waited_us: AtomicU64,
    /// Where the thread waits that only reads.
    reads: Condvar,
    /// Where the others wait.
    work: Condvar,
}

#[derive(Default)]
struct Queue {
    reads: VecDeque<(Instant, Job)>,
    writes: VecDeque<(Instant, Job)>,
    /// Reads that went since the last write did.
    reads_in_a_row: u32,
    /// The thread that only reads sleeps, and nobody called it yet.
    reader_idle: bool,
    closed: bool,
}

impl Pool {
    pub fn start(name: &str, threads: usize) -> std::io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let spawn = |n| {
            let theirs = Arc::clone(&shared);
            // One for reads alone: whatever writes wait for, what is there can be loaded.
            let writes = n > 0 || threads == 1;
            std::thread::Builder::new()
                .name(format!("{name}-{n}"))
                .spawn(move || theirs.run(writes))
        };
        let threads = (0..threads).map(spawn).collect::<Result<Vec<_>, _>>()?;
        Ok(Pool { shared, threads: Mutex::new(threads) })
    }

    /// Will run `job`; after [`close`](Pool::close) drops it, and with it the op's slot, which
    /// answers `Closed`.
    pub fn push(&self, lane: Lane, job: impl FnOnce() + Send + 'static) {
        let mut queue = self.shared.lock();
        if queue.closed {
            drop(queue);
            return drop(job);
        }
        match lane {
            Lane::Read => queue.reads.push_back((Instant::now(), Box::new(job))),
            Lane::Write => queue.writes.push_back((Instant::now(), Box::new(job))),
        }
        let reader = lane == Lane::Read && std::mem::take(&mut queue.reader_idle);
        drop(queue);
        let bell = if reader { &self.shared.reads } else { &self.shared.work };
        bell.notify_one();
    }

    /// How many microseconds jobs have waited for a thread, all together.
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
                    // A panic ends one op (its slot answers `Closed`), never the pool.
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

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queue = self.shared.lock();
        write!(f, "Pool({} reads, {} writes queued)", queue.reads.len(), queue.writes.len())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    #[test]
    fn a_read_passes_writes_that_are_stuck() {
        let pool = Pool::start("test", 2).unwrap();
        let (go, wait) = sync_channel::<()>(1);
        pool.push(Lane::Write, move || {
            let _ = wait.recv();
        });
        let (tell, hear) = sync_channel(100);
        for n in 0..100 {
            let tell = tell.clone();
            pool.push(Lane::Write, || {});
            pool.push(Lane::Read, move || tell.send(n).unwrap());
        }
        assert_eq!(hear.iter().take(100).count(), 100, "while no write goes on");
        drop(go);
        pool.close();
    }

    #[test]
    fn reads_go_first_and_starve_no_write() {
        let pool = Pool::start("test", 1).unwrap();
        let (tell, hear) = sync_channel(100);
        let (go, wait) = sync_channel::<()>(1);
        let (began, begun) = sync_channel(100);
        pool.push(Lane::Write, move || {
            began.send(()).unwrap();
            let _ = wait.recv();
        });
        begun.recv().unwrap();
        let push = |lane, n: u32| {
            let tell = tell.clone();
            pool.push(lane, move || tell.send(n).unwrap());
        };
        push(Lane::Write, 100);
        push(Lane::Write, 101);
        (0..2 * READS_BEFORE_A_WRITE).for_each(|n| push(Lane::Read, n));
        drop(go);
        pool.close();
        drop(tell);
        let order: Vec<u32> = hear.iter().collect();
        let first = READS_BEFORE_A_WRITE as usize;
        assert_eq!((order[0], order[first], order[2 * first + 1]), (0, 100, 101), "{order:?}");
        assert!(order.iter().filter(|n| **n < 100).is_sorted());
    }
}
