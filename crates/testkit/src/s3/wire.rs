//! HTTP/1.1 as a server sees it.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use super::fault::{Fault, Foreign};

const HEADERS_MAX: usize = 100;

/// A request's head.
#[derive(Clone, Debug, Default)]
pub struct WireRequest {
    pub method: String,
    /// As it came, still encoded.
    pub path: String,
    /// As it came, without the `?`.
    pub query: String,
    pub headers: Vec<(String, String)>,
}

impl WireRequest {
    /// The next request, or `None` when the client is done.
    pub fn read(from: &mut BufReader<TcpStream>) -> io::Result<Option<Self>> {
        let mut line = String::new();
        // The client closed an idle connection, which is no error.
        if from.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let mut words = line.trim_end().split(' ');
        let method = words.next().unwrap_or_default();
        let target = words.next().unwrap_or_default();
        // Path and query stay encoded: the signature covers them as they came.
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let mut request = WireRequest {
            method: method.into(),
            path: path.into(),
            query: query.into(),
            headers: Vec::new(),
        };
        loop {
            let mut line = String::new();
            from.read_line(&mut line)?;
            // The empty line ends the headers.
            let Some((name, value)) = line.trim_end().split_once(':') else {
                return Ok(Some(request));
            };
            request.headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
            if request.headers.len() > HEADERS_MAX {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
    }

    /// The body that belongs to it.
    pub fn body(&self, from: &mut BufReader<TcpStream>) -> io::Result<Vec<u8>> {
        if self.header("expect") == Some("100-continue") {
            // The client waits for this before it sends the body.
            from.get_ref().write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        }
        if self.header("transfer-encoding") == Some("chunked") {
            return chunked_body(from);
        }
        let len = self.header("content-length").and_then(|len| len.parse().ok()).unwrap_or(0);
        let mut body = vec![0; len];
        from.read_exact(&mut body)?;
        Ok(body)
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    /// Path and query as they came.
    pub fn target(&self) -> String {
        match self.query.as_str() {
            "" => self.path.clone(),
            query => format!("{}?{query}", self.path),
        }
    }

    /// The decoded value of a name in the query; empty when it has none.
    pub fn query(&self, name: &str) -> Option<String> {
        self.query.split('&').find_map(|pair| {
            let (found, value) = pair.split_once('=').unwrap_or((pair, ""));
            (found == name).then(|| decode(value))
        })
    }
}

/// A body whose length its sender did not state.
fn chunked_body(from: &mut BufReader<TcpStream>) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let mut line = String::new();
        from.read_line(&mut line)?;
        let len = usize::from_str_radix(line.trim_end(), 16).map_err(io::Error::other)?;
        let begin = body.len();
        body.resize(begin + len, 0);
        from.read_exact(&mut body[begin..])?;
        // Each chunk ends with an empty line, the last one too: trailers are not expected.
        line.clear();
        from.read_line(&mut line)?;
        if len == 0 {
            return Ok(body);
        }
    }
}

/// Undoes percent-encoding.
pub fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let escape = bytes.get(at + 1..at + 3).and_then(|hex| std::str::from_utf8(hex).ok());
        match escape.and_then(|hex| u8::from_str_radix(hex, 16).ok()).filter(|_| bytes[at] == b'%')
        {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Response {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// What `content-length` says, if not the truth.
    pub announced: Option<usize>,
    /// Whether the body is sent in chunks.
    pub chunked: bool,
    /// Whether it is not the store's own.
    pub foreign: bool,
}

impl Response {
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Response {
            status,
            headers: Vec::new(),
            body: body.into(),
            announced: None,
            chunked: false,
            foreign: false,
        }
    }

    /// An error as S3 writes it.
    pub fn error(status: u16, code: &str) -> Self {
        Response::complaint(status, &format!("<Code>{code}</Code>"))
    }

    /// What is not the store's.
    pub fn foreign(of: &Foreign) -> Self {
        let headers =
            of.headers.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        Response { headers, foreign: true, ..Response::new(of.status, of.body.clone()) }
    }

    /// An error with more in it than a code.
    pub fn complaint(status: u16, inside: &str) -> Self {
        let body = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error>{inside}<Message>m</Message><RequestId>r1</RequestId></Error>"
        );
        Response::new(status, body).with("content-type", "application/xml")
    }

    pub fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.retain(|(other, _)| other != name);
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    /// Makes it a lie.
    pub fn distort(&mut self, fault: Option<&Fault>) {
        let len = self.body.len();
        match fault {
            Some(Fault::OverLong(extra)) => {
                // The head announces the true length and more bytes follow. A client must not take
                // them for the next answer.
                self.announced = Some(len);
                self.body.resize(len + extra, 0xEE);
            }
            // The head announces the shorter body: the transfer is complete, and only the chunk is
            // not.
            Some(Fault::Shorter(by)) => self.body.truncate(len.saturating_sub(*by)),
            Some(Fault::Longer(by)) => self.body.resize(len + by, 0xEE),
            Some(Fault::Flip) => self.body[len / 2] ^= 1,
            Some(Fault::Stripped { flipped }) => {
                let kept = |name: &str| {
                    !name.starts_with("x-amz-meta-") && !name.starts_with("x-amz-checksum-")
                };
                self.headers.retain(|(name, _)| kept(name));
                self.body[len / 2] ^= u8::from(*flipped);
            }
            Some(Fault::WrongRange) => {
                *self = self.clone().with("content-range", format!("bytes 1-{len}/{}", len + 1));
            }
            Some(Fault::Chunked) => self.chunked = true,
            _ => {}
        }
    }

    /// The head as it goes onto the wire.
    pub fn head(&self) -> String {
        let mut text = format!("HTTP/1.1 {} X\r\n", self.status);
        self.headers
            .iter()
            .for_each(|(name, value)| text.push_str(&format!("{name}: {value}\r\n")));
        match self.chunked {
            true => text.push_str("transfer-encoding: chunked\r\n\r\n"),
            false => text.push_str(&format!(
                "content-length: {}\r\n\r\n",
                self.announced.unwrap_or(self.body.len())
            )),
        }
        text
    }

    /// Sends all of it; the answer to a HEAD without its body.
    pub fn write(&self, to: &mut TcpStream, bodiless: bool) -> io::Result<()> {
        to.write_all(&self.to_bytes(bodiless))
    }

    /// All of it as it goes onto the wire; the answer to a HEAD without its body.
    pub fn to_bytes(&self, bodiless: bool) -> Vec<u8> {
        let mut out = self.head().into_bytes();
        if bodiless || self.status == 204 {
            return out;
        }
        if self.chunked {
            for piece in self.body.chunks(7000) {
                // With an extension and a trailer, which a client must skip.
                out.extend_from_slice(format!("{:x};ext=1\r\n", piece.len()).as_bytes());
                out.extend_from_slice(piece);
                out.extend_from_slice(b"\r\n");
            }
            out.extend_from_slice(b"0\r\nx-trailer: 1\r\n\r\n");
        } else {
            out.extend_from_slice(&self.body);
        }
        out
    }
}
