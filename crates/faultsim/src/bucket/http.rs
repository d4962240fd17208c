//! HTTP/1.1 as the simulated bucket speaks it, and the little XML that it reads.

use std::fmt;
use std::ops::Range;

use kvtier_s3::simulated_machine::DuplexStream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::calendar;
use crate::conditions::Page;

/// A request.
#[derive(Clone, Debug, Default)]
pub struct Request {
    pub method: String,
    /// As it came, encoded.
    pub path: String,
    /// As it came, without the `?`.
    pub query: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Request {
    /// The next one; `None` at the end of the connection. `ahead` has bytes that were read already.
    pub async fn read(stream: &mut DuplexStream, ahead: &mut Vec<u8>) -> Option<Self> {
        let head_len = loop {
            if let Some(at) = ahead.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            if stream.read_buf(ahead).await.ok()? == 0 {
                return None;
            }
        };
        let mut request = Request::parse(std::str::from_utf8(&ahead[..head_len]).ok()?)?;
        ahead.drain(..head_len);
        if request.header("expect").is_some() {
            stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await.ok()?;
        }
        let len = request.header("content-length").map_or(Some(0), |len| len.parse().ok())?;
        while ahead.len() < len {
            if stream.read_buf(ahead).await.ok()? == 0 {
                return None;
            }
        }
        request.body = ahead.drain(..len).collect();
        Some(request)
    }

    fn parse(head: &str) -> Option<Self> {
        let mut lines = head.split("\r\n");
        let mut words = lines.next()?.split(' ');
        let (method, target) = (words.next()?.to_owned(), words.next()?);
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let headers = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()));
        Some(Request {
            method,
            path: path.to_owned(),
            query: query.to_owned(),
            headers: headers.collect(),
            body: Vec::new(),
        })
    }

    /// Whether it writes or deletes objects.
    pub fn changes_objects(&self) -> bool {
        ["PUT", "DELETE", "POST"].contains(&self.method.as_str())
    }

    /// Whether it is for a journal, or for a listing of them.
    pub fn is_of_journals(&self) -> bool {
        let is_one = |path: &str| path.contains("/.kvtier/journal/");
        is_one(&self.path) || self.value("prefix").is_some_and(|prefix| is_one(&prefix))
    }

    /// The chunk's object that it reads, if it reads one.
    pub fn read_chunk(&self) -> Option<String> {
        let path = decode(&self.path);
        let name = super::key_of(&path);
        let reads = ["GET", "HEAD"].contains(&self.method.as_str());
        (reads && !name.is_empty() && !super::is_own(name)).then(|| name.to_owned())
    }

    /// The header of that lower-case name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    /// Whether the query has this name.
    pub fn has(&self, name: &str) -> bool {
        self.value(name).is_some()
    }

    /// The decoded value of a name in the query; empty if it has none.
    pub fn value(&self, name: &str) -> Option<String> {
        self.query.split('&').find_map(|pair| {
            let (found, value) = pair.split_once('=').unwrap_or((pair, ""));
            (found == name).then(|| decode(value))
        })
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Request { method, path, query, body, .. } = self;
        write!(f, "{method} {path}?{query} {} bytes", body.len())?;
        let conditional = self.header("if-none-match").is_some();
        if conditional { f.write_str(" if absent") } else { Ok(()) }
    }
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Response {
    pub status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    is_of_store: bool,
}

impl Response {
    pub fn new(status: u16, body: Vec<u8>) -> Self {
        Response { status, headers: Vec::new(), body, is_of_store: true }
    }

    pub fn error(status: u16, code: &str) -> Self {
        let body = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code></Error>");
        Response::new(status, body.into_bytes())
    }

    /// What something before the store answers in its place.
    pub fn page(page: Page) -> Self {
        let body: &[u8] = match page {
            Page::Html => b"<html><body>Please log in<br></body></html>",
            Page::Error => b"<?xml version=\"1.0\"?><Error><Code>InternalError</Code></Error>",
            Page::Empty => b"",
        };
        Response { is_of_store: false, ..Response::new(200, body.to_vec()) }
    }

    /// Takes away its metadata and checksums, and changes a byte of the body.
    pub fn strip(&mut self, is_changed: bool) {
        self.headers.retain(|(name, _)| !super::is_kept(name));
        if let Some(byte) = self.body.first_mut().filter(|_| is_changed) {
            *byte ^= 1;
        }
    }

    pub fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    /// Its bytes as the answer to a request of this method.
    pub fn encode(&self, method: &str, now_s: u64) -> Vec<u8> {
        let mut head = format!("HTTP/1.1 {} X\r\ndate: {}\r\n", self.status, calendar::http(now_s));
        if self.is_of_store {
            head.push_str("x-amz-request-id: SIMULATED\r\n");
        }
        if self.status != 204 {
            head.push_str(&format!("content-length: {}\r\n", self.body.len()));
        }
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        let mut bytes = head.into_bytes();
        if method != "HEAD" && self.status != 204 {
            bytes.extend_from_slice(&self.body);
        }
        bytes
    }
}

/// The bytes that a `range` header asks for, of `total`.
pub fn range(header: &str, total: usize) -> Option<Range<usize>> {
    let (first, last) = header.strip_prefix("bytes=")?.split_once('-')?;
    let first: usize = first.parse().ok()?;
    let last = last.parse::<usize>().unwrap_or(usize::MAX).min(total.checked_sub(1)?);
    (first <= last).then_some(first..last + 1)
}

/// Undoes percent-encoding.
pub fn decode(text: &str) -> String {
    let mut out = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        let hex = (*byte == b'%').then(|| after.get(..2)).flatten();
        let escaped =
            hex.and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        out.push(escaped.unwrap_or(*byte));
        rest = if escaped.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Percent-encodes all but letters, digits and `-._~/`.
pub fn encode(text: &str) -> String {
    let is_plain =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~' | b'/');
    // As the names of chunks are.
    if text.bytes().all(is_plain) {
        return text.to_owned();
    }
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'-' | b'.' | b'_' | b'~' | b'/' => out.push(char::from(byte)),
            byte if byte.is_ascii_alphanumeric() => out.push(char::from(byte)),
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// Text inside of XML.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The texts of all elements of this name.
pub fn texts(xml: &[u8], name: &str) -> Vec<String> {
    let xml = String::from_utf8_lossy(xml);
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let inside = xml.split(open.as_str()).skip(1).filter_map(|rest| rest.split(&close).next());
    let plain = |text: &str| {
        text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&amp;", "&")
    };
    inside.map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_both_encodings() {
        let name = "kv/a b+c%&<\"é";
        assert_eq!(decode(&encode(name)), name);
        let xml = format!("<Delete><Object><Key>{}</Key></Object></Delete>", escape(name));
        assert_eq!(texts(xml.as_bytes(), "Key"), [name]);
        assert_eq!(range("bytes=2-5", 4), Some(2..4));
        assert_eq!(range("bytes=4-5", 4), None);
    }
}
