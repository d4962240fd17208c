//! The retries of one operation.

use std::sync::Arc;
use std::time::Duration;

use crate::attempt::{CollectedResponse, QueueMode};
use crate::client::Inner;
use crate::error::{Error, ErrorKind, Result};
use crate::local_clock::Instant;
use crate::op_state;
use crate::request::Request;
use crate::response_check::{self, Parse};
use crate::retry::{AttemptError, RequestKind, RetryAction};

const PAUSE_BASE: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// A store may ask for a pause of at most this many seconds.
const RETRY_AFTER_MAX_S: u64 = 20;
/// How often one operation goes to another region, or back: away and home by one wrong answer, and
/// as often by the right one.
const MOVES_MAX: u32 = 4;

impl Inner {
    /// Sends a request with a small response, until it succeeds or the retries are over.
    pub fn ask(
        self: &Arc<Self>,
        request: &Request<'_>,
        bytes_max: usize,
    ) -> impl Future<Output = Result<CollectedResponse>> {
        RetryState::new(self, request.kind()).ask(request, bytes_max)
    }

    /// As [`Inner::ask`]; the answer is what `parse` makes of it, and what it refuses is a failed
    /// attempt.
    pub fn ask_for<T: Send + 'static>(
        self: &Arc<Self>,
        request: &Request<'_>,
        bytes_max: usize,
        parse: Parse<T>,
    ) -> impl Future<Output = Result<T>> {
        RetryState::new(self, request.kind()).ask_for(request, bytes_max, parse)
    }
}

/// What an operation has tried so far.
#[derive(Debug)]
pub struct RetryState<'c> {
    inner: &'c Arc<Inner>,
    kind: RequestKind,
    pauses: u32,
    moves: u32,
    tried: TriedOnce,
    /// The region that was followed last.
    region: Option<String>,
    /// The error of that region, if the configured endpoint was asked again because of it.
    refused: Option<Error>,
}

/// The remedies that are tried once per operation, and whether they were.
#[derive(Debug, Default)]
struct TriedOnce {
    stale: bool,
    unprocessed: bool,
    clock: bool,
    identity: bool,
    /// The body's hash is signed, since the store refused the request without.
    signed: bool,
    /// The store named the missing hash as the reason.
    is_certain: bool,
    whole: bool,
    /// The store named a region that cannot be followed.
    astray: bool,
}

impl<'c> RetryState<'c> {
    /// A new operation with requests of this kind.
    pub fn new(inner: &'c Arc<Inner>, kind: RequestKind) -> Self {
        RetryState {
            inner,
            kind,
            pauses: 0,
            moves: 0,
            tried: TriedOnce::default(),
            region: None,
            refused: None,
        }
    }

    async fn ask_for<T: Send + 'static>(
        mut self,
        request: &Request<'_>,
        bytes_max: usize,
        parse: Parse<T>,
    ) -> Result<T> {
        request.check()?;
        loop {
            let answer = match self.attempt(request, bytes_max).await {
                Ok(answer) => answer,
                Err(failure) => {
                    self.on_failure(failure).await?;
                    continue;
                }
            };
            // A success whose body makes no sense counts as a failed attempt: the response came
            // from something other than the store, or was cut.
            match response_check::read(answer, parse, self.inner.config.read_here_max()).await {
                Ok(value) => {
                    self.succeeded();
                    return Ok(value);
                }
                Err(failure) => self.on_failure(failure).await?,
            }
        }
    }

    async fn ask(mut self, request: &Request<'_>, bytes_max: usize) -> Result<CollectedResponse> {
        request.check()?;
        loop {
            match self.attempt(request, bytes_max).await {
                Ok(answer) => {
                    self.succeeded();
                    return Ok(answer);
                }
                Err(failure) => self.on_failure(failure).await?,
            }
        }
    }

    /// One attempt. What becomes of its failure is for [`RetryState::on_failure`] to say.
    pub async fn attempt(
        &self,
        request: &Request<'_>,
        bytes_max: usize,
    ) -> Result<CollectedResponse, AttemptError> {
        let open = self.inner.open(request, QueueMode::Wait, &mut []).await?;
        let status = open.head.status;
        if open.head.is_success() && !response_check::is_expected(request.method, status) {
            return Err(response_check::foreign(response_check::unexpected(status)));
        }
        open.collect(self.inner, bytes_max).await
    }

    /// The operation succeeded.
    pub fn succeeded(&self) {
        // A retry that helped is paid back, so that a store with rare failures never empties the
        // budget.
        self.inner.budget.earn(self.pauses > 0);
        if self.tried.signed {
            // The same request was refused without the hash and accepted with it.
            let unsigned = &self.inner.unsigned_bodies;
            let now = Instant::now();
            self.inner.counters.unsigned_refused.one();
            if self.tried.is_certain {
                unsigned.note_refused(now)
            } else {
                unsigned.note_unsupported(op_state::op_began(), now)
            }
        }
    }

    /// Waits until the next attempt.
    ///
    /// # Errors
    /// The failure, if no further attempt is allowed.
    pub async fn on_failure(&mut self, failure: AttemptError) -> Result<()> {
        let AttemptError { error, retry, endpoint_fault } = failure;
        self.record(&error, endpoint_fault);
        match retry {
            RetryAction::Never => return Err(self.give_up(error)),
            // Without a pause and without cost: the server closed an idle connection, and has not
            // seen the request. Only the first time; a server that closes each new connection at
            // once is a failing server.
            RetryAction::StaleConnection if !std::mem::replace(&mut self.tried.stale, true) => {
                // The other idle connections were probably closed with it.
                // Else each retry could meet the next dead one.
                self.inner.pool.clear();
                self.inner.counters.retries_stale.one();
            }
            RetryAction::Unprocessed if !std::mem::replace(&mut self.tried.unprocessed, true) => {
                self.inner.counters.retries_unprocessed.one();
            }
            RetryAction::CorrectClock if !std::mem::replace(&mut self.tried.clock, true) => {
                self.inner.counters.retries.one()
            }
            RetryAction::WithoutRange if !std::mem::replace(&mut self.tried.whole, true) => {
                self.inner.counters.retries.one()
            }
            RetryAction::RenewCredentials if !std::mem::replace(&mut self.tried.identity, true) => {
                self.inner.counters.retries.one()
            }
            // What that region said says more than that it is named again.
            RetryAction::Region(region)
                if self.refused.is_some() && self.region.as_ref() == Some(&region) =>
            {
                return Err(self.refused.take().unwrap_or(error));
            }
            // A limit, since two endpoints could send each request back and forth.
            RetryAction::Region(region) if self.moves < MOVES_MAX => {
                self.moves += 1;
                if let Err(e) = self.inner.follow(&region).await {
                    // Not the store's answer, perhaps: the same request once more.
                    if std::mem::replace(&mut self.tried.astray, true) {
                        return Err(self.give_up(error.with_source(e)));
                    }
                }
                self.inner.counters.retries.one();
                (self.region, self.refused) = (Some(region), None);
            }
            RetryAction::ConfiguredEndpoint if self.moves < MOVES_MAX => {
                self.moves += 1;
                self.refused = Some(error);
                self.inner.counters.retries.one();
            }
            RetryAction::SignBody if !std::mem::replace(&mut self.tried.signed, true) => {
                op_state::sign_bodies();
                self.tried.is_certain = error.code() == Some("XAmzContentSHA256Mismatch");
                self.inner.counters.retries.one();
            }
            RetryAction::Backoff(_) | RetryAction::StaleConnection | RetryAction::Unprocessed => {
                return self.pause(error, &retry).await;
            }
            _ => return Err(self.give_up(error)),
        }
        Ok(())
    }

    fn record(&self, error: &Error, endpoint_fault: bool) {
        let Inner { counters, breakers, limits, pool, .. } = &**self.inner;
        let now = Instant::now();
        op_state::request_failed(error);
        // Silence is the strongest sign of overload: fewer requests at a time are tried next.
        // Before the retry: the next attempt must find the lower limit.
        if error.kind() == ErrorKind::Timeout {
            counters.timeouts.one();
            limits.kind(self.kind).overloaded(now, counters);
        }
        // No response at all, so the name may lead to another address by now.
        if endpoint_fault && error.status().is_none() {
            pool.invalidate_dns(error.kind() == ErrorKind::Timeout);
        }
        // RefusalBackoff and foreign answers do not count: the endpoint works.
        if endpoint_fault {
            let sent_at = op_state::request_sent_at().unwrap_or(now);
            breakers.kind(self.kind).failed(now, sent_at, error, counters);
        }
    }

    /// If signing the body did not help, the hash was not the reason.
    fn give_up(&self, error: Error) -> Error {
        // Without a status it is no answer: the client refused to send the request.
        let is_answer = error.status().is_some();
        if self.tried.signed && is_answer && error.kind() == ErrorKind::Denied {
            self.inner.signing_did_not_help.note(Instant::now());
        }
        error
    }

    /// Sleeps with full jitter: between zero and a bound that doubles with each retry.
    async fn pause(&mut self, error: Error, retry: &RetryAction) -> Result<()> {
        let Inner { config, counters, budget, .. } = &**self.inner;
        // The limits are checked in this order, because the budget is shared: an operation that is
        // over takes nothing from it.
        if self.pauses >= config.retries_max {
            return Err(error);
        }
        if !budget.spend(self.kind, error.kind() == ErrorKind::Timeout) {
            counters.retries_refused.one();
            return Err(error);
        }
        // Exponential, with full jitter. Clients that failed together must not come back together,
        // and the bound keeps the store's own `retry-after` in charge where it asks for more.
        let bound = PAUSE_BASE.saturating_mul(1 << self.pauses.min(16)).min(PAUSE_MAX);
        let asked = match retry {
            RetryAction::Backoff(Some(seconds)) => {
                Duration::from_secs((*seconds).min(RETRY_AFTER_MAX_S))
            }
            _ => Duration::ZERO,
        };
        self.pauses += 1;
        counters.retries.one();
        tokio::time::sleep(bound.mul_f64(fastrand::f64()).max(asked)).await;
        Ok(())
    }
}
