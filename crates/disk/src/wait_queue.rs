//! A queue of operations that wait for space or memory, without occupying a thread.
//!
//! The first operation in the queue holds the only [`WaitToken`]: it tries, and either drops the
//! token, which passes it to the next operation, or returns to the head with it. So operations are
//! served in order, and a large one is not overtaken for ever by small ones.
//!
//! No release is missed. An operation reads [`WaitQueue::releases`] before it tries and passes that
//! number to [`WaitQueue::wait`]. If something was released in between, the numbers differ, and the
//! operation tries again at once. An operation that was queued without a try passes `None`, which
//! also counts as a difference.
//!
//! Other processes release space without a notification. Therefore a timekeeper retries the first
//! operation every [`POLL_EVERY`] while the queue is not empty. At most one timer is scheduled:
//! `wait` returns `true` for the caller that must start it, and the timer ends with the queue.
//!
//! Callbacks run without the lock. After [`WaitQueue::close`] each callback is dropped, and with it
//! the operation's slot, which answers `Closed`.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use kvtier_core::{Expire, Timekeeper};

/// How long the first operation waits before it tries again without a notification.
const POLL_EVERY: Duration = Duration::from_millis(20);

type Callback = Box<dyn FnOnce(WaitToken) + Send>;

/// Operations that wait for a resource, first come, first served; see the [module](self). Its
/// length is bounded by the tier's gate.
#[derive(Clone)]
pub struct WaitQueue(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    me: Weak<Inner>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Callback>,
    /// An operation holds the token and has not finished its try.
    is_trying: bool,
    /// How often something was released.
    releases: u64,
    /// A timekeeper polls the queue.
    is_polled: bool,
    closed: bool,
}

/// The right of the first operation to try. When it is dropped, the next operation gets it.
pub struct WaitToken {
    queue: Arc<Inner>,
    is_returned: bool,
}

/// How an operation enters a queue.
#[derive(Debug, Default)]
pub struct QueueEntry {
    /// The token of its last try. With it, the operation returns to the head of the queue.
    pub token: Option<WaitToken>,
    /// [`WaitQueue::releases`] from before the try; `None` without a try.
    pub releases: Option<u64>,
}

impl Default for WaitQueue {
    fn default() -> Self {
        WaitQueue(Arc::new_cyclic(|me| Inner { state: Mutex::default(), me: me.clone() }))
    }
}

impl WaitQueue {
    /// Whether no operation waits or tries, so that a new one may try at once.
    pub fn is_empty(&self) -> bool {
        let state = self.0.lock();
        state.waiting.is_empty() && !state.is_trying
    }

    /// How often something was released so far. Read it before a try.
    pub fn releases(&self) -> u64 {
        self.0.lock().releases
    }

    /// Reports that something was released: the first operation tries again.
    pub fn notify(&self) {
        let mut state = self.0.lock();
        state.releases += 1;
        self.0.resume_first(state);
    }

    /// Queues an operation. Returns whether the caller must start the timer with
    /// [`poll_with`](WaitQueue::poll_with).
    pub fn wait(&self, callback: Callback, entry: QueueEntry) -> bool {
        // An operation may need another resource than at its last try. The token of that queue goes
        // to the next operation there.
        let QueueEntry { token, releases } = entry;
        let token = token.filter(|token| Arc::ptr_eq(&token.queue, &self.0));
        let mut state = self.0.lock();
        if state.closed {
            drop(state);
            drop(callback);
            return false;
        }
        match token {
            Some(mut token) => {
                // The same operation again: it keeps its place, and the token is free.
                state.waiting.push_front(callback);
                state.is_trying = false;
                token.is_returned = true;
            }
            None => state.waiting.push_back(callback),
        }
        let must_poll = !std::mem::replace(&mut state.is_polled, true);
        // Something was released since the operation read the count: it must not sleep over that.
        if releases != Some(state.releases) {
            self.0.resume_first(state);
        }
        must_poll
    }

    /// Retries the first operation from time to time, while the queue is not empty.
    pub fn poll_with(&self, clock: &Timekeeper) {
        let polled: Arc<dyn Expire> = self.0.clone();
        clock.schedule(clock.clock().now() + POLL_EVERY, &polled);
    }

    /// Drops all waiting operations, and those that would wait from now on.
    pub fn close(&self) {
        let mut state = self.0.lock();
        state.closed = true;
        // Dropped without the lock: each drop answers a caller, which may call the tier.
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        drop(waiting);
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn resume_first(&self, mut state: MutexGuard<'_, State>) {
        if state.is_trying {
            return;
        }
        // The token keeps the queue alive while its holder tries.
        let Some(queue) = self.me.upgrade() else { return };
        let Some(first) = state.waiting.pop_front() else { return };
        state.is_trying = true;
        drop(state);
        first(WaitToken { queue, is_returned: false });
    }
}

impl Expire for Inner {
    fn expire(&self, now: Instant) -> Option<Instant> {
        let mut state = self.lock();
        if state.waiting.is_empty() && !state.is_trying {
            state.is_polled = false;
            return None;
        }
        self.resume_first(state);
        Some(now + POLL_EVERY)
    }
}

impl Drop for WaitToken {
    fn drop(&mut self) {
        if !self.is_returned {
            let mut state = self.queue.lock();
            state.is_trying = false;
            self.queue.resume_first(state);
        }
    }
}

impl fmt::Debug for WaitQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WaitQueue({} waiting)", self.0.lock().waiting.len())
    }
}

impl fmt::Debug for WaitToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WaitToken")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    use kvtier_core::ManualClock;

    use super::*;

    type Sender = SyncSender<(u8, WaitToken)>;

    /// Queues operation `n`, which sends its number and its token when it may try.
    fn wait(queue: &WaitQueue, sender: &Sender, n: u8, entry: QueueEntry) -> bool {
        let sender = sender.clone();
        queue.wait(Box::new(move |token| drop(sender.send((n, token)))), entry)
    }

    fn queue() -> (WaitQueue, Sender, Receiver<(u8, WaitToken)>) {
        let (sender, receiver) = sync_channel(8);
        (WaitQueue::default(), sender, receiver)
    }

    fn tried_at(releases: u64) -> QueueEntry {
        QueueEntry { token: None, releases: Some(releases) }
    }

    fn tried_again(token: WaitToken, releases: u64) -> QueueEntry {
        QueueEntry { token: Some(token), releases: Some(releases) }
    }

    #[test]
    fn one_operation_tries_at_a_time_in_order_and_may_return_to_the_head() {
        let (queue, sender, tries) = queue();
        assert!(queue.is_empty());
        let releases = queue.releases();
        assert!(wait(&queue, &sender, 1, tried_at(releases)), "the first one starts the timer");
        assert!(!wait(&queue, &sender, 2, tried_at(releases)));
        assert!(tries.try_recv().is_err() && !queue.is_empty());
        queue.notify();
        let (n, token) = tries.try_recv().unwrap();
        assert_eq!(n, 1);
        queue.notify();
        assert!(tries.try_recv().is_err(), "1 is still trying");
        wait(&queue, &sender, 1, tried_again(token, releases + 1));
        let (n, token) = tries.try_recv().unwrap();
        assert_eq!(n, 1, "something was released during its try");
        drop(token);
        assert_eq!(tries.try_recv().unwrap().0, 2);
        assert!(queue.is_empty());
    }

    #[test]
    fn the_clock_retries_the_first_operation_without_a_notification() {
        let (queue, sender, tries) = queue();
        let time = ManualClock::new();
        let clock = Timekeeper::start_on(time.clock(), "test").unwrap();
        assert!(wait(&queue, &sender, 1, tried_at(0)));
        queue.poll_with(&clock);
        time.advance(POLL_EVERY - Duration::from_millis(1));
        assert!(tries.try_recv().is_err());
        time.advance(Duration::from_millis(1));
        let (_, token) = tries.try_recv().unwrap();
        wait(&queue, &sender, 1, tried_again(token, 0));
        time.advance(POLL_EVERY);
        drop(tries.try_recv().unwrap());
    }

    #[test]
    fn an_operation_queued_without_a_try_tries_when_those_before_it_are_gone() {
        let (queue, sender, tries) = queue();
        wait(&queue, &sender, 1, QueueEntry::default());
        assert_eq!(tries.try_recv().unwrap().0, 1);
    }

    #[test]
    fn the_token_of_another_queue_is_passed_on_there() {
        let (first, sender, tries) = queue();
        let other = WaitQueue::default();
        wait(&first, &sender, 1, QueueEntry::default());
        wait(&first, &sender, 2, tried_at(0));
        let (_, token) = tries.try_recv().unwrap();
        wait(&other, &sender, 1, tried_again(token, other.releases()));
        let (n, token) = tries.try_recv().unwrap();
        assert_eq!(n, 2, "the other queue waits");
        drop(token);
        other.notify();
        assert_eq!(tries.try_recv().unwrap().0, 1);
        assert!(first.is_empty() && other.is_empty());
    }

    #[test]
    fn a_closed_queue_drops_every_operation() {
        let (queue, sender, tries) = queue();
        wait(&queue, &sender, 1, tried_at(0));
        queue.close();
        wait(&queue, &sender, 2, tried_at(0));
        drop(sender);
        assert!(tries.recv().is_err());
    }
}
