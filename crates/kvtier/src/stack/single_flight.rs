//! Single flight: of several ops on one key, one runs and the others wait for its end.
//!
//! A stack has one `SingleFlight` for loads, and one per tier for write-back to that tier. The rule
//! that keeps removes right: an op that moves a chunk between tiers holds the key's [`Flight`] from
//! before it reads the chunk in one tier until the other tier has answered. A remove takes the
//! flight of the load first and waits for write-back tier by tier. So no chunk can reach a tier
//! after the remove has passed it.
//!
//! A flight ends when its guard is dropped, also by a panic or a canceled future. Waiters are
//! completed outside the lock, so a waiter may begin the next flight at once.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};

use kvtier_core::{Completer, Digest, Error, Ticket, ticket};

use crate::sync::{Mutex, MutexGuard};

type Waiters = Vec<Completer<Result<(), Error>>>;

/// The keys whose flight is under way, with the completers of those that wait.
#[derive(Clone, Debug, Default)]
pub struct SingleFlight(Arc<Mutex<HashMap<Digest, Waiters>>>);

/// The one flight of a key. Dropping it ends the flight and wakes the waiters.
#[derive(Debug)]
pub struct Flight {
    flights: SingleFlight,
    key: Digest,
}

impl SingleFlight {
    fn lock(&self) -> MutexGuard<'_, HashMap<Digest, Waiters>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A ticket for the end of a key's flight; `None` if it is not under way.
    pub fn wait_for(&self, key: &Digest) -> Option<Ticket<Result<(), Error>>> {
        self.lock().get_mut(key).map(join)
    }

    /// A ticket for the end of some flight; `None` if none is under way.
    pub fn any(&self) -> Option<Ticket<Result<(), Error>>> {
        self.lock().values_mut().next().map(join)
    }

    /// Begins the flight of `key`, or gives a ticket for the end of the one under way.
    pub fn begin(&self, key: &Digest) -> Result<Flight, Ticket<Result<(), Error>>> {
        let mut all = self.lock();
        match all.get_mut(key) {
            Some(waiters) => Err(join(waiters)),
            None => {
                all.insert(*key, Vec::new());
                Ok(Flight { flights: self.clone(), key: *key })
            }
        }
    }
}

fn join(waiters: &mut Waiters) -> Ticket<Result<(), Error>> {
    let (waiter, ticket) = ticket();
    waiters.push(waiter);
    ticket
}

impl Drop for Flight {
    fn drop(&mut self) {
        // The lock is released at the end of this line. Waiters run code of their own when they are
        // completed, and may begin a flight of the same key.
        let waiters = self.flights.lock().remove(&self.key);
        waiters.into_iter().flatten().for_each(|waiter| waiter.complete(Ok(())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_runs_and_the_others_wait() {
        let flights = SingleFlight::default();
        let key = Digest([1; 32]);
        let flight = flights.begin(&key).unwrap();
        let waiting = flights.begin(&key).unwrap_err();
        assert!(!waiting.is_done());
        drop(flight);
        waiting.wait().unwrap();
        assert!(flights.begin(&key).is_ok());
    }
}
