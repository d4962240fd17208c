//! Completion of an operation: a [`Ticket`] for the caller and a [`Completer`] for the tier.
//!
//! Both share one slot under a mutex. The completer stores the result and then wakes: `notify_one`
//! for a thread in `wait`, the stored waker for a task. A task stores its waker under the same
//! mutex before it returns `Pending`, so the wake-up cannot be missed.
//!
//! Callbacks (`inspect`, `undo_if_dropped`) have mutexes of their own, because they run while the
//! slot is locked or gone. The undo runs in the drop of the shared state: only then neither side
//! can take the result any more.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::sync::{Arc, Condvar, Mutex, atomic, lock};
use crate::{Done, Error, ErrorKind};

/// The pending result of an operation: a future, and something a plain thread can wait for.
/// Dropping it discards the result and nothing else; [`cancel`](Ticket::cancel) asks the tier to
/// stop.
///
/// ```
/// use kvtier_core::{Error, Ticket, ticket};
///
/// let (completer, ticket) = ticket::<Result<u32, Error>>();
/// std::thread::spawn(move || completer.complete(Ok(7)));
/// assert_eq!(ticket.wait()?, 7); // or `ticket.await`
/// assert!(Ticket::<Result<u32, Error>>::ready(Ok(8)).is_done());
/// # Ok::<(), Error>(())
/// ```
#[must_use = "dropping a ticket forgets the answer"]
pub struct Ticket<T>(Arc<SharedTicket<T>>);

/// The sending side of a [`Ticket`]: completes it once. If it is dropped first, the ticket resolves
/// to [`Dropped::dropped`].
pub struct Completer<T: Dropped>(Option<Arc<SharedTicket<T>>>);

/// The result of an operation whose [`Completer`] was dropped.
pub trait Dropped {
    /// That result.
    fn dropped() -> Self;
}

type Look<T> = Box<dyn FnOnce(&T) + Send>;
type Undo<T> = Box<dyn FnOnce(T) + Send>;

struct SharedTicket<T> {
    state: Mutex<TicketState<T>>,
    look: Mutex<Option<Look<T>>>,
    undo: Mutex<Option<Undo<T>>>,
    ready: Condvar,
    canceled: atomic::AtomicBool,
}

enum TicketState<T> {
    Pending(Option<Waker>),
    Ready(T),
    Taken,
}

const TAKEN: &str = "a ticket was used after it had given its answer";

/// A ticket and its completer.
pub fn ticket<T: Dropped>() -> (Completer<T>, Ticket<T>) {
    let shared = Arc::new(SharedTicket {
        state: Mutex::new(TicketState::Pending(None)),
        look: Mutex::new(None),
        undo: Mutex::new(None),
        ready: Condvar::new(),
        canceled: atomic::AtomicBool::new(false),
    });
    (Completer(Some(Arc::clone(&shared))), Ticket(shared))
}

impl<T: Dropped> Ticket<T> {
    /// A ticket that already has its result.
    pub fn ready(answer: T) -> Self {
        let (completer, ticket) = ticket();
        completer.complete(answer);
        ticket
    }
}

impl<T> Ticket<T> {
    /// Blocks this thread until the result is there.
    ///
    /// # Panics
    ///
    /// If the result was taken by polling the ticket.
    pub fn wait(self) -> T {
        let mut state = lock(&self.0.state);
        loop {
            match std::mem::replace(&mut *state, TicketState::Taken) {
                TicketState::Ready(answer) => return answer,
                // No further result will come, so to wait would block for ever.
                TicketState::Taken => panic!("{TAKEN}"),
                pending => *state = pending,
            }
            // A loop, since a condition variable may wake without a reason.
            state = self.0.ready.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }

    /// Whether the result is there, so that `wait` would not block.
    pub fn is_done(&self) -> bool {
        matches!(*lock(&self.0.state), TicketState::Ready(_))
    }

    /// Calls `look` with a reference to the result when it arrives, on the thread that completes
    /// the ticket; at once if it is there. Several may be added; they run in that order.
    pub fn inspect(self, look: impl FnOnce(&T) + Send + 'static) -> Self
    where
        T: 'static,
    {
        let state = lock(&self.0.state);
        match &*state {
            TicketState::Ready(answer) => look(answer),
            // Added under the lock of the state, so a result that arrives at the same time either
            // is seen above or finds the callback.
            _ => {
                let mut looks = lock(&self.0.look);
                *looks = Some(match looks.take() {
                    None => Box::new(look),
                    Some(before) => Box::new(move |answer: &T| {
                        before(answer);
                        look(answer);
                    }),
                });
            }
        }
        drop(state);
        self
    }

    /// Calls `undo` with the result if nothing takes it before the ticket is dropped, so that what
    /// the result grants is released.
    pub fn undo_if_dropped(self, undo: impl FnOnce(T) + Send + 'static) -> Self {
        *lock(&self.0.undo) = Some(Box::new(undo));
        self
    }

    /// Asks the tier to stop: work that has not begun ends `Canceled`, work on the medium ends as
    /// it does. The ticket still resolves.
    pub fn cancel(&self) {
        self.0.canceled.store(true, atomic::Ordering::Release);
    }
}

impl<T> Future for Ticket<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let mut state = lock(&self.0.state);
        match std::mem::replace(&mut *state, TicketState::Taken) {
            TicketState::Ready(answer) => Poll::Ready(answer),
            TicketState::Pending(_) => {
                // The latest waker replaces earlier ones: a task may move between executors.
                *state = TicketState::Pending(Some(cx.waker().clone()));
                Poll::Pending
            }
            TicketState::Taken => panic!("{TAKEN}"),
        }
    }
}

impl<T: Dropped> Completer<T> {
    /// Sends the result.
    pub fn complete(mut self, answer: T) {
        if let Some(shared) = self.0.take() {
            shared.complete(answer);
        }
    }

    /// Whether the ticket's owner cancelled it.
    pub fn is_canceled(&self) -> bool {
        self.0.as_ref().is_some_and(|s| s.canceled.load(atomic::Ordering::Acquire))
    }
}

impl<T> Drop for SharedTicket<T> {
    fn drop(&mut self) {
        // The last of the two sides is gone, so the result can no longer be taken: if it is still
        // here, what it grants was never used.
        // Both locks are free: there is no other reference any more.
        let undo = lock(&self.undo).take();
        let state = std::mem::replace(&mut *lock(&self.state), TicketState::Taken);
        if let (Some(undo), TicketState::Ready(answer)) = (undo, state) {
            undo(answer);
        }
    }
}

impl<T> SharedTicket<T> {
    fn complete(&self, answer: T) {
        let mut state = lock(&self.state);
        if let Some(look) = lock(&self.look).take() {
            // Before the result becomes visible: a waiting thread must not act on it while the
            // callback still looks.
            look(&answer);
        }
        let before = std::mem::replace(&mut *state, TicketState::Ready(answer));
        drop(state);
        // One thread at most waits: `wait` consumes the ticket.
        self.ready.notify_one();
        if let TicketState::Pending(Some(waker)) = before {
            waker.wake();
        }
    }
}

impl<T: Dropped> Drop for Completer<T> {
    fn drop(&mut self) {
        if let Some(shared) = self.0.take() {
            shared.complete(T::dropped());
        }
    }
}

impl<T> Dropped for Result<T, Error> {
    /// The answer to a lookup, remove or flush whose worker ended without one.
    fn dropped() -> Self {
        Err(Error::new(ErrorKind::Closed, "the tier's worker ended without an answer"))
    }
}

impl<O, T> Dropped for Vec<Done<O, T>> {
    /// Never seen by callers: a [`Batch`](crate::Batch) answers `Closed` for each of its ops.
    fn dropped() -> Self {
        Vec::new()
    }
}

impl<T> fmt::Debug for Ticket<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ticket({})", if self.is_done() { "done" } else { "pending" })
    }
}

impl<T: Dropped> fmt::Debug for Completer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Completer")
    }
}
