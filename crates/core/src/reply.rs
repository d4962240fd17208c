use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use crate::error::DEADLINE_PASSED;
use crate::sync::{Mutex, lock};
use crate::timers::Expire;
use crate::{Clock, Completer, Error, ErrorKind, Pass, Ticket, ticket};

/// The sending side of one lookup or remove: a tier keeps it until it has the result. If the
/// deadline comes first, the [expiry](Reply::expiry) sends `Timeout`. If it is dropped, the caller
/// gets `Closed`. It may own the op's share of the tier's gate, which it returns with the result.
///
/// ```
/// use std::time::{Duration, Instant};
/// use kvtier_core::{ErrorKind, LookedUp, Reply};
///
/// let soon = Instant::now() + Duration::from_secs(1);
/// let (reply, ticket) = Reply::new("lookup", soon);
/// std::thread::spawn(move || reply.complete(Ok(LookedUp::new(vec![], None))));
/// assert!(ticket.wait().is_ok());
///
/// // A worker that fails drops its reply; the caller is answered all the same.
/// let (reply, ticket) = Reply::<LookedUp>::new("lookup", soon);
/// drop(reply);
/// assert_eq!(ticket.wait().unwrap_err().kind(), ErrorKind::Closed);
/// ```
pub struct Reply<T: Send + 'static> {
    inner: Arc<SharedReply<T>>,
    pass: Option<Pass>,
}

struct SharedReply<T> {
    op: &'static str,
    clock: Clock,
    deadline: Instant,
    completer: Mutex<Option<Completer<Result<T, Error>>>>,
}

impl<T: Send + 'static> Reply<T> {
    /// A reply and its ticket, on the machine's clock. Errors name `op`.
    pub fn new(op: &'static str, deadline: Instant) -> (Self, Ticket<Result<T, Error>>) {
        Reply::new_on(&Clock::real(), op, deadline)
    }

    /// Like [`new`](Reply::new), on this clock.
    pub fn new_on(
        clock: &Clock,
        op: &'static str,
        deadline: Instant,
    ) -> (Self, Ticket<Result<T, Error>>) {
        let (completer, ticket) = ticket();
        let clock = clock.clone();
        let completer = Mutex::new(Some(completer));
        let inner = Arc::new(SharedReply { op, clock, deadline, completer });
        (Reply { inner, pass: None }, ticket)
    }

    /// Ties the op's share of the gate to this reply.
    pub fn attach(&mut self, pass: Pass) {
        self.pass = Some(pass);
    }

    /// Register this with a [`Timekeeper`](crate::Timekeeper) for the deadline.
    pub fn expiry(&self) -> Arc<dyn Expire> {
        self.inner.clone()
    }

    /// Whether the result is no longer awaited: the deadline passed, or the ticket was cancelled.
    pub fn is_over(&self) -> bool {
        self.inner.clock.now() >= self.inner.deadline
            || lock(&self.inner.completer).as_ref().is_none_or(Completer::is_canceled)
    }

    /// Sends the result. Returns `false` if the deadline came first and the result was discarded.
    pub fn complete(mut self, answer: Result<T, Error>) -> bool {
        // The caller may use the capacity at once. `close` waits for the drop.
        self.pass.iter_mut().for_each(Pass::release);
        self.inner.complete(answer)
    }

    /// Sends `Timeout` or `Canceled` for an op that [is over](Reply::is_over).
    pub fn give_up(self) {
        // Both may be true. The deadline is then the better answer, as it says that time was too
        // short.
        let late = self.inner.clock.now() >= self.inner.deadline;
        let (kind, what) = if late {
            (ErrorKind::Timeout, DEADLINE_PASSED)
        } else {
            (ErrorKind::Canceled, "canceled")
        };
        let error = Error::new(kind, what).with_op(self.inner.op);
        self.complete(Err(error));
    }
}

impl<T> SharedReply<T> {
    fn complete(&self, answer: Result<T, Error>) -> bool {
        // Taken under the lock and used without it: to send wakes tasks, which is the caller's
        // code.
        let completer = lock(&self.completer).take();
        let is_sent = completer.is_some();
        if let Some(completer) = completer {
            completer.complete(answer);
        }
        is_sent
    }
}

impl<T: Send> Expire for SharedReply<T> {
    fn expire(&self, now: Instant) -> Option<Instant> {
        if now < self.deadline {
            return Some(self.deadline);
        }
        // Does nothing if the worker was first: whichever takes the completer sends.
        self.complete(Err(Error::new(ErrorKind::Timeout, DEADLINE_PASSED).with_op(self.op)));
        None
    }
}

impl<T: Send + 'static> fmt::Debug for Reply<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reply({})", self.inner.op)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{ManualClock, Timekeeper};

    fn kind(ticket: Ticket<Result<u8, Error>>) -> Result<u8, ErrorKind> {
        ticket.wait().map_err(|e| e.kind())
    }

    #[test]
    fn a_reply_is_sent_once_and_by_its_deadline() {
        let time = ManualClock::new();
        let timers = Timekeeper::start_on(time.clock(), "test").unwrap();
        let soon = time.now() + Duration::from_millis(20);
        let (answer, ticket) = Reply::new_on(&time.clock(), "lookup", soon);
        timers.schedule(soon, &answer.expiry());
        time.advance(Duration::from_millis(19));
        assert!(!answer.is_over() && !ticket.is_done());
        time.advance(Duration::from_millis(1));
        assert!(ticket.is_done());
        assert_eq!(kind(ticket), Err(ErrorKind::Timeout), "without a completion");
        assert!(answer.is_over());
        assert!(!answer.complete(Ok(1)), "too late");

        let later = Instant::now() + Duration::from_secs(600);
        let (answer, ticket) = Reply::new("lookup", later);
        assert!(!answer.is_over());
        assert!(answer.complete(Ok(2)));
        assert_eq!(kind(ticket), Ok(2));
        let (answer, ticket) = Reply::new("lookup", later);
        drop(answer);
        assert_eq!(kind(ticket), Err(ErrorKind::Closed));
        let (answer, ticket) = Reply::new("lookup", later);
        ticket.cancel();
        assert!(answer.is_over());
        answer.give_up();
        assert_eq!(kind(ticket), Err(ErrorKind::Canceled));
    }
}
