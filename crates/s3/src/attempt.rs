//! One attempt at a request: permit, credentials, connection, response.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::client::Inner;
use crate::creds::Credentials;
use crate::error::{Error, ErrorKind};
use crate::http::{
    BodyBuffer, BodyFraming, BodySink, Opened, ResponseHead, Sent, StreamEnd, Transport,
};
use crate::local_clock::Instant;
use crate::op_state;
use crate::region::{Destination, named_region};
use crate::request::{Payload, Request, Signer, Signing};
use crate::request_log::LoggedRequest;
use crate::retry::{
    Admission, AttemptError, RequestKind, RequestPermit, RetryAction, StoreRefusal, classify,
};
use crate::time_formats::Stamp;
use crate::xml::ErrorDocument;

/// An error's body is read no further than this.
const ERROR_BODY_BYTES_MAX: usize = 64 * 1024;
/// And waited for no longer than this.
const ERROR_BODY_WAIT: Duration = Duration::from_secs(2);

/// A store that gave its answers ids within this time gives them: an answer without one is not the
/// store's.
const REQUEST_IDS_FOR: Duration = Duration::from_secs(60);
/// Where a signed hash did not help, uploads that are refused are not sent once more with it for
/// this long.
const NO_RESIGN_FOR: Duration = Duration::from_secs(60);

/// Whether to wait until fewer requests are in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueueMode {
    Wait,
    TryNow,
}

/// A response whose head has arrived and whose body has not.
#[derive(Debug)]
pub struct PendingResponse {
    pub head: ResponseHead,
    transport: Transport,
    destination: Arc<Destination>,
    credentials: Credentials,
    signer: Signer,
    unsigned: bool,
    /// Whether a 404 with neither code nor id can be the store's, where it gave no ids of late.
    may_be_silent: bool,
    _permit: RequestPermit,
}

/// A response with its small body. It has no `Debug`: the body of a session holds secrets.
pub struct CollectedResponse {
    pub head: ResponseHead,
    pub body: Vec<u8>,
}

impl Inner {
    // Why in this order:
    //
    // - The permit is held until the response is read or dropped, so the limit counts requests in
    //   flight and not heads. An idle connection is taken only after the permit: taken before, it
    //   would age while the request waits.
    // - The signature is made as late as possible. It is valid for minutes, but the wait for a
    //   permit has no such limit.
    // - A response that no S3 store gives is refused before anything is learned from it: what a
    //   proxy answers says nothing about the store. Only a success proves the region and the
    //   credentials, since a refusal may come from any machine on the way.
    // - A store cannot have stored a body that it has not received, so a success that comes early
    //   is an error. Its connection still holds the rest of the body and is not used again.
    /// Sends a request and reads the head of its response. Dropping the future closes the
    /// connection. The body may begin in `ahead_space`: pass that to one request at a time only.
    ///
    /// # Errors
    /// One failed attempt, with the action by which it may be repeated.
    pub async fn open(
        self: &Arc<Self>,
        request: &Request<'_>,
        queue: QueueMode,
        ahead_space: &mut [u8],
    ) -> Result<PendingResponse, AttemptError> {
        let kind = request.kind();
        let (credentials, permit) = self.admit(request, queue).await?;
        let now = Instant::now();
        op_state::request_sent(now);
        self.recheck_region(now);
        let destination = self.destination_for(request);
        let (mut transport, sent_at) = match self.pool.reuse(&destination.target, now) {
            Some(transport) => (transport, now),
            // Boxed, since this future is large and rare.
            None => (Box::pin(self.connect(&destination)).await?, Instant::now()),
        };
        let stamp = Stamp::of(self.clock.signing());
        let sign_body =
            request.payload == Payload::Bulk && (self.signs_bodies() || op_state::signs_bodies());
        let signing = Signing {
            endpoint: &destination.endpoint,
            credentials: &credentials,
            stamp: &stamp,
            sign_body,
        };
        request.write(&mut transport, &signing).map_err(AttemptError::fatal)?;
        self.counters.sent(request);
        if transport.is_reused() {
            self.counters.reused.one();
        }
        let unsigned = request.payload == Payload::Bulk && !sign_body;
        permit.watch(transport.silence());
        let answer = self.exchange(&mut transport, request, ahead_space).await;
        log(request, sent_at, &answer);
        let (head, early) = answer.map_err(|failure| self.or_elsewhere(failure, &destination))?;
        if request.reads_an_object() && head.is_success() && !head.is_of_an_object() {
            return Err(not_the_stores(&head));
        }
        // The check of a region asks another endpoint than operations do: its answer says nothing
        // about theirs.
        if !request.to_configured {
            self.learn(kind, &head, sent_at);
        }
        if head.is_success() {
            self.destinations.confirm(&destination);
            self.note_worked(&credentials, request.signer);
            if unsigned {
                self.unsigned_bodies.note_supported();
            }
        }
        if early && head.is_success() {
            let what = "the store reported success before it had the whole body";
            return Err(AttemptError::connection(Error::new(ErrorKind::Io, what)));
        }
        let may_be_silent = may_be_silent(request, &destination);
        Ok(PendingResponse {
            head,
            transport,
            destination,
            credentials,
            signer: request.signer,
            unsigned,
            may_be_silent,
            _permit: permit,
        })
    }

    /// Waits for the breaker, the credentials and a permit, in this order. The check of a region
    /// passes the breaker by: it is of another endpoint, and would be the probe that an operation
    /// could have been.
    async fn admit(
        self: &Arc<Self>,
        request: &Request<'_>,
        queue: QueueMode,
    ) -> Result<(Credentials, RequestPermit), AttemptError> {
        let kind = request.kind();
        // The breaker comes first: while the endpoint fails, a request must end at once, and must
        // not wait for credentials that the same endpoint may have to issue.
        let admission = if request.to_configured {
            Admission::Usual
        } else {
            let breaker = self.breakers.kind(kind);
            breaker.admit(Instant::now(), &self.counters).map_err(AttemptError::fatal)?
        };
        // Before the permit: creating a session needs a permit of its own.
        let credentials = self.identity(request.signer).await.map_err(AttemptError::fatal)?;
        let permit = match (admission, queue) {
            // All permits may be held by requests that hang. The probe is the request that finds
            // out whether they hang for good.
            (Admission::Probe, _) => self.limits.bypass(kind),
            (_, QueueMode::Wait) => self.limits.acquire(kind).await,
            (_, QueueMode::TryNow) => self.limits.try_acquire(kind).ok_or_else(no_permit)?,
        };
        Ok((credentials, permit))
    }

    /// A failure at a learned region without a success so far may be the region's fault. Then the
    /// configured endpoint is asked again, at once if the response was a refusal. A failure with a
    /// remedy of its own, such as expired credentials, gets that first: the region is at fault only
    /// if the remedy did not help.
    fn or_elsewhere(&self, failure: AttemptError, destination: &Arc<Destination>) -> AttemptError {
        match failure.error.status() {
            None | Some(500 | 502 | 504) => {
                self.destinations.on_failure(destination);
                failure
            }
            Some(300..=399 | 400 | 401 | 403) => match failure.retry {
                RetryAction::Never if self.destinations.on_failure(destination) => {
                    AttemptError { retry: RetryAction::ConfiguredEndpoint, ..failure }
                }
                RetryAction::RenewCredentials | RetryAction::CorrectClock
                    if op_state::mark_remedied(&failure.retry)
                        && self.destinations.on_failure(destination) =>
                {
                    AttemptError { retry: RetryAction::ConfiguredEndpoint, ..failure }
                }
                RetryAction::Backoff(_) => {
                    self.destinations.on_failure(destination);
                    failure
                }
                // Bodies are signed from then on, and what is refused all the same has no remedy.
                _ => failure,
            },
            _ if failure.error.code() == Some("NoSuchBucket")
                && self.destinations.on_failure(destination) =>
            {
                AttemptError { retry: RetryAction::ConfiguredEndpoint, ..failure }
            }
            _ => failure,
        }
    }

    async fn connect(&self, destination: &Arc<Destination>) -> Result<Transport, AttemptError> {
        let opened = self.pool.open(&destination.target).await.inspect_err(|_| {
            self.destinations.on_unreachable(destination);
        });
        let (transport, spoken) = match opened.map_err(AttemptError::connection)? {
            Opened::Http1(conn) => (Transport::Http1(conn), &self.counters.connections_http11),
            Opened::Http2(stream) => (Transport::Http2(stream), &self.counters.connections_http2),
            Opened::Shared(stream) => return Ok(Transport::Http2(stream)),
        };
        self.counters.connections.one();
        spoken.one();
        if matches!(&transport, Transport::Http1(conn) if conn.is_direct()) {
            self.counters.connections_direct.one();
        }
        Ok(transport)
    }

    /// Sends a request and reads the head of its answer; whether that came early. Where the
    /// endpoint was away and is back, what still hangs is given up.
    async fn exchange(
        &self,
        transport: &mut Transport,
        request: &Request<'_>,
        ahead_space: &mut [u8],
    ) -> Result<(ResponseHead, bool), AttemptError> {
        tokio::select! {
            biased;
            answer = self.stream(transport, request, ahead_space) => answer,
            () = self.recovered.notified() => {
                let what = "the request hung while the endpoint was away";
                Err(AttemptError { error: Error::new(ErrorKind::Io, what), retry: RetryAction::StaleConnection, endpoint_fault: false })
            }
        }
    }

    async fn stream(
        &self,
        transport: &mut Transport,
        request: &Request<'_>,
        ahead_space: &mut [u8],
    ) -> Result<(ResponseHead, bool), AttemptError> {
        // For each step apart: an upload may take long as long as it moves.
        let stall = self.config.stall_max;
        let early = match transport.send(request.body, stall).await {
            Ok(sent) => sent == Sent::Early,
            Err(error) => return Err(lost(transport, error)),
        };
        if let Transport::Http2(stream) = transport {
            self.counters.copied_http2_bytes.add(std::mem::take(&mut stream.copied));
        }
        if early {
            self.counters.early_answers.one();
        }
        match transport.head(request.method == "HEAD", stall, ahead_space).await {
            Ok(head) => Ok((head, early)),
            Err(error) => Err(lost(transport, error)),
        }
    }

    /// Learns what every response reveals, whatever its status: clock, request ids, throttling,
    /// health.
    fn learn(&self, kind: RequestKind, head: &ResponseHead, sent_at: Instant) {
        if self.clock.is_due() && self.clock.learn(head.header("date"), false) {
            self.counters.clock_corrections.one();
        }
        let now = Instant::now();
        // The note is renewed only now and then, or every response would write to memory that all
        // threads share.
        if !self.request_ids_seen.is_within(now, REQUEST_IDS_FOR / 6)
            && head.header("x-amz-request-id").is_some()
        {
            self.request_ids_seen.note(now);
        }
        if head.is_success() && self.bucket_missing.load(Ordering::Relaxed) {
            self.bucket_missing.store(false, Ordering::Relaxed);
        }
        match head.status {
            429 | 503 => {
                self.counters.throttled.one();
                self.limits.kind(kind).overloaded(now, &self.counters);
            }
            // Neither a success nor an overload. The limit stays, and the breaker decides by
            // `failed`.
            500.. => {}
            _ => {
                self.limits.kind(kind).succeeded(now, now.duration_since(sent_at), &self.counters);
            }
        }
        // Any other status shows that the endpoint works, also a refusal. If it was away before,
        // the requests that still wait on old connections are woken and sent again.
        if !matches!(head.status, 500 | 502 | 504)
            && self.breakers.kind(kind).succeeded(now, &self.counters)
        {
            self.recovered.notify_waiters();
        }
    }
}

/// A success without the object's etag and date comes from a proxy before the store, so the store
/// was not reached.
fn not_the_stores(head: &ResponseHead) -> AttemptError {
    let what = "an answer without an object's etag and last-modified, which every S3 store gives: check the endpoint and any proxy before the store";
    let error =
        Error::new(ErrorKind::Io, what).with_answer(head.status, None, None).retryable(true);
    AttemptError { error, retry: RetryAction::Backoff(None), endpoint_fault: true }
}

impl PendingResponse {
    /// Reads a small body, and judges the answer.
    pub async fn collect(
        self,
        inner: &Inner,
        bytes_max: usize,
    ) -> Result<CollectedResponse, AttemptError> {
        if !self.head.is_success() {
            return Err(self.refusal(inner).await);
        }
        let PendingResponse { head, mut transport, .. } = self;
        let mut body = Vec::new();
        let read = transport
            .body(head.framing, BodySink::Text(&mut body, bytes_max), inner.config.stall_max)
            .await;
        if let Transport::Http1(conn) = &mut transport {
            conn.forget();
        }
        read.map_err(|e| broke(&transport, e))?;
        inner.pool.put(transport);
        Ok(CollectedResponse { head, body })
    }

    /// Reads the body into the caller's memory. What the head says must have been checked.
    pub async fn read_into(
        self,
        inner: &Inner,
        buffer: &mut BodyBuffer<'_>,
    ) -> Result<ResponseHead, AttemptError> {
        let PendingResponse { head, mut transport, .. } = self;
        // The buffer may hold bytes of an earlier attempt. Only those of this response count as
        // received.
        // Counted also when the body breaks off, since those bytes came over the network.
        let before = buffer.filled();
        let read =
            transport.body(head.framing, BodySink::Buffer(buffer), inner.config.stall_max).await;
        inner.counters.bytes_in.add((buffer.filled() - before) as u64);
        match &mut transport {
            Transport::Http1(conn) => {
                inner.counters.copied_head_bytes.add(conn.copied);
                inner.counters.copied_tls_bytes.add(conn.take_copied_tls());
            }
            Transport::Http2(stream) => inner.counters.copied_http2_bytes.add(stream.copied),
        }
        read.map_err(|e| broke(&transport, e))?;
        inner.pool.put(transport);
        Ok(head)
    }

    /// Why the store refused.
    pub async fn refusal(self, inner: &Inner) -> AttemptError {
        let PendingResponse {
            head,
            mut transport,
            destination,
            credentials,
            signer,
            unsigned,
            may_be_silent,
            ..
        } = self;
        let mut body = Vec::new();
        // The status is known; the body only adds the code.
        let patience = inner.config.stall_max.min(ERROR_BODY_WAIT);
        // A refusal that breaks off is still a refusal.
        if transport
            .body(head.framing, BodySink::Text(&mut body, ERROR_BODY_BYTES_MAX), patience)
            .await
            .is_ok()
            && head.framing != BodyFraming::UntilClose
        {
            inner.pool.put(transport);
        }
        let document_error = ErrorDocument::of(&body);
        if document_error.code.as_deref() == Some("NoSuchBucket") {
            inner.bucket_missing.store(true, Ordering::Relaxed);
        }
        let header = |name| head.header(name).map(str::to_owned);
        let request_id = header("x-amz-request-id");
        let now = Instant::now();
        // A store that never sends ids may answer 404 with an empty body. If ids were seen lately,
        // such an answer is not the store's, and no proof that the object is missing.
        let silent = body.is_empty()
            && may_be_silent
            && !inner.request_ids_seen.is_within(now, REQUEST_IDS_FOR);
        let foreign = document_error.code.is_none() && request_id.is_none() && !silent;
        let region = named_region(&head, &document_error, &destination.endpoint);
        let failure = classify(StoreRefusal {
            status: head.status,
            code: document_error.code,
            region,
            signed_for: destination.endpoint.region(),
            retry_after: head.header("retry-after").and_then(|value| value.parse().ok()),
            request_id: request_id.or(document_error.request_id),
            foreign,
            unsigned: unsigned && !inner.signing_did_not_help.is_within(now, NO_RESIGN_FOR),
        });
        // Credentials are dropped before the retry, or the retry would use the same ones.
        if failure.error.code() == Some("SignatureDoesNotMatch") {
            inner.note_refused(&credentials, signer, &failure.error);
        } else if failure.retry == RetryAction::RenewCredentials {
            inner.forget(&credentials, signer, &failure.error);
        } else if failure.retry == RetryAction::CorrectClock
            && inner.clock.learn(head.header("date"), true)
        {
            inner.counters.clock_corrections.one();
        }
        inner.or_elsewhere(failure, &destination)
    }
}

/// Whether an answer without the store's name may be its own. A wrong miss costs one load, but an object
/// that wrongly counts as deleted is never counted again.
fn may_be_silent(request: &Request<'_>, destination: &Destination) -> bool {
    request.method != "DELETE" && !destination.endpoint.provider().names_answers()
}

fn log(
    &Request { method, key, query, .. }: &Request<'_>,
    sent_at: Instant,
    answer: &Result<(ResponseHead, bool), AttemptError>,
) {
    let status = answer.as_ref().map(|(head, _)| head.status);
    let logged = LoggedRequest { method, key, query, sent_at };
    logged.log(status.map_err(|failure| &failure.error));
}

/// A connection that broke before its answer: if it had served before and said nothing now, the
/// store had closed it while it was idle, which is no fault of the endpoint.
fn lost(transport: &Transport, error: Error) -> AttemptError {
    let end = if let Transport::Http2(stream) = transport {
        stream.end
    } else {
        Some(StreamEnd::Broken { first: true })
    };
    let idle = transport.is_reused() && !transport.has_received() && error.kind() == ErrorKind::Io;
    match end {
        Some(StreamEnd::Unprocessed) => {
            AttemptError { error, retry: RetryAction::Unprocessed, endpoint_fault: false }
        }
        Some(StreamEnd::Broken { .. }) if idle => {
            AttemptError { error, retry: RetryAction::StaleConnection, endpoint_fault: false }
        }
        _ => broke(transport, error),
    }
}

/// Of many requests on one connection that broke only the first counts as a failure of the store.
fn broke(transport: &Transport, error: Error) -> AttemptError {
    let failure = AttemptError::connection(error);
    match transport {
        Transport::Http2(stream) if stream.end == Some(StreamEnd::Broken { first: false }) => {
            AttemptError { endpoint_fault: false, ..failure }
        }
        _ => failure,
    }
}

fn no_permit() -> AttemptError {
    AttemptError::fatal(Error::new(ErrorKind::Throttled, "too many requests in flight"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Client;
    use crate::config::Config;
    use crate::endpoint::BucketAddress;

    #[tokio::test(start_paused = true)]
    async fn the_check_of_a_region_leaves_the_probe_of_a_breaker_to_operations() {
        let address = BucketAddress::new("http://127.0.0.1:1").bucket("b").region("r");
        let credentials = Credentials::new("A", "s");
        let inner = Client::new(Config::new(address.resolve().unwrap(), credentials)).inner;
        let check = Request { to_configured: true, ..Request::new("HEAD", None) };
        let breaker = inner.breakers.kind(check.kind());
        while breaker.outage(Instant::now()).is_none() {
            let away = Error::new(ErrorKind::Io, "it is away");
            let now = Instant::now();
            breaker.failed(now, now, &away, &inner.counters);
        }
        assert!(inner.admit(&check, QueueMode::Wait).await.is_ok(), "it asks another endpoint");
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(inner.admit(&check, QueueMode::Wait).await.is_ok());
        let admission = breaker.admit(Instant::now(), &inner.counters).unwrap();
        assert_eq!(admission, Admission::Probe);
    }
}
