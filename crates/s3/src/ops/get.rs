use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use kvtier_mem::Lease;

use super::get_check::GetProgress;
use super::head::Object;
use super::is_missing;
use crate::attempt::QueueMode;
use crate::checksum::Checksum;
use crate::client::{Client, Inner};
use crate::error::{Error, ErrorKind, Result};
use crate::hedge::hedged;
use crate::http::BodyBuffer;
use crate::request::Request;
use crate::response_check;
use crate::retry::RetryState;
use crate::retry::{AttemptError, RequestKind, RetryAction};

/// The most bytes that are read together with the head: a whole small object. For larger objects it
/// saves nothing, and if the head has another length than expected, this much is copied.
const AHEAD_BYTES_MAX: usize = 64 * 1024;

/// Which bytes to get, and of which version.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Get {
    /// The bytes, or all of them.
    pub range: Option<Range<u64>>,
    /// Only this version. Any other is a `Conflict`.
    pub if_match: Option<String>,
    /// Whether the bytes must fill the memory. Otherwise they may be fewer, but not more.
    pub exact: bool,
}

impl Default for Get {
    fn default() -> Self {
        Get { range: None, if_match: None, exact: true }
    }
}

impl Get {
    /// All bytes, at most as many as there is memory.
    pub fn at_most() -> Self {
        Get { exact: false, ..Get::default() }
    }

    /// These bytes.
    pub fn range(range: Range<u64>) -> Self {
        Get { range: Some(range), ..Get::default() }
    }

    /// Of this version only.
    pub fn if_match(mut self, etag: impl Into<String>) -> Self {
        self.if_match = Some(etag.into());
        self
    }
}

impl Client {
    /// Gets an object into `lease`, from its start; `None` when the object does not exist. No byte
    /// is written outside the lease, whatever the store sends. After an error or a dropped future
    /// the lease counts as empty.
    ///
    /// ```
    /// # let server = kvtier_testkit::s3::Server::start(Default::default())?;
    /// # use kvtier_s3::{BucketAddress, Client, Config, Credentials};
    /// # let address = BucketAddress::new(server.url()).bucket("bucket").region("us-east-1");
    /// # let client = Client::new(Config::new(address.resolve()?, Credentials::new("AKIDTEST", "secret/test+key")));
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// use kvtier_mem::{Arena, ArenaConfig};
    /// use kvtier_s3::{Get, Put};
    ///
    /// client.put_bytes("chunk", b"key and value", &Put::default()).await?;
    /// let arena = Arena::new(ArenaConfig::heap(1 << 20))?;
    /// let mut lease = arena.lease(4096)?;
    ///
    /// // All of it, into longer memory.
    /// let object = client.get("chunk", &mut lease, &Get::at_most()).await?.expect("a hit");
    /// assert_eq!(lease.as_host().unwrap()[..object.len() as usize], b"key and value"[..]);
    ///
    /// // A part of it, of the same version.
    /// let part = Get::range(8..13).if_match(object.etag().unwrap());
    /// assert_eq!(client.get("chunk", &mut lease, &part).await?.unwrap().len(), 5);
    /// assert_eq!(lease.as_host().unwrap()[..5], b"value"[..]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// - `Corrupt`: the object does not fit (see [`Get::exact`]), or its checksum is wrong. Treat
    ///   it as a miss.
    /// - `Conflict`: the version is not that of [`Get::if_match`], or the object was replaced
    ///   during the read.
    /// - `Timeout`, `Io`, `Throttled`, `Unavailable`: the store did not deliver it in time. Retries
    ///   are over.
    /// - `Invalid`: the lease is device memory, or the range does not fit.
    pub async fn get(&self, key: &str, lease: &mut Lease, get: &Get) -> Result<Option<Object>> {
        // Until the read has succeeded the lease counts as empty, so bytes of a broken read are
        // never taken for data.
        lease.assume_filled(0);
        let mut buffer = slot(host(lease)?, get)?;
        let got = self
            .run(RequestKind::Read, "get", pin!(fetch(&self.inner, key, &mut buffer, get)))
            .await?;
        if let Some(object) = &got {
            lease.assume_filled(usize::try_from(object.len).unwrap_or(usize::MAX));
        }
        Ok(got)
    }

    /// Gets an object of at most the length of `buffer` into it, and reports it to the observer;
    /// `None` when the object does not exist.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn get_observed(
        &self,
        key: &str,
        buffer: &mut BodyBuffer<'_>,
    ) -> Result<Option<Object>> {
        self.run(RequestKind::Read, "get", pin!(fetch(&self.inner, key, buffer, &Get::at_most())))
            .await
    }
}

/// The bytes of a lease.
pub fn host(lease: &mut Lease) -> Result<&mut [u8]> {
    let refusal = || {
        Error::new(
            ErrorKind::Invalid,
            "a network cannot write into device memory: give host memory",
        )
    };
    lease.as_host_mut().ok_or_else(refusal)
}

/// The part of `memory` that a range fills; without one, all of it.
pub fn slot<'a>(memory: &'a mut [u8], get: &Get) -> Result<BodyBuffer<'a>> {
    let Some(range) = &get.range else { return Ok(BodyBuffer::new(memory)) };
    let len = usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(usize::MAX);
    let invalid = || Error::new(ErrorKind::Invalid, "the range is empty or longer than the memory");
    memory
        .get_mut(..len)
        .filter(|memory| !memory.is_empty())
        .map(BodyBuffer::new)
        .ok_or_else(invalid)
}

/// Gets into `buffer`, until the object is complete or the retries are over.
pub async fn fetch(
    inner: &Arc<Inner>,
    key: &str,
    buffer: &mut BodyBuffer<'_>,
    get: &Get,
) -> Result<Option<Object>> {
    let start = get.range.as_ref().map(|range| range.start);
    let mut progress = GetProgress {
        start,
        exact: get.exact,
        etag: get.if_match.clone(),
        total: None,
        sum: None,
        is_whole: false,
    };
    let mut retries = RetryState::new(inner, RequestKind::Read);
    // Hedges are limited to a share of these.
    inner.gets.fetch_add(1, Ordering::Relaxed);
    loop {
        if buffer.filled() > 0 {
            inner.counters.resumes.one();
        }
        match attempt(inner, key, &mut progress, buffer).await {
            Ok(object) => {
                retries.succeeded();
                return Ok(Some(object));
            }
            // Also when bytes have landed: the object was deleted during the read, which is a miss.
            Err(failure) if is_missing(&failure.error) => return Ok(None),
            Err(mut failure) => {
                if failure.error.is_ignored_range() {
                    inner.counters.ranges_ignored.one();
                    // The object can still be read from its start. This is learned for this object
                    // alone: others may come from another node.
                    if buffer.filled() > 0 && progress.start.unwrap_or(0) == 0 {
                        (failure.retry, progress.is_whole) = (RetryAction::WithoutRange, true);
                    }
                }
                // Starts over, of any version that the caller accepts; what has landed is written
                // over.
                if progress.is_whole || !resumable(&progress, buffer, &failure) {
                    buffer.restart(None);
                    progress = GetProgress {
                        etag: get.if_match.clone(),
                        total: None,
                        sum: None,
                        ..progress
                    };
                }
                retries.on_failure(failure).await?;
            }
        }
    }
}

/// Whether the next attempt may continue where this one ended: the received bytes are valid, and a
/// strong etag can prove that the rest is of the same object.
fn resumable(progress: &GetProgress, buffer: &BodyBuffer<'_>, failure: &AttemptError) -> bool {
    let strong = progress.etag.as_deref().is_some_and(|etag| !etag.starts_with("W/"));
    buffer.filled() > 0
        && strong
        && !matches!(failure.error.kind(), ErrorKind::Corrupt | ErrorKind::Conflict)
}

async fn attempt(
    inner: &Arc<Inner>,
    key: &str,
    progress: &mut GetProgress,
    buffer: &mut BodyBuffer<'_>,
) -> Result<Object, AttemptError> {
    let verify = inner.config.checksum != Checksum::None;
    let range = progress.range(buffer);
    let mut headers = [("", ""); 3];
    let wanted = [
        // Of a continuation this is the version of the bytes that have landed: another one is a
        // 412.
        progress.etag.as_deref().map(|etag| ("if-match", etag)),
        range.as_deref().map(|range| ("range", range)),
        verify.then_some(("x-amz-checksum-mode", "ENABLED")),
    ];
    let count =
        wanted.iter().flatten().zip(&mut headers).map(|(header, slot)| *slot = *header).count();
    let request = Request { headers: &headers[..count], ..Request::new("GET", Some(key)) };
    request.check().map_err(AttemptError::fatal)?;
    let pending = match inner.config.hedge {
        // No other request can hold the memory.
        None => inner.open(&request, QueueMode::Wait, buffer.next(AHEAD_BYTES_MAX)).await?,
        // Apart, since it is large.
        Some(hedge) => Box::pin(hedged(inner, &request, hedge)).await?,
    };
    if !pending.head.is_success() {
        return Err(pending.refusal(inner).await);
    }
    if !response_check::is_expected(request.method, pending.head.status) {
        return Err(response_check::foreign(response_check::unexpected(pending.head.status)));
    }
    // An observer that verifies the bytes itself spares the client a second checksum over them.
    let proven = buffer.filled() == 0 && buffer.begin(&pending.head);
    progress.check(&pending.head, buffer, verify && !proven).map_err(wrong_response)?;
    let head = pending.read_into(inner, buffer).await?;
    match progress.finish(buffer) {
        Ok(true) => inner.counters.checksums_verified.one(),
        Ok(false) => {}
        Err(error) => {
            inner.counters.checksum_failures.add(u64::from(error.is_retryable()));
            return Err(wrong_response(error));
        }
    }
    let len = buffer.filled() as u64;
    Ok(Object { head, len, total: progress.total.unwrap_or(len) })
}

/// A response that does not match the request. Another attempt may, and the endpoint is healthy.
fn wrong_response(error: Error) -> AttemptError {
    let retry = if error.is_retryable() { RetryAction::Backoff(None) } else { RetryAction::Never };
    AttemptError { error, retry, endpoint_fault: false }
}
