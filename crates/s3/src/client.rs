//! The client, and the state that all its operations share.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::checksum::Checksum;
use crate::config::Config;
use crate::counters::{Counters, Counts};
use crate::creds::cache::{BASE_PAUSE_MAX, CredentialCache, SESSION_PAUSE_MAX};
use crate::endpoint::Endpoint;
use crate::error::{Error, ErrorKind, Result};
use crate::features::{FeatureSupport, LastSeen};
use crate::http::{ConnectionPool, Dialer};
use crate::local_clock::Instant;
use crate::op_state::{OP_STATE, OpState};
use crate::ops::{LastProbe, Listings};
use crate::region::{Destination, Destinations};
use crate::request::Request;
use crate::retry::{Breakers, ConcurrencyLimits, RequestKind, RetryBudget};
use crate::store_clock::StoreClock;

/// A client of one bucket. Clones share everything but the deadline.
///
/// Every operation is a future on the caller's tokio runtime (with I/O and time enabled). Dropping
/// one closes its connection (with HTTP/2: resets its stream). Only the renewal of credentials, the
/// abort of multipart uploads and HTTP/2 connections run in the background.
#[derive(Clone, Debug)]
pub struct Client {
    pub(crate) inner: Arc<Inner>,
    deadline: Deadline,
}

#[derive(Clone, Copy, Debug)]
enum Deadline {
    After(Duration),
    At(Instant),
}

/// How many requests may be in flight now. Those count that were sent before the limit of their kind was
/// cut. For each that hangs and was abandoned, another one may be.
#[derive(Clone, Copy, Default, Debug)]
#[non_exhaustive]
pub struct InFlightMax {
    /// GETs and HEADs.
    pub reads: usize,
    /// PUTs and parts of uploads.
    pub writes: usize,
    /// Deletes.
    pub deletes: usize,
    /// Of all kinds: [`Client::requests_max`], and at most 16 of each kind that hang.
    pub total: usize,
}

/// The limit that keeps a request waiting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FullLimit {
    /// That of GETs and HEADs.
    Reads,
    /// That of PUTs and parts of uploads.
    Writes,
    /// That of deletes.
    Deletes,
    /// That of all kinds together.
    Total,
}

/// What clones share.
pub(crate) struct Inner {
    pub config: Config,
    pub destinations: Destinations,
    pub pool: ConnectionPool,
    pub limits: ConcurrencyLimits,
    pub breakers: Breakers,
    pub budget: RetryBudget,
    pub clock: StoreClock,
    pub counters: Counters,
    pub base: CredentialCache,
    pub session: CredentialCache,
    /// Whether the store takes bodies whose hash is not signed.
    pub unsigned_bodies: FeatureSupport,
    /// When an upload was last refused although its hash was signed.
    pub signing_did_not_help: LastSeen,
    /// When a response last had a request id of the store.
    pub request_ids_seen: LastSeen,
    /// Whether the store has the request that deletes many objects.
    pub bulk_delete: FeatureSupport,
    pub gets: AtomicU64,
    pub ranges: FeatureSupport,
    /// When a refused HEAD was last looked into.
    pub head_probe: LastProbe,
    /// The listings in progress.
    pub listings: Listings,
    /// The last response was that the bucket does not exist.
    pub bucket_missing: AtomicBool,
    /// Wakes requests that hang after the endpoint has recovered, so that they are sent again.
    pub recovered: Notify,
}

/// Without the connections, whose buffers hold tokens.
impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { config, clock, .. } = self;
        let endpoint = self.destination().endpoint.to_string();
        let idle = self.pool.idle_len();
        let mut shown = f.debug_struct("Inner");
        shown
            .field("endpoint", &endpoint)
            .field("config", config)
            .field("clock", clock)
            .field("connections_idle", &idle);
        shown.field("counts", &self.counters.read()).finish_non_exhaustive()
    }
}

impl Client {
    /// A client. It sends nothing yet.
    pub fn new(mut config: Config) -> Self {
        let resolver =
            std::mem::replace(&mut config.resolver, Box::new(crate::http::SystemResolver));
        let dialer = Dialer::new(
            resolver,
            config.root_certs.clone(),
            config.connect_max,
            config.http2,
            config.is_direct(),
        );
        #[cfg(feature = "simulate")]
        let dialer = dialer.on_machine(config.machine.clone());
        let deadline = Deadline::After(config.deadline);
        let inner = Inner {
            destinations: Destinations::new(config.endpoint.clone()),
            pool: ConnectionPool::new(dialer, config.idle_max),
            limits: ConcurrencyLimits::new(config.requests_max),
            breakers: Breakers::new(),
            budget: RetryBudget::new(),
            clock: StoreClock::seen_from(config.wall_clock()),
            counters: Counters::default(),
            base: CredentialCache::new(BASE_PAUSE_MAX),
            session: CredentialCache::new(SESSION_PAUSE_MAX),
            unsigned_bodies: FeatureSupport::unsigned_bodies(),
            signing_did_not_help: LastSeen::never(),
            request_ids_seen: LastSeen::never(),
            bulk_delete: FeatureSupport::bulk_delete(),
            gets: AtomicU64::new(0),
            ranges: FeatureSupport::ranges(),
            head_probe: LastProbe::default(),
            listings: Listings::default(),
            bucket_missing: AtomicBool::new(false),
            recovered: Notify::new(),
            config,
        };
        Client { inner: Arc::new(inner), deadline }
    }

    /// The same client with another time limit for each operation.
    ///
    /// ```
    /// # fn example(client: &kvtier_s3::Client) {
    /// use std::time::Duration;
    ///
    /// // A prefetch may take longer; both share connections and limits.
    /// let patient = client.within(Duration::from_secs(60));
    /// # let _ = patient;
    /// # }
    /// ```
    pub fn within(&self, time: Duration) -> Self {
        Client { inner: Arc::clone(&self.inner), deadline: Deadline::After(time) }
    }

    /// The same client, whose operations end at this instant.
    pub fn until(&self, instant: impl Into<Instant>) -> Self {
        Client { inner: Arc::clone(&self.inner), deadline: Deadline::At(instant.into()) }
    }

    /// The same client with a deadline that starts now, for several requests that are one
    /// operation to the caller.
    pub(crate) fn with_fixed_deadline(&self) -> Self {
        let deadline = match self.deadline {
            Deadline::After(time) => {
                Instant::now().checked_add(time).map_or(Deadline::After(time), Deadline::At)
            }
            at @ Deadline::At(_) => at,
        };
        Client { inner: Arc::clone(&self.inner), deadline }
    }

    /// The counters since the client was created.
    pub fn counts(&self) -> Counts {
        self.inner.counters.read()
    }

    /// The checksum that PUTs carry.
    pub fn checksum(&self) -> Checksum {
        self.inner.config.checksum
    }

    /// The endpoint: as it is configured, or in the region that the store named.
    pub fn endpoint(&self) -> Endpoint {
        self.inner.destination().endpoint.clone()
    }

    /// How far the store's clock is ahead of ours, in seconds, by its last answer.
    pub fn clock_offset(&self) -> i64 {
        self.inner.clock.offset()
    }

    /// Milliseconds since 1970 by the local clock.
    pub fn local_ms(&self) -> u64 {
        self.inner.clock.local_ms()
    }

    /// The simulated machine on which the client runs.
    #[cfg(feature = "simulate")]
    pub fn machine(&self) -> Option<&Arc<dyn crate::simulated_machine::SimulatedMachine>> {
        self.inner.config.machine.as_ref()
    }

    /// The most requests in flight, of all kinds together.
    pub fn requests_max(&self) -> usize {
        self.inner.config.requests_max.max(1)
    }

    /// How many GETs and HEADs may be in flight now. Writes, deletes and listings have a pace of
    /// their own, which this does not follow.
    pub fn requests_limit(&self) -> usize {
        self.inner.limits.kind(RequestKind::Read).current()
    }

    /// How many PUTs and parts of uploads may be in flight now.
    pub fn writes_limit(&self) -> usize {
        self.inner.limits.kind(RequestKind::Write).current()
    }

    /// How many deletes may be in flight now.
    pub fn deletes_limit(&self) -> usize {
        self.inner.limits.kind(RequestKind::Delete).current()
    }

    /// How many requests may be in flight now. It takes no lock: callers with queues of their own ask
    /// before each request.
    pub fn in_flight_max(&self) -> InFlightMax {
        let limits = &self.inner.limits;
        InFlightMax {
            reads: limits.kind(RequestKind::Read).in_flight_max(),
            writes: limits.kind(RequestKind::Write).in_flight_max(),
            deletes: limits.kind(RequestKind::Delete).in_flight_max(),
            total: self.requests_max() + limits.abandoned(),
        }
    }

    /// Lets a request that hangs give up its place, if the store has answered none for a second, or
    /// all places are taken by such requests, as requests do that wait in the client. For callers that
    /// keep requests waiting before they get here: call it about once a second while one waits, with
    /// the limit that it waits for.
    pub fn abandon_hung_request(&self, full: FullLimit) {
        let limits = &self.inner.limits;
        match full {
            FullLimit::Reads => limits.abandon_hung_of(RequestKind::Read),
            FullLimit::Writes => limits.abandon_hung_of(RequestKind::Write),
            FullLimit::Deletes => limits.abandon_hung_of(RequestKind::Delete),
            FullLimit::Total => limits.abandon_hung_of_any(),
        }
    }

    /// Whether the store said last that there is no such bucket. One answer of the bucket ends
    /// that.
    pub fn is_bucket_missing(&self) -> bool {
        self.inner.bucket_missing.load(Ordering::Relaxed)
    }

    /// Whether the store ignored the ranges of several objects in a row within the last minute:
    /// then [`Client::get_parallel`] asks for whole objects.
    pub fn ignores_ranges(&self) -> bool {
        self.inner.ranges.is_unsupported(Instant::now())
    }

    /// How many connections are idle.
    pub fn connections_idle(&self) -> usize {
        self.inner.pool.idle_len()
    }

    /// Runs an operation until its deadline. The caller pins a large future, so that it is not
    /// copied here.
    pub(crate) async fn run<T>(
        &self,
        kind: RequestKind,
        op: &'static str,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let start = Instant::now();
        let end = match self.deadline {
            Deadline::After(time) => start.checked_add(time),
            Deadline::At(instant) => Some(instant),
        };
        // The context outlives the future, so that a deadline can still report the last failure.
        let mut work = std::pin::pin!(OP_STATE.scope(RefCell::new(OpState::starting(start)), work));
        let result = match end {
            // An operation without time left is not started.
            Some(end) if end <= start => {
                self.inner.counters.deadlines.one();
                return Err(late(op, start));
            }
            Some(end) => tokio::time::timeout_at(end, work.as_mut()).await,
            None => Ok(work.as_mut().await),
        };
        if let Ok(Ok(done)) = result {
            return Ok(done);
        }
        let context = work.take_value().map(RefCell::into_inner).unwrap_or_default();
        let attempts = context.attempts;
        let error = match result {
            Ok(Err(error)) => error,
            _ => self.out_of_time(kind, start, context),
        };
        Err(error.with_op(op).with_attempts(attempts, start.elapsed()))
    }

    fn out_of_time(&self, kind: RequestKind, start: Instant, context: OpState) -> Error {
        let Inner { counters, breakers, pool, .. } = &*self.inner;
        let breaker = breakers.kind(kind);
        counters.deadlines.one();
        let error = Error::new(ErrorKind::Timeout, LATE);
        let others = breaker.failure_since(start);
        let caused =
            |cause: Option<Error>| cause.into_iter().fold(error.clone(), Error::with_source);
        // The breaker counts a timeout only if the operation waited for a response, and longer than
        // a healthy endpoint needs.
        let waited = context.sent_at.map_or(Duration::ZERO, |sent_at| sent_at.elapsed());
        // Another operation's success in that time shows that the store answers, and this one was
        // merely slow.
        if breaker.is_silent_since(start) && waited >= self.inner.limits.kind(kind).silence_min() {
            pool.invalidate_dns(true);
            self.inner.destinations.leave_unproven();
            let now = Instant::now();
            let sent_at = context.sent_at.unwrap_or(now);
            breaker.failed(now, sent_at, &caused(context.last.clone()), counters);
        }
        // The cause for an operation that only queued is the failure of the others.
        caused(context.last.or(others))
    }

    /// One sentence for each open breaker, with the last failure as the cause. Empty while the
    /// endpoint is healthy, and where requests of a kind have not been tried again for half a minute.
    pub fn outages(&self) -> Vec<String> {
        let now = Instant::now();
        RequestKind::ALL
            .into_iter()
            .filter_map(|kind| self.inner.breakers.kind(kind).outage(now))
            .collect()
    }
}

const LATE: &str = "the deadline passed";

/// The error of an operation whose deadline had passed before it began.
fn late(op: &'static str, start: Instant) -> Error {
    Error::new(ErrorKind::Timeout, LATE).with_op(op).with_attempts(0, start.elapsed())
}

impl Inner {
    pub fn destination(&self) -> Arc<Destination> {
        self.destinations.current()
    }

    /// Where a request goes.
    pub fn destination_for(&self, request: &Request<'_>) -> Arc<Destination> {
        if request.to_configured {
            return self.destinations.configured();
        }
        let destination = self.destination();
        if request.to_control {
            Arc::new(Destination::of(destination.endpoint.control()))
        } else {
            destination
        }
    }

    /// Moves to the region that the store named.
    ///
    /// # Errors
    /// `Invalid` when the region has no valid name or this endpoint serves one region only; `Io` or
    /// `Timeout` when its host does not resolve.
    pub async fn follow(&self, region: &str) -> Result<()> {
        let refusal = |what: String| Error::new(ErrorKind::Invalid, what);
        let destination = self.destinations.in_region(region).ok_or_else(|| {
            let at = self.config.endpoint.target();
            refusal(format!(
                "the store names the region {region:?}, which {at} does not lead to: name that region's endpoint"
            ))
        })?;
        // A host that does not exist is no region, whatever the answer said.
        if destination.target.host != self.config.endpoint.target().host {
            self.pool.resolve(&destination.target).await?;
        }
        if self.destinations.move_to(destination, Instant::now()) {
            self.counters.region_moves.one();
        }
        Ok(())
    }

    /// Whether bulk bodies are hashed.
    pub fn signs_bodies(&self) -> bool {
        self.config.sign_bodies || self.unsigned_bodies.is_unsupported(Instant::now())
    }
}
