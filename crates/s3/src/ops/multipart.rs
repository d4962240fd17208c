use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kvtier_mem::View;

use super::concurrent;
use super::put::{Put, Stored, host, sum_header};
use crate::checksum::Checksum;
use crate::client::{Client, Inner};
use crate::error::{Error, ErrorKind, Result};
use crate::http::ResponseHead;
use crate::request::{Payload, Request};
use crate::response_check;
use crate::retry::RetryState;
use crate::retry::{AttemptError, RequestKind};
use crate::time_formats::http_date;
use crate::xml;

const ANSWER_BYTES_MAX: usize = 256 * 1024;
/// S3 takes no more parts.
const PARTS_MAX: usize = 10_000;
/// The hosts of one store say the time to the second, and not all the same.
const CLOCK_SLACK_S: i64 = 2;
/// The longest time that an abort may take. Uploads that remain are found by listing them.
const ABORT_MAX: Duration = Duration::from_secs(10);

/// How an upload is cut into parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Multipart {
    /// The length of each part in bytes; on most stores at least 5 MiB, except for the last.
    pub part_bytes: usize,
    /// The most parts that are sent at once.
    pub width: usize,
}

impl Multipart {
    /// Parts of `part_bytes`, at most `width` at once.
    pub const fn new(part_bytes: usize, width: usize) -> Self {
        Multipart { part_bytes, width }
    }
}

impl Client {
    /// Stores the view's bytes under `key` by several requests, as `parts` says. After an error or
    /// a dropped future the upload is aborted, so its parts cost nothing.
    ///
    /// ```
    /// # let server = kvtier_testkit::s3::Server::start(Default::default())?;
    /// # use kvtier_s3::{BucketAddress, Client, Config, Credentials};
    /// # let address = BucketAddress::new(server.url()).bucket("bucket").region("us-east-1");
    /// # let client = Client::new(Config::new(address.resolve()?, Credentials::new("AKIDTEST", "secret/test+key")));
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// use kvtier_mem::View;
    /// use kvtier_s3::{Multipart, Put};
    ///
    /// let body = View::from_owner(vec![42; 12 << 20]);
    /// let parts = Multipart::new(5 << 20, 4); // 5 MiB each, four at once
    /// client.put_multipart("large", &body, &Put::default(), parts).await?;
    /// assert_eq!(client.head("large").await?.unwrap().len(), 12 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Invalid` for no part or more than 10,000; others as [`Client::put`].
    pub async fn put_multipart(
        &self,
        key: &str,
        body: &View,
        put: &Put,
        parts: Multipart,
    ) -> Result<Stored> {
        let Multipart { part_bytes, width } = parts;
        let bytes = host(body)?;
        if part_bytes == 0 || bytes.is_empty() || bytes.len().div_ceil(part_bytes) > PARTS_MAX {
            let what =
                "a multipart upload has 1 to 10000 parts: choose the part's size by the object's";
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        self.run(RequestKind::Write, "put_multipart", async {
            // Metadata and storage class belong to the creation; the parts carry bytes only.
            let created = create(&self.inner, key, put).await?;
            // From here on a drop aborts the upload: after an error, a deadline, or a dropped
            // future.
            let upload = OpenUpload { inner: &self.inner, key, put, created, done: false };
            let parts = upload.send(bytes, part_bytes, width).await?;
            let stored = upload.complete(&parts, bytes.len() as u64).await?;
            self.inner.counters.bytes_out.add(bytes.len() as u64);
            Ok(stored)
        })
        .await
    }

    /// Aborts an unfinished upload. It is no error if the upload does not exist.
    pub async fn abort_upload(&self, key: &str, id: &str) -> Result<()> {
        self.run(RequestKind::Delete, "abort_upload", abort(&self.inner, key, id)).await
    }
}

async fn create(inner: &Arc<Inner>, key: &str, put: &Put) -> Result<Created> {
    let mut headers: Vec<(&str, &str)> =
        put.meta.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    headers.extend(inner.config.checksum.name().map(|name| ("x-amz-checksum-algorithm", name)));
    headers.extend(put.class_header(&inner.config));
    let request =
        Request { query: &[("uploads", "")], headers: &headers, ..Request::new("POST", Some(key)) };
    inner.ask_for(&request, ANSWER_BYTES_MAX, created).await
}

/// An upload that was begun.
#[derive(Debug)]
pub(super) struct Created {
    id: String,
    /// When the store said so, in seconds since 1970 by its clock.
    date: Option<i64>,
}

pub(super) fn created(head: &ResponseHead, body: &[u8]) -> Result<Created, AttemptError> {
    let mut id = None;
    response_check::document(body, "InitiateMultipartUploadResult", |path, text| {
        if matches!(path, [_, field] if field == "UploadId") {
            id = Some(text.to_owned());
        }
    })?;
    let id =
        id.filter(|id| !id.is_empty()).ok_or_else(|| response_check::foreign(xml::nonsense()))?;
    Ok(Created { id, date: head.header("date").and_then(http_date) })
}

async fn abort(inner: &Arc<Inner>, key: &str, id: &str) -> Result<()> {
    inner.counters.aborts.one();
    let request = Request { query: &[("uploadId", id)], ..Request::new("DELETE", Some(key)) };
    match inner.ask_for(&request, ANSWER_BYTES_MAX, response_check::deleted).await {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// What the store said of a part: its version, and its checksum where one is configured.
type Part = (String, Option<String>);

/// An upload under way. Dropped before it is done, it is given up in the background.
struct OpenUpload<'a> {
    inner: &'a Arc<Inner>,
    key: &'a str,
    put: &'a Put,
    created: Created,
    done: bool,
}

impl OpenUpload<'_> {
    async fn send(&self, bytes: &[u8], part_bytes: usize, width: usize) -> Result<Vec<Part>> {
        let count = bytes.len().div_ceil(part_bytes);
        // By position, since the parts end in any order and the manifest must name them in order.
        let parts: Mutex<Vec<Part>> = Mutex::new(vec![Part::default(); count]);
        let sends = bytes.chunks(part_bytes).enumerate().map(|(at, bytes)| {
            let parts = &parts;
            async move {
                let part = self.part(at + 1, bytes).await?;
                parts.lock().unwrap_or_else(PoisonError::into_inner)[at] = part;
                Ok::<_, Error>(())
            }
        });
        // The first part that fails for good drops the others, and the upload is aborted.
        concurrent::try_for_each_concurrent(sends, width).await?;
        Ok(parts.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    async fn part(&self, number: usize, bytes: &[u8]) -> Result<Part> {
        let sum = self.inner.config.checksum;
        let number = number.to_string();
        let value = sum.of(bytes);
        let header = sum_header(sum, value.as_deref());
        let query = [("partNumber", number.as_str()), ("uploadId", self.created.id.as_str())];
        let headers = header.as_slice();
        let request = Request {
            query: &query,
            headers,
            body: bytes,
            payload: Payload::Bulk,
            ..Request::new("PUT", Some(self.key))
        };
        let etag = self.inner.ask_for(&request, ANSWER_BYTES_MAX, response_check::stored).await?;
        Ok((etag, value))
    }

    /// Completes the upload. The store may send status 200 and then an error in the body, a proxy
    /// may send 200, and a failed attempt may have succeeded, so that the next one finds no upload.
    /// If the response leaves the result open, a HEAD of the object decides.
    async fn complete(mut self, parts: &[Part], bytes: u64) -> Result<Stored> {
        let body = manifest(parts, self.inner.config.checksum);
        let query = [("uploadId", self.created.id.as_str())];
        // The condition is checked when the upload completes: another node may write the object
        // until then.
        let condition = [("if-none-match", "*")];
        let if_absent = self.put.if_absent;
        let headers = if if_absent { &condition[..] } else { &[] };
        let request = Request {
            query: &query,
            headers,
            body: body.as_bytes(),
            ..Request::new("POST", Some(self.key))
        };
        let mut retries = RetryState::new(self.inner, RequestKind::Write);
        // Only a repeated request may find no upload because the first one succeeded. At the first
        // attempt the same answer means that the upload is lost.
        let mut repeated = false;
        loop {
            let failure = match retries.attempt(&request, ANSWER_BYTES_MAX).await {
                Ok(answer) => match completed(&answer.body) {
                    Ok(etag) => {
                        retries.succeeded();
                        self.done = true;
                        return Ok(Stored::New { etag });
                    }
                    Err(failure) => failure,
                },
                Err(failure) => failure,
            };
            let error = &failure.error;
            // The object exists. The parts are dropped with the upload, which is aborted.
            if if_absent && error.status() == Some(412) && error.code() != Some("InvalidRequest") {
                return Ok(Stored::Present);
            }
            let may_be_done =
                error.is_foreign() || (repeated && error.code() == Some("NoSuchUpload"));
            // A wrong "stored" would lose a chunk that the index counts, and a wrong "failed" would
            // upload it twice. So the object itself is asked for.
            if may_be_done && let Some(stored) = self.find(bytes).await? {
                self.done = true;
                return Ok(stored);
            }
            retries.on_failure(failure).await?;
            repeated = true;
        }
    }

    /// The object that the upload has become, if it is there: of its length, with its metadata, and
    /// no older than the upload.
    async fn find(&self, bytes: u64) -> Result<Option<Stored>> {
        let head = match self.inner.ask(&Request::new("HEAD", Some(self.key)), 0).await {
            Ok(answer) => answer.head,
            // Then the completion did not happen, and is sent again.
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e),
        };
        let has = |(name, value): &(String, String)| head.header(name) == Some(value.as_str());
        let modified = head.header("last-modified").and_then(http_date);
        // Stores date an object by the upload's beginning or by its end.
        let is_new = modified
            .zip(self.created.date)
            .is_none_or(|(modified, begun)| modified + CLOCK_SLACK_S >= begun);
        let is_it = head.length == Some(bytes) && self.put.meta.iter().all(has) && is_new;
        Ok(is_it.then(|| Stored::New { etag: head.etag().map(str::to_owned) }))
    }
}

/// The version of the object that was made.
pub(super) fn completed(body: &[u8]) -> Result<Option<String>, AttemptError> {
    let mut etag = None;
    response_check::document(body, "CompleteMultipartUploadResult", |path, text| {
        if matches!(path, [_, field] if field == "ETag") {
            etag = Some(text.to_owned());
        }
    })?;
    Ok(etag)
}

impl Drop for OpenUpload<'_> {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let inner = Arc::clone(self.inner);
        let key = self.key.to_owned();
        let id = std::mem::take(&mut self.created.id);
        // Without a runtime, as at the end of the process, nothing can be sent. The upload is then
        // found by a later listing.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                tokio::time::timeout(ABORT_MAX, abort(&inner, &key, &id)).await
            });
        }
    }
}

fn manifest(parts: &[Part], sum: Checksum) -> String {
    let mut body =
        String::from("<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");
    for (number, (etag, value)) in (1..).zip(parts) {
        body.push_str(&format!("<Part><PartNumber>{number}</PartNumber><ETag>"));
        xml::escape(&mut body, etag);
        body.push_str("</ETag>");
        if let (Some(name), Some(value)) = (sum.name(), value) {
            body.push_str(&format!("<Checksum{name}>{value}</Checksum{name}>"));
        }
        body.push_str("</Part>");
    }
    body.push_str("</CompleteMultipartUpload>");
    body
}
