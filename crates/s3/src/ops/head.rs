use std::pin::pin;
use std::sync::Arc;

use crate::attempt::{CollectedResponse, QueueMode};
use crate::checksum::Checksum;
use crate::client::{Client, Inner};
use crate::error::{Error, Result};
use crate::http::ResponseHead;
use crate::op_state;
use crate::request::Request;
use crate::retry::{RequestKind, RetryState};
use crate::time_formats::http_date;

use super::is_missing;
use super::why_head_refused::{HeadProbe, is_unexplained};

/// The metadata of an object, from the response to a GET or HEAD.
#[derive(Clone, Debug)]
pub struct Object {
    pub(super) head: ResponseHead,
    pub(super) len: u64,
    pub(super) total: u64,
}

impl Object {
    /// Bytes received; of a HEAD, those that a GET would receive.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the length is zero.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of the whole object.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Its version, as the store names it; not a hash of its bytes.
    pub fn etag(&self) -> Option<&str> {
        self.head.etag()
    }

    /// When it was written, in seconds since 1970 by the store's clock.
    pub fn modified(&self) -> Option<i64> {
        self.head.header("last-modified").and_then(http_date)
    }

    /// The metadata of that name, which is without `x-amz-meta-`.
    pub fn meta(&self, name: &str) -> Option<&str> {
        self.header(&format!("x-amz-meta-{name}"))
    }

    /// Any header of the answer.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.header(name)
    }
}

impl Client {
    /// The metadata of an object without its bytes; `None` when the object does not exist.
    ///
    /// # Errors
    /// `NotFound` when the bucket does not exist, if the store reports it; others as
    /// [`Client::get`].
    pub async fn head(&self, key: &str) -> Result<Option<Object>> {
        let mode = [("x-amz-checksum-mode", "ENABLED")];
        let headers = if self.inner.config.checksum == Checksum::None { &[][..] } else { &mode };
        let request = Request { headers, ..Request::new("HEAD", Some(key)) };
        let work = async {
            match self.inner.ask(&request, 0).await {
                // Boxed, since it is rare.
                Err(e) if is_unexplained(&e) => Box::pin(self.inner.head_again(&request, e)).await,
                answer => answer,
            }
        };
        match self.run(RequestKind::Read, "head", pin!(work)).await {
            Ok(answer) => {
                let len = answer.head.length.unwrap_or(0);
                Ok(Some(Object { head: answer.head, len, total: len }))
            }
            Err(e) if is_missing(&e) => Ok(None),
            Err(e) => Err(e),
        }
    }
}

impl Inner {
    /// Sends a HEAD once more, if a probe has found and removed the cause of its refusal.
    async fn head_again(
        self: &Arc<Self>,
        request: &Request<'_>,
        refusal: Error,
    ) -> Result<CollectedResponse> {
        let mut last = self.head_probe.lock().await;
        let known = last.as_ref().and_then(|probe| probe.repeats(op_state::op_began()));
        let helped = match known {
            Some(helped) => helped,
            None => {
                // Noted before it runs: the caller's deadline may drop this future at each await.
                *last = Some(HeadProbe::now(false));
                // An empty object has no first byte (416).
                let is_answer = |e: &Error| is_missing(e) || e.status() == Some(416);
                let cause = self.probe(request.key).await.err().filter(|e| !is_answer(e));
                *last = Some(HeadProbe::now(cause.is_none()));
                if let Some(cause) = cause {
                    return Err(refusal.with_source(cause));
                }
                true
            }
        };
        // The other HEADs that wait for this probe go on now.
        drop(last);
        if helped { self.ask(request, 0).await } else { Err(refusal) }
    }

    /// Requests the first byte of an object. The head of a success is all that counts: the response
    /// is dropped with its connection, since a store that ignores ranges sends the whole object.
    async fn probe(self: &Arc<Self>, key: Option<&str>) -> Result<()> {
        let request = Request { headers: &[("range", "bytes=0-0")], ..Request::new("GET", key) };
        let mut retries = RetryState::new(self, request.kind());
        loop {
            let failure = match self.open(&request, QueueMode::Wait, &mut []).await {
                Ok(open) if open.head.is_success() => return Ok(()),
                Ok(open) => open.refusal(self).await,
                Err(failure) => failure,
            };
            retries.on_failure(failure).await?;
        }
    }
}
