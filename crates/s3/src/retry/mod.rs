//! What to do after a failure, and how often.

mod breaker;
mod budget;
mod class;
mod classify;
mod limit;

use crate::error::Error;

pub use breaker::{Admission, Breakers};
pub use budget::Budget;
pub use class::Class;
pub use classify::{Refusal, classify};
pub use limit::{Gates, Permit};

/// How a failed attempt may be repeated.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Again {
    /// Not at all.
    No,
    /// At once, on a new connection: an idle one turned out dead before a byte was answered.
    Stale,
    /// At once, by another connection: the server says that it did nothing with the request.
    Unprocessed,
    /// After a pause; at least this many seconds if the store said so.
    Backoff(Option<u64>),
    /// At once, with the clock corrected.
    Clock,
    /// At once, with new credentials or a new session.
    Identity,
    /// At once, signed for this region.
    Region(String),
    /// At once, at the configured endpoint: the region that the store named may be the fault.
    Elsewhere,
    /// At once, without a range: the store ignores it.
    Whole,
    /// At once, with the body's hash signed.
    Signed,
}

/// A failed attempt.
#[derive(Debug)]
pub struct Trouble {
    /// What the caller is told if there is no other attempt.
    pub error: Error,
    /// Whether there may be one.
    pub again: Again,
    /// Whether it speaks against the endpoint's health.
    pub sick: bool,
}

impl Trouble {
    /// One that no repetition helps and that says nothing of the endpoint.
    pub fn last(error: Error) -> Self {
        Trouble { error, again: Again::No, sick: false }
    }

    /// One of the connection, which another attempt may not meet.
    pub fn broken(error: Error) -> Self {
        let again = if error.is_retryable() { Again::Backoff(None) } else { Again::No };
        Trouble { error, again, sick: true }
    }
}
