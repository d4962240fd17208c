use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use kvtier_core::{Clock, Completer, Error, ErrorKind, Expire, Ticket, ticket};

type Answer<T> = Result<T, Error>;

/// One answer with a deadline, for what is no batch: given in time, or `Timeout`.
pub struct Promise<T: Send + 'static>(Arc<Inner<T>>);

struct Inner<T: Send + 'static> {
    clock: Clock,
    deadline: Instant,
    completer: Mutex<Option<Completer<Answer<T>>>>,
}

impl<T: Send + 'static> Promise<T> {
    pub fn new(clock: &Clock, deadline: Instant) -> (Self, Ticket<Answer<T>>) {
        let (completer, ticket) = ticket();
        (
            Promise(Arc::new(Inner {
                clock: clock.clone(),
                deadline,
                completer: Mutex::new(Some(completer)),
            })),
            ticket,
        )
    }

    /// Until when it is waited for.
    pub fn deadline(&self) -> Instant {
        self.0.deadline
    }

    /// What to register with the timekeeper.
    pub fn expiry(&self) -> Arc<dyn Expire> {
        self.0.clone()
    }

    /// Why the work need not begin.
    pub fn is_over(&self) -> Option<ErrorKind> {
        match &*self.0.completer() {
            Some(completer) if completer.is_canceled() => Some(ErrorKind::Canceled),
            Some(_) if self.0.clock.now() < self.0.deadline => None,
            _ => Some(ErrorKind::Timeout),
        }
    }

    /// Gives the answer, or hands it back if nobody waits for it any more.
    pub fn keep(self, answer: Answer<T>) -> Result<(), Answer<T>> {
        let completer = self.0.completer().take();
        match completer {
            Some(completer) => {
                completer.complete(answer);
                Ok(())
            }
            None => Err(answer),
        }
    }
}

impl<T: Send + 'static> Inner<T> {
    fn completer(&self) -> MutexGuard<'_, Option<Completer<Answer<T>>>> {
        self.completer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Send + 'static> Expire for Inner<T> {
    fn expire(&self, now: Instant) -> Option<Instant> {
        if now < self.deadline {
            return Some(self.deadline);
        }
        let completer = self.completer().take();
        if let Some(completer) = completer {
            completer.complete(Err(Error::new(ErrorKind::Timeout, "the deadline passed")));
        }
        None
    }
}

impl<T: Send + 'static> fmt::Debug for Promise<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Promise({})", if self.0.completer().is_some() { "open" } else { "over" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn what_comes_after_the_deadline_is_handed_back() {
        let (promise, ticket) = Promise::<u8>::new(&Clock::real(), Instant::now());
        assert_eq!(promise.is_over(), Some(ErrorKind::Timeout));
        assert!(promise.expiry().expire(Instant::now()).is_none());
        assert_eq!(promise.keep(Ok(1)).unwrap_err().unwrap(), 1);
        assert_eq!(ticket.wait().unwrap_err().kind(), ErrorKind::Timeout);
    }

    #[test]
    fn in_time_it_is_the_answer() {
        let (promise, ticket) =
            Promise::<u8>::new(&Clock::real(), Instant::now() + Duration::from_secs(600));
        assert!(promise.expiry().expire(Instant::now()).is_some());
        promise.keep(Ok(1)).unwrap();
        assert_eq!(ticket.wait().unwrap(), 1);
    }
}
