//! Timers of a tier: one thread that calls [`Expire::expire`] when a deadline passes.
//!
//! The queue holds weak references. An op that finishes in time drops its object; the timer then
//! costs one skipped entry, and `drop_dead` removes such entries whenever the queue has doubled. So
//! the queue stays within twice the number of live objects, at a constant cost per timer.
//!
//! On a [`ManualClock`](crate::ManualClock) the thread does not sleep for a time. `advance` calls
//! `carry_out`, which wakes the thread and waits until nothing due is left and nothing is firing.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Instant;

use crate::Clock;
use crate::clock::Timers;

/// Something with a deadline.
pub trait Expire: Send + Sync {
    /// Called when the deadline may have passed: ends the object if so. Returns when to call again;
    /// `None` for never.
    fn expire(&self, now: Instant) -> Option<Instant>;
}

/// The timers of a tier, on one thread. It keeps nothing alive: it refers weakly to the objects.
///
/// ```
/// use std::time::Duration;
/// use kvtier_core::{ErrorKind, ManualClock, Removed, Reply, Timekeeper};
///
/// let time = ManualClock::new();
/// let timers = Timekeeper::start_on(time.clock(), "example")?;
/// let deadline = time.now() + Duration::from_secs(5);
/// let (reply, ticket) = Reply::<Removed>::new_on(&time.clock(), "remove", deadline);
/// timers.schedule(deadline, &reply.expiry());
///
/// time.advance(Duration::from_secs(5)); // returns when all that is due is done
/// assert_eq!(ticket.wait().unwrap_err().kind(), ErrorKind::Timeout);
/// assert!(!reply.complete(Ok(Removed::new(1, 0, 0))), "too late");
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Timekeeper {
    shared: Arc<SharedTimers>,
    thread: Option<JoinHandle<()>>,
    /// Without a thread: notifies the owner, who carries the timers out.
    wake: Option<Box<dyn Fn() + Send + Sync>>,
}

struct SharedTimers {
    clock: Clock,
    queue: Mutex<TimerQueue>,
    changed: Condvar,
    /// On a manual clock: a timer was carried out.
    carried_out: Condvar,
}

#[derive(Default)]
struct TimerQueue {
    heap: BinaryHeap<Reverse<ScheduledExpiry>>,
    next: u64,
    /// The number of timers at which dead ones are next removed.
    full: usize,
    /// A timer is being carried out.
    firing: bool,
    closed: bool,
}

struct ScheduledExpiry(Instant, u64, Weak<dyn Expire>);

impl Timekeeper {
    /// Starts the thread, on the machine's clock.
    ///
    /// # Errors
    ///
    /// The system's error where it cannot start a thread.
    pub fn start(name: &str) -> std::io::Result<Self> {
        Timekeeper::start_on(Clock::real(), name)
    }

    /// Like [`start`](Timekeeper::start), on this clock.
    pub fn start_on(clock: Clock, name: &str) -> std::io::Result<Self> {
        // The clock needs a reference to the timers before they are complete.
        let shared = Arc::new_cyclic(|me: &Weak<SharedTimers>| {
            clock.register(me.clone());
            SharedTimers::new(clock)
        });
        let theirs = Arc::clone(&shared);
        let thread =
            std::thread::Builder::new().name(format!("{name}-time")).spawn(move || theirs.run())?;
        Ok(Timekeeper { shared, thread: Some(thread), wake: None })
    }

    /// Timers without a thread, for a simulation: their owner calls [`Timekeeper::carry_out_due`]
    /// when the time comes that it returned last, and after each call of `wake`, which says that
    /// another timer is the first.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicUsize, Ordering};
    /// use std::time::Duration;
    /// use kvtier_core::{ErrorKind, ManualClock, Removed, Reply, Timekeeper};
    ///
    /// let time = ManualClock::new();
    /// let wakes = Arc::new(AtomicUsize::new(0));
    /// let wake = Arc::clone(&wakes);
    /// let timers = Timekeeper::without_thread(time.clock(), move || {
    ///     wake.fetch_add(1, Ordering::Relaxed);
    /// });
    /// let deadline = time.now() + Duration::from_secs(5);
    /// let (reply, ticket) = Reply::<Removed>::new_on(&time.clock(), "remove", deadline);
    /// timers.schedule(deadline, &reply.expiry());
    /// assert_eq!(wakes.load(Ordering::Relaxed), 1);
    /// assert_eq!(timers.carry_out_due(), Some(deadline), "nothing is due yet");
    ///
    /// time.advance(Duration::from_secs(5));
    /// assert_eq!(timers.carry_out_due(), None);
    /// assert_eq!(ticket.wait().unwrap_err().kind(), ErrorKind::Timeout);
    /// ```
    pub fn without_thread(clock: Clock, wake: impl Fn() + Send + Sync + 'static) -> Self {
        let shared = Arc::new(SharedTimers::new(clock));
        Timekeeper { shared, thread: None, wake: Some(Box::new(wake)) }
    }

    /// Carries out the timers that are due, here. Returns when the next one is.
    pub fn carry_out_due(&self) -> Option<Instant> {
        let mut queue = self.shared.lock();
        loop {
            let now = self.shared.clock.now();
            if !queue.is_due(now) {
                return queue.heap.peek().map(|Reverse(first)| first.0);
            }
            queue = self.shared.fire(queue, now);
        }
    }

    /// Its clock.
    pub fn clock(&self) -> &Clock {
        &self.shared.clock
    }

    /// Calls `what.expire` at `when`, unless the object is gone by then.
    pub fn schedule(&self, when: Instant, what: &Arc<dyn Expire>) {
        let mut queue = self.shared.lock();
        // Only a timer that is now the first changes how long the thread may sleep.
        let sooner = queue.heap.peek().is_none_or(|Reverse(first)| when < first.0);
        // The number makes timers of one time fire in the order in which they were scheduled.
        let n = queue.next;
        queue.next += 1;
        queue.drop_dead();
        queue.heap.push(Reverse(ScheduledExpiry(when, n, Arc::downgrade(what))));
        drop(queue);
        match &self.wake {
            Some(wake) if sooner => wake(),
            None if sooner => self.shared.changed.notify_one(),
            _ => {}
        }
    }
}

/// With fewer timers, dead ones are not searched for.
const TIMERS_MIN: usize = 256;

impl TimerQueue {
    /// Whether the first timer is due, or its object is gone.
    fn is_due(&self, now: Instant) -> bool {
        // A dead timer is "due" so that it leaves the queue at once, instead of a wake-up at its
        // time.
        self.heap.peek().is_some_and(|Reverse(first)| first.0 <= now || first.2.strong_count() == 0)
    }

    /// Removes the timers of objects that are gone, whenever the number of timers has doubled.
    fn drop_dead(&mut self) {
        if self.heap.len() >= self.full.max(TIMERS_MIN) {
            // Linear, but only after the queue has doubled: constant time for each timer.
            self.heap.retain(|Reverse(timer)| timer.2.strong_count() > 0);
            self.full = 2 * self.heap.len();
        }
    }
}

impl SharedTimers {
    fn new(clock: Clock) -> Self {
        SharedTimers {
            clock,
            queue: Mutex::default(),
            changed: Condvar::new(),
            carried_out: Condvar::new(),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, TimerQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut queue = self.lock();
        while !queue.closed {
            let now = self.clock.now();
            if queue.is_due(now) {
                queue = self.fire(queue, now);
                continue;
            }
            // Nothing is due: a test that waits in `carry_out` may go on.
            if self.clock.is_manual() {
                self.carried_out.notify_all();
            }
            queue = match queue.heap.peek() {
                Some(Reverse(first)) if !self.clock.is_manual() => {
                    let wait = first.0 - now;
                    self.changed.wait_timeout(queue, wait).unwrap_or_else(PoisonError::into_inner).0
                }
                _ => self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    fn fire<'a>(
        &'a self,
        mut queue: std::sync::MutexGuard<'a, TimerQueue>,
        now: Instant,
    ) -> std::sync::MutexGuard<'a, TimerQueue> {
        // Popped before the lock is given up, so that no timer fires twice.
        let Some(Reverse(ScheduledExpiry(_, _, what))) = queue.heap.pop() else { return queue };
        // For `carry_out`: the heap may be empty while the last timer still runs.
        queue.firing = true;
        drop(queue);
        // `expire` wakes tasks, which is code of the caller: its panic must not stop the timers of
        // others.
        let expire = || what.upgrade().and_then(|what| what.expire(now));
        let again = catch_unwind(AssertUnwindSafe(expire)).unwrap_or(None);
        let mut queue = self.lock();
        queue.firing = false;
        // A strong reference was held only during the call, so an object that ended meanwhile is
        // dropped.
        if let Some(when) = again {
            let n = queue.next;
            queue.next += 1;
            queue.heap.push(Reverse(ScheduledExpiry(when, n, what)));
        }
        queue
    }
}

impl Timers for SharedTimers {
    fn carry_out(&self) {
        let mut queue = self.lock();
        while !queue.closed && (queue.firing || queue.is_due(self.clock.now())) {
            // Each time: a timer may become due without a notice, when the object of an earlier one
            // is dropped.
            self.changed.notify_one();
            queue = self.carried_out.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Timekeeper {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_one();
        self.shared.carried_out.notify_all();
        if let Some(thread) = self.thread.take()
            // The last reference to a tier may be dropped by a timer, on this very thread, which
            // cannot wait for itself.
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

impl PartialEq for ScheduledExpiry {
    fn eq(&self, other: &Self) -> bool {
        (self.0, self.1) == (other.0, other.1)
    }
}

impl Eq for ScheduledExpiry {}

impl PartialOrd for ScheduledExpiry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ScheduledExpiry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

impl fmt::Debug for Timekeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Timekeeper({} timers)", self.shared.lock().heap.len())
    }
}
