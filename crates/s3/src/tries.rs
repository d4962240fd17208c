//! The attempts at one operation.

use std::sync::Arc;
use std::time::Duration;

use crate::answer::{self, Parse};
use crate::attempt::{Answer, Turn};
use crate::client::Inner;
use crate::effort;
use crate::error::{Error, ErrorKind, Result};
use crate::request::Request;
use crate::retry::{Again, Class, Trouble};
use crate::time::Instant;

const PAUSE_BASE: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// A store may ask for a pause of at most this many seconds.
const RETRY_AFTER_MAX_S: u64 = 20;
/// How often one operation goes to another region, or back: away and home by one wrong answer, and
/// as often by the right one.
const MOVES_MAX: u32 = 4;

impl Inner {
    /// Sends a request whose answer is small, until it is answered or there is no more to try.
    pub fn ask(
        self: &Arc<Self>,
        request: &Request<'_>,
        bytes_max: usize,
    ) -> impl Future<Output = Result<Answer>> {
        Tries::new(self, request.class()).ask(request, bytes_max)
    }

    /// As [`Inner::ask`]; the answer is what `parse` makes of it, and what it refuses is a failed
    /// attempt.
    pub fn ask_for<T: Send + 'static>(
        self: &Arc<Self>,
        request: &Request<'_>,
        bytes_max: usize,
        parse: Parse<T>,
    ) -> impl Future<Output = Result<T>> {
        Tries::new(self, request.class()).ask_for(request, bytes_max, parse)
    }
}

/// How often what was tried already.
#[derive(Debug)]
pub struct Tries<'c> {
    inner: &'c Arc<Inner>,
    class: Class,
    pauses: u32,
    moves: u32,
    done: Done,
    /// The region that was followed last.
    region: Option<String>,
    /// What it said, where the configured endpoint was asked again for that.
    refused: Option<Error>,
}

/// What is tried once, and was.
#[derive(Debug, Default)]
struct Done {
    stale: bool,
    unprocessed: bool,
    clock: bool,
    identity: bool,
    /// The body's hash is signed, since it was refused without.
    signed: bool,
    /// And the store said that this is why.
    is_certain: bool,
    whole: bool,
    /// A region was named that cannot be followed.
    astray: bool,
}

impl<'c> Tries<'c> {
    /// None yet, of requests of this class.
    pub fn new(inner: &'c Arc<Inner>, class: Class) -> Self {
        Tries {
            inner,
            class,
            pauses: 0,
            moves: 0,
            done: Done::default(),
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
            let answer = match self.once(request, bytes_max).await {
                Ok(answer) => answer,
                Err(trouble) => {
                    self.after(trouble).await?;
                    continue;
                }
            };
            match answer::read(answer, parse).await {
                Ok(value) => {
                    self.won();
                    return Ok(value);
                }
                Err(trouble) => self.after(trouble).await?,
            }
        }
    }

    async fn ask(mut self, request: &Request<'_>, bytes_max: usize) -> Result<Answer> {
        request.check()?;
        loop {
            match self.once(request, bytes_max).await {
                Ok(answer) => {
                    self.won();
                    return Ok(answer);
                }
                Err(trouble) => self.after(trouble).await?,
            }
        }
    }

    /// One attempt. What becomes of its failure is for [`Tries::after`] to say.
    pub async fn once(&self, request: &Request<'_>, bytes_max: usize) -> Result<Answer, Trouble> {
        let open = self.inner.open(request, Turn::Wait, &mut []).await?;
        let status = open.head.status;
        if open.head.is_success() && !answer::is_expected(request.method, status) {
            return Err(answer::foreign(answer::unexpected(status)));
        }
        open.collect(self.inner, bytes_max).await
    }

    /// The operation succeeded.
    pub fn won(&self) {
        self.inner.budget.earn(self.pauses > 0);
        if self.done.signed {
            let (unsigned, now) = (&self.inner.unsigned_bodies, Instant::now());
            self.inner.counters.unsigned_refused.one();
            if self.done.is_certain {
                unsigned.note_refused(now)
            } else {
                unsigned.note_unsupported(effort::op_began(), now)
            }
        }
    }

    /// Waits until there may be another attempt, or says that there is none.
    pub async fn after(&mut self, trouble: Trouble) -> Result<()> {
        let Trouble { error, again, sick } = trouble;
        self.note(&error, sick);
        match again {
            Again::No => return Err(self.give_up(error)),
            Again::Stale if !std::mem::replace(&mut self.done.stale, true) => {
                // Its neighbours were closed with it.
                self.inner.pool.clear();
                self.inner.counters.retries_stale.one();
            }
            Again::Unprocessed if !std::mem::replace(&mut self.done.unprocessed, true) => {
                self.inner.counters.retries_unprocessed.one();
            }
            Again::Clock if !std::mem::replace(&mut self.done.clock, true) => {
                self.inner.counters.retries.one()
            }
            Again::Whole if !std::mem::replace(&mut self.done.whole, true) => {
                self.inner.counters.retries.one()
            }
            Again::Identity if !std::mem::replace(&mut self.done.identity, true) => {
                self.inner.counters.retries.one()
            }
            // What that region said says more than that it is named again.
            Again::Region(region)
                if self.refused.is_some() && self.region.as_ref() == Some(&region) =>
            {
                return Err(self.refused.take().unwrap_or(error));
            }
            Again::Region(region) if self.moves < MOVES_MAX => {
                self.moves += 1;
                if let Err(e) = self.inner.follow(&region).await {
                    // Not the store's answer, perhaps: the same request once more.
                    if std::mem::replace(&mut self.done.astray, true) {
                        return Err(self.give_up(error.with_source(e)));
                    }
                }
                self.inner.counters.retries.one();
                (self.region, self.refused) = (Some(region), None);
            }
            Again::Elsewhere if self.moves < MOVES_MAX => {
                self.moves += 1;
                self.refused = Some(error);
                self.inner.counters.retries.one();
            }
            Again::Signed if !std::mem::replace(&mut self.done.signed, true) => {
                effort::sign();
                self.done.is_certain = error.code() == Some("XAmzContentSHA256Mismatch");
                self.inner.counters.retries.one();
            }
            Again::Backoff(_) | Again::Stale | Again::Unprocessed => {
                return self.pause(error, &again).await;
            }
            _ => return Err(self.give_up(error)),
        }
        Ok(())
    }

    fn note(&self, error: &Error, sick: bool) {
        let Inner { counters, breakers, gates, pool, .. } = &**self.inner;
        let now = Instant::now();
        effort::failed(error);
        if error.kind() == ErrorKind::Timeout {
            counters.timeouts.one();
            gates.of(self.class).overloaded(now, counters);
        }
        if sick && error.status().is_none() {
            pool.doubt(error.kind() == ErrorKind::Timeout);
        }
        if sick {
            breakers.of(self.class).failed(now, error, counters);
        }
    }

    /// Signing the body did not help: it was not the reason.
    fn give_up(&self, error: Error) -> Error {
        if self.done.signed && error.kind() == ErrorKind::Denied {
            self.inner.signed_in_vain.note(Instant::now());
        }
        error
    }

    /// Full jitter: anything between nothing and twice as much as the last time.
    async fn pause(&mut self, error: Error, again: &Again) -> Result<()> {
        let Inner { config, counters, budget, .. } = &**self.inner;
        if self.pauses >= config.retries_max {
            return Err(error);
        }
        if !budget.spend(self.class, error.kind() == ErrorKind::Timeout) {
            counters.retries_refused.one();
            return Err(error);
        }
        let bound = PAUSE_BASE.saturating_mul(1 << self.pauses.min(16)).min(PAUSE_MAX);
        let asked = match again {
            Again::Backoff(Some(seconds)) => Duration::from_secs((*seconds).min(RETRY_AFTER_MAX_S)),
            _ => Duration::ZERO,
        };
        self.pauses += 1;
        counters.retries.one();
        tokio::time::sleep(bound.mul_f64(fastrand::f64()).max(asked)).await;
        Ok(())
    }
}
