use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kvtier_mem::View;

use super::join;
use super::put::{Put, Stored, host, sum_header};
use crate::checksum::Checksum;
use crate::client::{Client, Inner};
use crate::error::{Error, ErrorKind, Result};
use crate::http::digits;
use crate::request::{Payload, Request};
use crate::retry::{Class, Refusal, classify};
use crate::tries::Tries;
use crate::xml::{self, Complaint};

const ANSWER_BYTES_MAX: usize = 256 * 1024;
/// S3 takes no more parts.
const PARTS_MAX: usize = 10_000;
/// Giving up is given up after this long; what is left then is found by listing uploads.
const ABORT_MAX: Duration = Duration::from_secs(10);

impl Client {
    /// Stores the view's bytes under `key` by several requests, `width` at once, each for `part_bytes` (all but the last at least
    /// 5 MiB on most stores). Whatever goes wrong, a dropped future too, the upload is given up, so that its parts cost nothing.
    pub async fn put_multipart(
        &self,
        key: &str,
        body: &View,
        put: &Put,
        (part_bytes, width): (usize, usize),
    ) -> Result<Stored> {
        let bytes = host(body)?;
        if part_bytes == 0 || bytes.is_empty() || bytes.len().div_ceil(part_bytes) > PARTS_MAX {
            let what = "a multipart upload has 1 to 10000 parts: choose the part's size by the object's";
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        self.run((Class::Write, "put_multipart"), async {
            let id = create(&self.inner, key, put).await?;
            let upload = Upload { inner: &self.inner, key, id, done: false };
            let parts = upload.send(bytes, part_bytes, width).await?;
            let stored = upload.complete(&parts, (bytes.len() as u64, put.if_absent)).await?;
            self.inner.counters.bytes_out.add(bytes.len() as u64);
            Ok(stored)
        })
        .await
    }

    /// Gives up an upload that somebody left unfinished; that there is none is fine.
    pub async fn abort_upload(&self, key: &str, id: &str) -> Result<()> {
        self.run((Class::Delete, "abort_upload"), abort(&self.inner, key, id)).await
    }
}

async fn create(inner: &Arc<Inner>, key: &str, put: &Put) -> Result<String> {
    let mut headers: Vec<(&str, &str)> = put.meta.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    headers.extend(inner.config.checksum.name().map(|name| ("x-amz-checksum-algorithm", name)));
    headers.extend(put.class_header(&inner.config));
    let request = Request { query: &[("uploads", "")], headers: &headers, ..Request::new("POST", Some(key)) };
    let answer = inner.ask(&request, ANSWER_BYTES_MAX).await?;
    let mut id = None;
    xml::each(&answer.body, |path, text| {
        if path.last().is_some_and(|name| name == "UploadId") {
            id = Some(text.to_owned());
        }
    })?;
    id.filter(|id| !id.is_empty()).ok_or_else(xml::nonsense)
}

async fn abort(inner: &Arc<Inner>, key: &str, id: &str) -> Result<()> {
    inner.counters.aborts.one();
    let request = Request { query: &[("uploadId", id)], ..Request::new("DELETE", Some(key)) };
    match inner.ask(&request, ANSWER_BYTES_MAX).await {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// What the store said of a part: its version, and its checksum where one is configured.
type Part = (String, Option<String>);

/// An upload under way. Dropped before it is done, it is given up in the background.
struct Upload<'a> {
    inner: &'a Arc<Inner>,
    key: &'a str,
    id: String,
    done: bool,
}

impl Upload<'_> {
    async fn send(&self, bytes: &[u8], part_bytes: usize, width: usize) -> Result<Vec<Part>> {
        let count = bytes.len().div_ceil(part_bytes);
        let parts: Mutex<Vec<Part>> = Mutex::new(vec![Part::default(); count]);
        let sends = bytes.chunks(part_bytes).enumerate().map(|(at, bytes)| {
            let parts = &parts;
            async move {
                let part = self.part(at + 1, bytes).await?;
                parts.lock().unwrap_or_else(PoisonError::into_inner)[at] = part;
                Ok::<_, Error>(())
            }
        });
        join::all(sends, width).await?;
        Ok(parts.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    async fn part(&self, number: usize, bytes: &[u8]) -> Result<Part> {
        let (sum, number) = (self.inner.config.checksum, number.to_string());
        let value = sum.of(bytes);
        let header = sum_header(sum, value.as_deref());
        let query = [("partNumber", number.as_str()), ("uploadId", self.id.as_str())];
        let headers = header.as_slice();
        let request = Request {
            query: &query,
            headers,
            body: bytes,
            payload: Payload::Bulk,
            ..Request::new("PUT", Some(self.key))
        };
        let answer = self.inner.ask(&request, ANSWER_BYTES_MAX).await?;
        let etag = answer
            .head
            .header("etag")
            .ok_or_else(|| Error::new(ErrorKind::Corrupt, "the store names no version of a part"))?;
        Ok((etag.to_owned(), value))
    }

    /// Makes an object of the parts. The store may say 200 first and fail later, in the body; and an attempt that failed may
    /// have succeeded all the same, so that the next one finds no upload.
    async fn complete(mut self, parts: &[Part], (bytes, if_absent): (u64, bool)) -> Result<Stored> {
        let body = manifest(parts, self.inner.config.checksum);
        let query = [("uploadId", self.id.as_str())];
        let condition = [("if-none-match", "*")];
        let headers = if if_absent { &condition[..] } else { &[] };
        let request = Request { query: &query, headers, body: body.as_bytes(), ..Request::new("POST", Some(self.key)) };
        let (mut tries, mut repeated) = (Tries::new(self.inner, Class::Write), false);
        loop {
            let trouble = match tries.once(&request, ANSWER_BYTES_MAX).await {
                Ok(answer) => match completed(&answer.body)? {
                    Ok(etag) => {
                        tries.won();
                        self.done = true;
                        return Ok(Stored::New { etag });
                    }
                    Err(complaint) => {
                        let (code, request_id) = (complaint.code, complaint.request_id);
                        classify(Refusal { status: 200, code, request_id, ..Refusal::default() })
                    }
                },
                Err(trouble) => trouble,
            };
            let error = &trouble.error;
            if if_absent && error.status() == Some(412) && error.code() != Some("InvalidRequest") {
                return Ok(Stored::Present);
            }
            if repeated && error.code() == Some("NoSuchUpload") && self.is_there(bytes).await? {
                self.done = true;
                return Ok(Stored::New { etag: None });
            }
            tries.after(trouble).await?;
            repeated = true;
        }
    }

    /// Whether an object of that length is there.
    async fn is_there(&self, bytes: u64) -> Result<bool> {
        match self.inner.ask(&Request::new("HEAD", Some(self.key)), 0).await {
            Ok(answer) => Ok(answer.head.header("content-length").and_then(digits) == Some(bytes)),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }
}

/// The version of the object that was made, or why none was.
pub(super) fn completed(body: &[u8]) -> Result<std::result::Result<Option<String>, Complaint>> {
    let complaint = Complaint::of(body);
    if complaint.code.is_some() {
        return Ok(Err(complaint));
    }
    let mut etag = None;
    xml::each(body, |path, text| {
        if path.last().is_some_and(|name| name == "ETag") {
            etag = Some(text.to_owned());
        }
    })?;
    Ok(Ok(etag))
}

impl Drop for Upload<'_> {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let (inner, key, id) = (Arc::clone(self.inner), self.key.to_owned(), std::mem::take(&mut self.id));
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { tokio::time::timeout(ABORT_MAX, abort(&inner, &key, &id)).await });
        }
    }
}

fn manifest(parts: &[Part], sum: Checksum) -> String {
    let mut body = String::from("<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");
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
