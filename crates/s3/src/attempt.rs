//! One attempt at a request: a turn, an identity, a connection, an answer.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::client::Inner;
use crate::creds::Credentials;
use crate::effort;
use crate::error::{Error, ErrorKind};
use crate::http::{BodyBuffer, BodyFraming, End, Opened, ResponseHead, Sent, Sink, Way};
use crate::request::{Payload, Request, Signer, Signing};
use crate::retry::{Admission, Again, Class, Permit, Refusal, Trouble, classify};
use crate::sites::Site;
use crate::time::{Instant, Stamp};
use crate::xml::Complaint;

/// An error's body is read no further than this.
const COMPLAINT_BYTES_MAX: usize = 64 * 1024;
/// And waited for no longer than this.
const COMPLAINT_WAIT: Duration = Duration::from_secs(2);

/// A store that gave its answers ids within this time gives them: an answer without one is not the
/// store's.
const NAMED_FOR: Duration = Duration::from_secs(60);
/// Where a signed hash did not help, uploads that are refused are not sent once more with it for
/// this long.
const IN_VAIN_FOR: Duration = Duration::from_secs(60);

/// Whether to wait until fewer requests are in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    Wait,
    IfFree,
}

/// An answer whose body is still to come.
#[derive(Debug)]
pub struct Open {
    pub head: ResponseHead,
    way: Way,
    site: Arc<Site>,
    who: Credentials,
    signer: Signer,
    unsigned: bool,
    /// Whether a 404 with neither code nor id can be the store's, where it gave no ids of late.
    may_be_silent: bool,
    _permit: Permit,
}

/// An answer with its small body. Not to be printed: that of a session is a secret.
pub struct Answer {
    pub head: ResponseHead,
    pub body: Vec<u8>,
}

impl Inner {
    /// Sends a request and reads the head of its answer. Dropping the future closes the connection.
    /// The body may begin in `room`: give that to one request at a time only.
    pub async fn open(
        self: &Arc<Self>,
        request: &Request<'_>,
        turn: Turn,
        room: &mut [u8],
    ) -> Result<Open, Trouble> {
        let class = request.class();
        let admission =
            self.breakers.of(class).admit(Instant::now(), &self.counters).map_err(Trouble::last)?;
        // Before the turn: a session is made by a request that takes a turn itself.
        let who = self.identity(request.signer).await.map_err(Trouble::last)?;
        let permit = match (admission, turn) {
            (Admission::Probe, _) => self.gates.bypass(class),
            (_, Turn::Wait) => self.gates.acquire(class).await,
            (_, Turn::IfFree) => self.gates.try_acquire(class).ok_or_else(no_turn)?,
        };
        effort::begun();
        self.ask_for_region();
        let site = self.site_for(request);
        let now = Instant::now();
        let (mut way, sent_at) = match self.pool.reuse(&site.target, now) {
            Some(way) => (way, now),
            // Apart, since it is large and rare.
            None => (Box::pin(self.connect(&site)).await?, Instant::now()),
        };
        let stamp = Stamp::of(self.clock.signing());
        let sign_body = self.signs_bodies() || effort::is_signed();
        let signing = Signing { site: &site.endpoint, who: &who, stamp: &stamp, sign_body };
        request.write(&mut way, &signing).map_err(Trouble::last)?;
        self.counters.sent(request);
        if way.is_reused() {
            self.counters.reused.one();
        }
        let unsigned = request.payload == Payload::Bulk && !sign_body;
        let answer = self.exchange(&mut way, request, room).await;
        log(request, sent_at, &answer);
        let answer = answer.map_err(|trouble| self.or_elsewhere(trouble, &site));
        let (head, early) = answer?;
        if request.reads_an_object() && head.is_success() && !head.is_of_an_object() {
            return Err(not_the_stores(&head));
        }
        self.learn(class, &head, sent_at);
        if head.is_success() {
            self.sites.prove(&site);
            who.note_worked();
            if unsigned {
                self.unsigned_bodies.note_supported();
            }
        }
        if early && head.is_success() {
            let what = "the store said yes before it had the whole body";
            return Err(Trouble::broken(Error::new(ErrorKind::Io, what)));
        }
        // A miss costs nothing, while what counts as deleted and stays is nowhere counted.
        let may_be_silent = request.method != "DELETE" && !site.endpoint.provider().names_answers();
        Ok(Open {
            head,
            way,
            site,
            who,
            signer: request.signer,
            unsigned,
            may_be_silent,
            _permit: permit,
        })
    }

    /// What failed at a region that the store named and that has proven nothing may be the region's
    /// fault: the configured endpoint is asked again, at once where an answer said no. What has
    /// a remedy of its own, such as credentials that have expired, gets that first: only
    /// where it did not help is it the region's fault.
    fn or_elsewhere(&self, trouble: Trouble, site: &Arc<Site>) -> Trouble {
        match trouble.error.status() {
            None | Some(500 | 502 | 504) => {
                self.sites.fail(site);
                trouble
            }
            Some(300..=399 | 400 | 401 | 403) => match trouble.again {
                Again::No if self.sites.fail(site) => {
                    Trouble { again: Again::Elsewhere, ..trouble }
                }
                Again::Identity | Again::Clock
                    if effort::is_remedied(&trouble.again) && self.sites.fail(site) =>
                {
                    Trouble { again: Again::Elsewhere, ..trouble }
                }
                Again::Backoff(_) => {
                    self.sites.fail(site);
                    trouble
                }
                // Bodies are signed from then on, and what is refused all the same has no remedy.
                _ => trouble,
            },
            _ if trouble.error.code() == Some("NoSuchBucket") && self.sites.fail(site) => {
                Trouble { again: Again::Elsewhere, ..trouble }
            }
            _ => trouble,
        }
    }

    async fn connect(&self, site: &Arc<Site>) -> Result<Way, Trouble> {
        let opened = self.pool.open(&site.target).await.inspect_err(|_| {
            self.sites.lose(site);
        });
        let (way, spoken) = match opened.map_err(Trouble::broken)? {
            Opened::One(conn) => (Way::One(conn), &self.counters.connections_http11),
            Opened::Two(talk) => (Way::Two(talk), &self.counters.connections_http2),
            Opened::Shared(talk) => return Ok(Way::Two(talk)),
        };
        self.counters.connections.one();
        spoken.one();
        if matches!(&way, Way::One(conn) if conn.is_direct()) {
            self.counters.connections_direct.one();
        }
        Ok(way)
    }

    /// Sends a request and reads the head of its answer; whether that came early. Where the
    /// endpoint was away and is back, what still hangs is given up.
    async fn exchange(
        &self,
        way: &mut Way,
        request: &Request<'_>,
        room: &mut [u8],
    ) -> Result<(ResponseHead, bool), Trouble> {
        tokio::select! {
            biased;
            answer = self.talk(way, request, room) => answer,
            () = self.recovered.notified() => {
                let what = "the request hung while the endpoint was away";
                Err(Trouble { error: Error::new(ErrorKind::Io, what), again: Again::Stale, sick: false })
            }
        }
    }

    async fn talk(
        &self,
        way: &mut Way,
        request: &Request<'_>,
        room: &mut [u8],
    ) -> Result<(ResponseHead, bool), Trouble> {
        let stall = self.config.stall_max;
        let early = match way.send(request.body, stall).await {
            Ok(sent) => sent == Sent::Early,
            Err(error) => return Err(lost(way, error)),
        };
        if let Way::Two(talk) = way {
            self.counters.copied_http2_bytes.add(std::mem::take(&mut talk.copied));
        }
        if early {
            self.counters.early_answers.one();
        }
        match way.head(request.method == "HEAD", stall, room).await {
            Ok(head) => Ok((head, early)),
            Err(error) => Err(lost(way, error)),
        }
    }

    /// What every answer tells, whatever it says.
    fn learn(&self, class: Class, head: &ResponseHead, sent_at: Instant) {
        if self.clock.is_due() && self.clock.learn(head.header("date"), false) {
            self.counters.clock_corrections.one();
        }
        let now = Instant::now();
        if !self.named.is_within(now, NAMED_FOR / 6) && head.header("x-amz-request-id").is_some() {
            self.named.note(now);
        }
        if head.is_success() && self.bucket_missing.load(Ordering::Relaxed) {
            self.bucket_missing.store(false, Ordering::Relaxed);
        }
        match head.status {
            429 | 503 => {
                self.counters.throttled.one();
                self.gates.of(class).overloaded(now, &self.counters);
            }
            500.. => {}
            _ => {
                self.gates.of(class).succeeded(now, now.duration_since(sent_at), &self.counters);
            }
        }
        if !matches!(head.status, 500 | 502 | 504)
            && self.breakers.of(class).succeeded(now, &self.counters)
        {
            self.recovered.notify_waiters();
        }
    }
}

/// A success that tells neither the object's version nor its date comes from something before the
/// store: it says nothing of the object, and the store was not reached.
fn not_the_stores(head: &ResponseHead) -> Trouble {
    let what = "an answer without an object's etag and last-modified, which every S3 store gives: check the endpoint, and what lies before the store";
    let error =
        Error::new(ErrorKind::Io, what).with_answer(head.status, None, None).retryable(true);
    Trouble { error, again: Again::Backoff(None), sick: true }
}

impl Open {
    /// Reads a small body, and judges the answer.
    pub async fn collect(self, inner: &Inner, bytes_max: usize) -> Result<Answer, Trouble> {
        if !self.head.is_success() {
            return Err(self.refusal(inner).await);
        }
        let Open { head, mut way, .. } = self;
        let mut body = Vec::new();
        let read =
            way.body(head.framing, Sink::Text(&mut body, bytes_max), inner.config.stall_max).await;
        if let Way::One(conn) = &mut way {
            conn.forget();
        }
        read.map_err(|e| broke(&way, e))?;
        inner.pool.put(way);
        Ok(Answer { head, body })
    }

    /// Reads the body into the caller's memory. What the head says must have been checked.
    pub async fn land(
        self,
        inner: &Inner,
        landing: &mut BodyBuffer<'_>,
    ) -> Result<ResponseHead, Trouble> {
        let Open { head, mut way, .. } = self;
        let before = landing.filled();
        let read = way.body(head.framing, Sink::Land(landing), inner.config.stall_max).await;
        inner.counters.bytes_in.add((landing.filled() - before) as u64);
        match &mut way {
            Way::One(conn) => {
                inner.counters.copied_head_bytes.add(conn.copied);
                inner.counters.copied_tls_bytes.add(conn.take_copied_tls());
            }
            Way::Two(talk) => inner.counters.copied_http2_bytes.add(talk.copied),
        }
        read.map_err(|e| broke(&way, e))?;
        inner.pool.put(way);
        Ok(head)
    }

    /// Why the store refused.
    pub async fn refusal(self, inner: &Inner) -> Trouble {
        let Open { head, mut way, site, who, signer, unsigned, may_be_silent, .. } = self;
        let mut body = Vec::new();
        let patience = inner.config.stall_max.min(COMPLAINT_WAIT);
        // A refusal that breaks off is still a refusal.
        if way
            .body(head.framing, Sink::Text(&mut body, COMPLAINT_BYTES_MAX), patience)
            .await
            .is_ok()
            && head.framing != BodyFraming::UntilClose
        {
            inner.pool.put(way);
        }
        let complaint = Complaint::of(&body);
        if complaint.code.as_deref() == Some("NoSuchBucket") {
            inner.bucket_missing.store(true, Ordering::Relaxed);
        }
        let header = |name| head.header(name).map(str::to_owned);
        let request_id = header("x-amz-request-id");
        let now = Instant::now();
        let silent = body.is_empty() && may_be_silent && !inner.named.is_within(now, NAMED_FOR);
        let foreign = complaint.code.is_none() && request_id.is_none() && !silent;
        // Where we are sent is followed only as far as it names a region of the same service.
        let elsewhere =
            || site.endpoint.region_at(complaint.endpoint.as_deref().or(head.header("location"))?);
        let trouble = classify(Refusal {
            status: head.status,
            code: complaint.code,
            region: header("x-amz-bucket-region").or(complaint.region).or_else(elsewhere),
            signed_for: site.endpoint.region(),
            retry_after: head.header("retry-after").and_then(|value| value.parse().ok()),
            request_id: request_id.or(complaint.request_id),
            foreign,
            unsigned: unsigned && !inner.signed_in_vain.is_within(now, IN_VAIN_FOR),
        });
        if trouble.again == Again::Identity {
            inner.forget(&who, signer);
        } else if trouble.again == Again::Clock && inner.clock.learn(head.header("date"), true) {
            inner.counters.clock_corrections.one();
        }
        inner.or_elsewhere(trouble, &site)
    }
}

/// Logs an attempt at level `debug`: what was asked, what the store answered and when. Cache salts,
/// which the names of objects in LMCache's layouts hold, are secret: names end where a salt begins,
/// and of the query only the names are shown, since prefixes and markers of listings are names of
/// objects too.
fn log(request: &Request<'_>, sent_at: Instant, answer: &Result<(ResponseHead, bool), Trouble>) {
    if !tracing::enabled!(tracing::Level::DEBUG) {
        return;
    }
    let key = without_salt(request.key.unwrap_or_default());
    let (method, key) = (request.method, &*key);
    let query: Vec<&str> = request.query.iter().map(|(name, _)| *name).collect();
    let ms = sent_at.elapsed().as_secs_f64() * 1e3;
    match answer {
        Ok((head, _)) => tracing::debug!(method, key, ?query, status = head.status, ms, "request"),
        Err(trouble) => {
            tracing::debug!(method, key, ?query, ms, error = %trouble.error, "request failed")
        }
    }
}

/// The name of an object, `***` for what follows its fourth `@`: in LMCache's layouts a cache salt
/// is there.
fn without_salt(key: &str) -> std::borrow::Cow<'_, str> {
    match key.match_indices('@').nth(3) {
        Some((at, _)) => format!("{}@***", &key[..at]).into(),
        None => key.into(),
    }
}

/// A connection that broke before its answer: if it had served before and said nothing now, the
/// store had closed it while it was idle, which is nobody's fault.
fn lost(way: &Way, error: Error) -> Trouble {
    let end = if let Way::Two(talk) = way { talk.end } else { Some(End::Broken { first: true }) };
    let idle = way.is_reused() && !way.has_heard() && error.kind() == ErrorKind::Io;
    match end {
        Some(End::Unprocessed) => Trouble { error, again: Again::Unprocessed, sick: false },
        Some(End::Broken { .. }) if idle => Trouble { error, again: Again::Stale, sick: false },
        _ => broke(way, error),
    }
}

/// Of many requests on one connection that broke only the first counts as a failure of the store.
fn broke(way: &Way, error: Error) -> Trouble {
    let trouble = Trouble::broken(error);
    match way {
        Way::Two(talk) if talk.end == Some(End::Broken { first: false }) => {
            Trouble { sick: false, ..trouble }
        }
        _ => trouble,
    }
}

fn no_turn() -> Trouble {
    Trouble::last(Error::new(ErrorKind::Throttled, "as many requests are in flight as may be"))
}
