use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Instant;

/// Something with a deadline.
pub trait Expire: Send + Sync {
    /// Called when its time may have come: ends it if so. Answers when to call again, `None` for never.
    fn expire(&self, now: Instant) -> Option<Instant>;
}

/// A tier's own clock: one thread that ends what has reached its deadline. It holds nothing alive but what waits, and that
/// weakly: what was answered in time costs it nothing more than a wake-up skipped.
pub struct Timekeeper {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    heap: BinaryHeap<Reverse<Timer>>,
    next: u64,
    /// How many timers there may be before the next look for those whose object is gone.
    full: usize,
    closed: bool,
}

struct Timer(Instant, u64, Weak<dyn Expire>);

impl Timekeeper {
    /// Starts the thread.
    pub fn start(name: &str) -> std::io::Result<Self> {
        let shared = Arc::new(Shared { queue: Mutex::default(), changed: Condvar::new() });
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name(format!("{name}-time")).spawn(move || theirs.run())?;
        Ok(Timekeeper { shared, thread: Some(thread) })
    }

    /// Will end `what` at `when`, unless it is gone by then.
    pub fn at(&self, when: Instant, what: &Arc<dyn Expire>) {
        let mut queue = self.shared.lock();
        let sooner = queue.heap.peek().is_none_or(|Reverse(first)| when < first.0);
        let n = queue.next;
        queue.next += 1;
        queue.forget_the_answered();
        queue.heap.push(Reverse(Timer(when, n, Arc::downgrade(what))));
        drop(queue);
        if sooner {
            self.shared.changed.notify_one();
        }
    }
}

/// Fewer timers than this are not worth a look.
const TIMERS_MIN: usize = 256;

impl Queue {
    /// Drops timers of what was answered in time, whenever their number has doubled: a few steps a timer, and never more than twice as
    /// many timers as objects that wait.
    fn forget_the_answered(&mut self) {
        if self.heap.len() >= self.full.max(TIMERS_MIN) {
            self.heap.retain(|Reverse(timer)| timer.2.strong_count() > 0);
            self.full = 2 * self.heap.len();
        }
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut queue = self.lock();
        while !queue.closed {
            let now = Instant::now();
            match queue.heap.peek() {
                None => queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner),
                Some(Reverse(first)) if first.2.strong_count() > 0 && first.0 > now => {
                    let wait = first.0 - now;
                    queue = self.changed.wait_timeout(queue, wait).unwrap_or_else(PoisonError::into_inner).0;
                }
                Some(_) => queue = self.fire(queue, now),
            }
        }
    }

    fn fire<'a>(
        &'a self,
        mut queue: std::sync::MutexGuard<'a, Queue>,
        now: Instant,
    ) -> std::sync::MutexGuard<'a, Queue> {
        let Some(Reverse(Timer(_, _, what))) = queue.heap.pop() else { return queue };
        drop(queue);
        // Ending something wakes whoever waits for it, which is code of others: its panic must not stop the clock for all.
        let expire = || what.upgrade().and_then(|what| what.expire(now));
        let again = catch_unwind(AssertUnwindSafe(expire)).unwrap_or(None);
        let mut queue = self.lock();
        if let Some(when) = again {
            let n = queue.next;
            queue.next += 1;
            queue.heap.push(Reverse(Timer(when, n, what)));
        }
        queue
    }
}

impl Drop for Timekeeper {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

impl PartialEq for Timer {
    fn eq(&self, other: &Self) -> bool {
        (self.0, self.1) == (other.0, other.1)
    }
}

impl Eq for Timer {}

impl PartialOrd for Timer {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Timer {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

impl fmt::Debug for Timekeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Timekeeper({} timers)", self.shared.lock().heap.len())
    }
}
