use anyhow::{Context, Result, bail, ensure};

/// Whatever the version, an answer says this too.
pub const REST: [(&str, &str); 6] = [
    ("content-type", "application/octet-stream"),
    ("accept-ranges", "bytes"),
    ("etag", "\"0123456789abcdef0123456789abcdef\""),
    ("last-modified", "Sat, 21 Nov 2026 00:00:00 GMT"),
    ("date", "Sat, 21 Nov 2026 00:00:00 GMT"),
    ("x-amz-request-id", "BENCH"),
];

const BEGUN: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<InitiateMultipartUploadResult><Bucket>bench</Bucket>\
    <Key>k</Key><UploadId>1</UploadId></InitiateMultipartUploadResult>";
const COMPLETE: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<CompleteMultipartUploadResult><Bucket>bench</Bucket>\
    <Key>k</Key><ETag>&quot;0123456789abcdef0123456789abcdef&quot;</ETag></CompleteMultipartUploadResult>";

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Method {
    Get,
    Head,
    /// Of an object, or of a part of one.
    Put,
    /// The beginning of an upload in parts, or its end.
    Post,
}

/// What a request asks for.
pub struct Ask {
    pub method: Method,
    /// Bytes of the object, from its name.
    size: usize,
    begins: bool,
    range: Option<(usize, usize)>,
    /// Bytes of the request's body.
    pub body: usize,
    pub expects: bool,
}

impl Ask {
    pub fn new(method: &str, target: &str) -> Result<Self> {
        let method = match method {
            "GET" => Method::Get,
            "HEAD" => Method::Head,
            "PUT" => Method::Put,
            "POST" => Method::Post,
            other => bail!("no method {other}"),
        };
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let size = path.rsplit('/').nth(1).and_then(|size| size.parse().ok());
        let size = size.with_context(|| format!("no object {path}"))?;
        ensure!(size > 0 && size <= crate::bytes::BYTES_MAX, "no such size");
        Ok(Ask { method, size, begins: query.starts_with("uploads"), range: None, body: 0, expects: false })
    }

    /// Takes in a header, its name in any case.
    pub fn header(&mut self, name: &str, value: &[u8]) -> Result<()> {
        let value = std::str::from_utf8(value)?;
        match name.to_ascii_lowercase().as_str() {
            "content-length" => self.body = value.parse()?,
            "expect" => self.expects = true,
            "transfer-encoding" => bail!("a body in chunks"),
            "range" => self.range = Some(range(value).with_context(|| format!("no range {value}"))?),
            _ => {}
        }
        Ok(())
    }

    pub fn reply(&self) -> Result<Reply> {
        let (range, length) = match self.method {
            Method::Put => return Ok(Reply::text("")),
            Method::Post => return Ok(Reply::text(if self.begins { BEGUN } else { COMPLETE })),
            Method::Get | Method::Head => (self.range, self.size),
        };
        let (first, last) = range.unwrap_or((0, length - 1));
        let last = last.min(length - 1);
        ensure!(first <= last, "a range outside the object");
        Ok(Reply {
            status: if range.is_some() { 206 } else { 200 },
            part: range.map(|_| format!("bytes {first}-{last}/{length}")),
            length: last + 1 - first,
            body: match self.method {
                Method::Head => Body::Text(""),
                _ => Body::Object(first),
            },
        })
    }
}

/// What is answered.
pub struct Reply {
    pub status: u16,
    /// The `content-range`.
    pub part: Option<String>,
    /// The `content-length`.
    pub length: usize,
    pub body: Body,
}

pub enum Body {
    Text(&'static str),
    /// `length` bytes of the objects from here on.
    Object(usize),
}

impl Reply {
    fn text(text: &'static str) -> Self {
        Reply { status: 200, part: None, length: text.len(), body: Body::Text(text) }
    }
}

fn range(value: &str) -> Option<(usize, usize)> {
    let (first, last) = value.strip_prefix("bytes=")?.split_once('-')?;
    Some((first.parse().ok()?, last.parse().ok()?))
}
