use std::collections::HashMap;
use std::sync::{Arc, PoisonError};

use kvtier_core::{Completer, Digest, Error, Ticket, ticket};

use crate::sync::{Mutex, MutexGuard};

type Waiters = Vec<Completer<Result<(), Error>>>;

/// Which keys are on their way up from a lower tier, and who waits for them.
#[derive(Clone, Debug, Default)]
pub struct Flights(Arc<Mutex<HashMap<Digest, Waiters>>>);

/// The one flight of a key. Landing, or being dropped, wakes those who wait.
#[derive(Debug)]
pub struct Flight {
    flights: Flights,
    key: Digest,
}

impl Flights {
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
        let waiters = self.flights.lock().remove(&self.key);
        waiters.into_iter().flatten().for_each(|waiter| waiter.complete(Ok(())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_flies_and_the_others_wait() {
        let (flights, key) = (Flights::default(), Digest([1; 32]));
        let flight = flights.begin(&key).unwrap();
        let waiting = flights.begin(&key).unwrap_err();
        assert!(!waiting.is_done());
        drop(flight);
        waiting.wait().unwrap();
        assert!(flights.begin(&key).is_ok());
    }
}
