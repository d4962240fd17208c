//! The requests of one kind in flight, each with the places that it takes. A request that hangs can be
//! abandoned: it stays in flight, and another one gets its places.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;

use crate::http::{SILENT_AFTER, Silence};
use crate::local_clock::Instant;

/// The most requests of a kind that are abandoned: a client sends no more beyond its limits.
pub const ABANDONED_MAX: usize = 16;

/// The places of a request: among its kind, and among all kinds.
#[derive(Debug)]
pub struct Places {
    pub of_kind: OwnedSemaphorePermit,
    pub of_all: OwnedSemaphorePermit,
}

/// The requests of one kind. It allocates only while they become more than ever.
#[derive(Debug, Default)]
pub struct InFlight {
    requests: Vec<Option<InFlightRequest>>,
    /// Where `requests` has none.
    free: Vec<usize>,
    abandoned: usize,
}

#[derive(Debug)]
struct InFlightRequest {
    since: Instant,
    /// Of its connection, once it has one.
    silence: Option<Arc<Silence>>,
    /// `None` if it is abandoned.
    places: Option<Places>,
}

impl InFlightRequest {
    /// Whether nothing has moved for it for a second, and it began `min` ago or earlier.
    fn hangs(&self, now: Instant, min: Duration) -> bool {
        let is_old = now.saturating_duration_since(self.since) >= min.max(SILENT_AFTER);
        is_old && self.silence.as_ref().is_none_or(|silence| silence.is_on())
    }
}

impl InFlight {
    /// A request begins. The number is that for [`InFlight::end`].
    pub fn begin(&mut self, places: Places, now: Instant) -> usize {
        let request = Some(InFlightRequest { since: now, silence: None, places: Some(places) });
        match self.free.pop() {
            Some(number) => {
                self.requests[number] = request;
                number
            }
            None => {
                self.requests.push(request);
                self.requests.len() - 1
            }
        }
    }

    /// It is on a connection with this silence.
    pub fn watch(&mut self, number: usize, silence: &Arc<Silence>) {
        silence.end();
        if let Some(Some(request)) = self.requests.get_mut(number) {
            request.silence = Some(Arc::clone(silence));
        }
    }

    /// It ends: its places, unless it was abandoned.
    pub fn end(&mut self, number: usize) -> Option<Places> {
        let request = self.requests.get_mut(number).and_then(Option::take)?;
        self.free.push(number);
        self.abandoned -= usize::from(request.places.is_none());
        request.places
    }

    /// Abandons the oldest request that hangs and began `min` ago or earlier: its places.
    pub fn abandon_hung(&mut self, now: Instant, min: Duration) -> Option<Places> {
        if self.abandoned >= ABANDONED_MAX {
            return None;
        }
        let requests = self.requests.iter_mut().flatten();
        let oldest = requests
            .filter(|request| request.places.is_some() && request.hangs(now, min))
            .min_by_key(|request| request.since)?;
        self.abandoned += 1;
        oldest.places.take()
    }

    /// Whether each that has a place hangs and began `min` ago or earlier.
    pub fn all_hang(&self, now: Instant, min: Duration) -> bool {
        self.with_places().all(|request| request.hangs(now, min))
    }

    /// When the last of those began that have places.
    pub fn last_began(&self) -> Option<Instant> {
        self.with_places().map(|request| request.since).max()
    }

    fn with_places(&self) -> impl Iterator<Item = &InFlightRequest> {
        self.requests.iter().flatten().filter(|request| request.places.is_some())
    }

    /// How many are abandoned.
    pub fn abandoned(&self) -> usize {
        self.abandoned
    }
}
