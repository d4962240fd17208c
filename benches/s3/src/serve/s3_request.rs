use anyhow::{Context, Result, bail, ensure};

use super::connection::{Objects, StoredObject};

/// Headers of every response.
pub const COMMON_HEADERS: [(&str, &str); 6] = [
    ("content-type", "application/octet-stream"),
    ("accept-ranges", "bytes"),
    ("etag", "\"0123456789abcdef0123456789abcdef\""),
    ("last-modified", "Sat, 21 Nov 2026 00:00:00 GMT"),
    ("date", "Sat, 21 Nov 2026 00:00:00 GMT"),
    ("x-amz-request-id", "BENCH"),
];

const UPLOAD_STARTED: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<InitiateMultipartUploadResult><Bucket>bench</Bucket>\
    <Key>k</Key><UploadId>1</UploadId></InitiateMultipartUploadResult>";
const UPLOAD_COMPLETED: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<CompleteMultipartUploadResult><Bucket>bench</Bucket>\
    <Key>k</Key><ETag>&quot;0123456789abcdef0123456789abcdef&quot;</ETag></CompleteMultipartUploadResult>";

/// The bucket is always listed as empty.
const NO_OBJECTS: &str = "<?xml version=\"1.0\"?><ListBucketResult><EncodingType>url</EncodingType><KeyCount>0</KeyCount>\
    <IsTruncated>false</IsTruncated></ListBucketResult>";
const NO_UPLOADS: &str = "<?xml version=\"1.0\"?><ListMultipartUploadsResult><IsTruncated>false</IsTruncated></ListMultipartUploadsResult>";
const DELETED: &str = "<?xml version=\"1.0\"?><DeleteResult></DeleteResult>";
const NOT_IMPLEMENTED: &str = "<?xml version=\"1.0\"?><Error><Code>NotImplemented</Code></Error>";

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Method {
    Get,
    Head,
    /// Puts an object or a part.
    Put,
    /// Starts or completes a multipart upload.
    Post,
    Delete,
}

/// A request.
pub struct S3Request {
    pub method: Method,
    path: String,
    query: String,
    range: Option<(usize, usize)>,
    meta: Vec<(String, String)>,
    /// Bytes of the request's body.
    pub body: usize,
    pub expects: bool,
}

impl S3Request {
    pub fn new(method: &str, target: &str) -> Result<Self> {
        let method = match method {
            "GET" => Method::Get,
            "HEAD" => Method::Head,
            "PUT" => Method::Put,
            "POST" => Method::Post,
            "DELETE" => Method::Delete,
            other => bail!("no method {other}"),
        };
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let path = path.to_owned();
        let query = query.to_owned();
        Ok(S3Request {
            method,
            path,
            query,
            range: None,
            meta: Vec::new(),
            body: 0,
            expects: false,
        })
    }

    /// Adds a header; its name may have any case.
    pub fn header(&mut self, name: &str, value: &[u8]) -> Result<()> {
        let value = std::str::from_utf8(value)?;
        match name.to_ascii_lowercase() {
            name if name == "content-length" => self.body = value.parse()?,
            name if name == "expect" => self.expects = true,
            name if name == "transfer-encoding" => bail!("a chunked body"),
            name if name == "range" => {
                self.range = Some(range(value).with_context(|| format!("no range {value}"))?)
            }
            name if name.starts_with("x-amz-meta-") => self.meta.push((name, value.to_owned())),
            _ => {}
        }
        Ok(())
    }

    pub fn respond(self, objects: &Objects) -> Result<S3Response> {
        if self.path.trim_matches('/') == crate::peers::BUCKET {
            return Ok(self.bucket_response());
        }
        match self.method {
            Method::Put => {
                // Objects with metadata are stored. The name of all others contains their length.
                if !self.meta.is_empty() {
                    objects.store(self.path, StoredObject { len: self.body, meta: self.meta })?;
                }
                Ok(S3Response::text(200, ""))
            }
            Method::Delete => Ok(S3Response::text(204, "")),
            Method::Post => Ok(S3Response::text(
                200,
                if self.query.starts_with("uploads") { UPLOAD_STARTED } else { UPLOAD_COMPLETED },
            )),
            Method::Get | Method::Head => self.object(objects),
        }
    }

    fn bucket_response(&self) -> S3Response {
        match self.query.as_str() {
            query if query.contains("delete") => S3Response::text(200, DELETED),
            query if query.contains("list-type") => S3Response::text(200, NO_OBJECTS),
            query if query.contains("uploads") => S3Response::text(200, NO_UPLOADS),
            _ => S3Response::text(501, NOT_IMPLEMENTED),
        }
    }

    fn object(self, objects: &Objects) -> Result<S3Response> {
        let stored = objects.stored(&self.path);
        let named = || self.path.rsplit('/').nth(1).and_then(|size| size.parse().ok());
        let length = stored.as_ref().map(|stored| stored.len).or_else(named);
        let length: usize = length.with_context(|| format!("no object {}", self.path))?;
        ensure!(length > 0 && length <= crate::bytes::BYTES_MAX, "no such size");
        let (first, last) = self.range.unwrap_or((0, length - 1));
        let last = last.min(length - 1);
        ensure!(first <= last, "a range outside the object");
        Ok(S3Response {
            status: if self.range.is_some() { 206 } else { 200 },
            part: self.range.map(|_| format!("bytes {first}-{last}/{length}")),
            length: last + 1 - first,
            meta: stored.map(|stored| stored.meta).unwrap_or_default(),
            body: match self.method {
                Method::Head => Body::Text(""),
                _ => Body::Object(first),
            },
        })
    }
}

/// A response.
pub struct S3Response {
    pub status: u16,
    /// The `content-range`.
    pub part: Option<String>,
    /// The `content-length`.
    pub length: usize,
    /// The metadata stored with the object.
    pub meta: Vec<(String, String)>,
    pub body: Body,
}

pub enum Body {
    Text(&'static str),
    /// `length` bytes of the objects from this offset.
    Object(usize),
}

impl S3Response {
    fn text(status: u16, text: &'static str) -> Self {
        S3Response {
            status,
            part: None,
            length: text.len(),
            meta: Vec::new(),
            body: Body::Text(text),
        }
    }
}

fn range(value: &str) -> Option<(usize, usize)> {
    let (first, last) = value.strip_prefix("bytes=")?.split_once('-')?;
    Some((first.parse().ok()?, last.parse().ok()?))
}
