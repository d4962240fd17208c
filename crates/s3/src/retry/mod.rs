//! What to do after a failure, and how often.

mod attempts;
mod breaker;
mod budget;
mod classify;
mod concurrency;
mod in_flight;
mod request_kind;

use crate::error::Error;

pub use attempts::RetryState;
pub use breaker::{Admission, Breakers};
pub use budget::RetryBudget;
pub use classify::{StoreRefusal, classify};
pub use concurrency::{ConcurrencyLimits, RequestPermit};
pub use request_kind::RequestKind;

/// How a failed attempt may be repeated.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RetryAction {
    /// Not at all.
    Never,
    /// At once, on a new connection: an idle one turned out dead before a byte was answered.
    StaleConnection,
    /// At once, by another connection: the server says that it did nothing with the request.
    Unprocessed,
    /// After a pause; at least this many seconds if the store said so.
    Backoff(Option<u64>),
    /// At once, with the clock corrected.
    CorrectClock,
    /// At once, with new credentials or a new session.
    RenewCredentials,
    /// At once, signed for this region.
    Region(String),
    /// At once, at the configured endpoint: the region that the store named may be the fault.
    ConfiguredEndpoint,
    /// At once, without a range: the store ignores it.
    WithoutRange,
    /// At once, with the body's hash signed.
    SignBody,
}

/// A failed attempt.
#[derive(Debug)]
pub struct AttemptError {
    /// The error for the caller if there is no further attempt.
    pub error: Error,
    /// How the request may be repeated.
    pub retry: RetryAction,
    /// Whether the failure counts against the health of the endpoint.
    pub endpoint_fault: bool,
}

impl AttemptError {
    /// A failure that is not retried and is no fault of the endpoint.
    pub fn fatal(error: Error) -> Self {
        AttemptError { error, retry: RetryAction::Never, endpoint_fault: false }
    }

    /// A failure of the connection, which another attempt may avoid.
    pub fn connection(error: Error) -> Self {
        let retry =
            if error.is_retryable() { RetryAction::Backoff(None) } else { RetryAction::Never };
        AttemptError { error, retry, endpoint_fault: true }
    }
}
