//! The requests of a client that wait for an answer.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Within this time a request gives its place to no other one.
const KEEPS_ITS_PLACE: Duration = Duration::from_secs(1);
/// A probe of the endpoint is sent beside the others.
const PROBES: usize = 1;
/// The most requests that hang and have given up their places: sixteen of each of four kinds.
const WITHOUT_A_PLACE: usize = 4 * 16;

/// The requests that wait for their answers, and how many there may be.
#[derive(Debug)]
pub struct OpenRequests {
    open: Mutex<Open>,
    /// The most requests in flight, as the client is configured.
    max: AtomicUsize,
}

#[derive(Debug, Default)]
struct Open {
    /// The numbers of the requests, and when they began.
    requests: Vec<(u64, Duration)>,
    /// No number is used twice: a request may be ended again when another one has begun.
    next: u64,
}

/// How many requests are open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct OpenCount {
    /// Those that have begun a moment ago.
    young: usize,
    all: usize,
}

impl Default for OpenRequests {
    /// None, and any number is allowed.
    fn default() -> Self {
        OpenRequests { open: Mutex::default(), max: AtomicUsize::new(usize::MAX / 2) }
    }
}

impl OpenRequests {
    /// The client may have this number of requests in flight.
    pub fn set_max(&self, max: usize) {
        self.max.store(max, Ordering::Relaxed);
    }

    /// A request begins: its number, which `end` takes.
    pub fn begin(&self, now: Duration) -> u64 {
        let mut open = self.open();
        let number = open.next;
        open.next += 1;
        open.requests.push((number, now));
        number
    }

    /// It was answered, or the client gave it up.
    pub fn end(&self, number: u64) {
        self.open().requests.retain(|(open, _)| *open != number);
    }

    /// What is wrong, if there are more than the client may have.
    pub fn excess(&self, now: Duration) -> Option<String> {
        let (OpenCount { young, all }, max) = (self.count(now), self.max.load(Ordering::Relaxed));
        let is_within = young <= max + PROBES && all <= max + PROBES + WITHOUT_A_PLACE;
        (!is_within).then(|| {
            format!("{all} requests in flight, {young} of them since a moment; {max} are allowed")
        })
    }

    fn count(&self, now: Duration) -> OpenCount {
        let requests = &self.open().requests;
        let is_young = |(_, began): &&(u64, Duration)| *began + KEEPS_ITS_PLACE > now;
        OpenCount { young: requests.iter().filter(is_young).count(), all: requests.len() }
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_young_request_needs_a_place() {
        let open = OpenRequests::default();
        let [early, late] = [0, 1000].map(Duration::from_millis);
        let numbers: Vec<u64> = (0..3).map(|_| open.begin(early)).collect();
        assert_eq!(open.count(early), OpenCount { young: 3, all: 3 });
        assert_eq!(open.excess(early), None);
        open.set_max(1);
        assert!(open.excess(early).is_some_and(|excess| excess.starts_with("3 requests")));
        open.end(numbers[1]);
        assert_eq!(open.excess(early), None);
        // The old ones have given up their places.
        (0..2).for_each(|_| _ = open.begin(late));
        assert_eq!(open.count(late), OpenCount { young: 2, all: 4 });
        assert_eq!(open.excess(late), None);
        open.begin(late);
        assert!(open.excess(late).is_some());
    }

    #[test]
    fn a_request_that_ends_twice_ends_no_other() {
        let open = OpenRequests::default();
        let first = open.begin(Duration::ZERO);
        open.end(first);
        open.begin(Duration::ZERO);
        open.end(first);
        assert_eq!(open.count(Duration::ZERO).all, 1);
    }

    #[test]
    fn those_without_a_place_are_bounded_too() {
        let open = OpenRequests::default();
        open.set_max(1);
        (0..=WITHOUT_A_PLACE + PROBES).for_each(|_| _ = open.begin(Duration::ZERO));
        let late = Duration::from_secs(9);
        assert_eq!(open.excess(late), None);
        open.begin(Duration::ZERO);
        assert!(open.excess(late).is_some());
    }
}
