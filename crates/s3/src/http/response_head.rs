use std::mem::MaybeUninit;
use std::ops::Range;

use crate::error::{Error, ErrorKind, Result};

/// The most bytes that a response's head may have.
pub const HEAD_BYTES_MAX: usize = 64 * 1024;
const HEADERS_MAX: usize = 100;
/// The lengths of the names that say how a body ends.
const CONTENT_LENGTH: usize = "content-length".len();
const TRANSFER_ENCODING: usize = "transfer-encoding".len();
const CONNECTION: usize = "connection".len();
const ETAG: usize = "etag".len();

/// How a body ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BodyFraming {
    /// After this many bytes.
    Length(u64),
    /// With its last chunk.
    Chunked,
    /// With the connection.
    UntilClose,
}

/// Status and headers of a response.
#[derive(Clone, Debug)]
pub struct ResponseHead {
    /// The status code.
    pub status: u16,
    /// How the body ends.
    pub framing: BodyFraming,
    /// Whether the connection ends with this response.
    pub closes: bool,
    /// The `content-length`, which of a HEAD's answer is not that of its body.
    pub length: Option<u64>,
    /// Where in the text the version is: every GET asks for it.
    etag: Option<Range<usize>>,
    text: Vec<u8>,
}

impl ResponseHead {
    /// The head at the start of `bytes` and its length; `None` while it is incomplete. `bodiless`
    /// says that the request was a HEAD. Errors with `Corrupt` when it is not HTTP/1, or says
    /// two things about its length.
    pub fn parse(bytes: &[u8], bodiless: bool) -> Result<Option<(ResponseHead, usize)>> {
        let mut headers = [const { MaybeUninit::uninit() }; HEADERS_MAX];
        let mut response = httparse::Response::new(&mut []);
        let parser = httparse::ParserConfig::default();
        let len =
            match parser.parse_response_with_uninit_headers(&mut response, bytes, &mut headers) {
                Ok(httparse::Status::Complete(len)) => len,
                // Parsed anew with each read: heads come in one piece nearly always.
                Ok(httparse::Status::Partial) if bytes.len() < HEAD_BYTES_MAX => return Ok(None),
                Ok(httparse::Status::Partial) => return Err(nonsense("its head has no end")),
                Err(e) => return Err(nonsense("the answer is not HTTP").with_source(e)),
            };
        let status = response.code.unwrap_or(0);
        let mut closes = response.version == Some(0);
        let mut length = None;
        let mut chunked = false;
        let mut etag = None;
        let mut encodings = 0;
        for header in response.headers.iter() {
            // One comparison for all others.
            if !matches!(header.name.len(), CONTENT_LENGTH | TRANSFER_ENCODING | CONNECTION | ETAG)
            {
                continue;
            }
            let value = || std::str::from_utf8(header.value).unwrap_or_default().trim();
            if header.name.eq_ignore_ascii_case("content-length") {
                let number = digits(value())
                    .ok_or_else(|| nonsense("its content-length is not a number"))?;
                // Two parties that each believe another one of them would see different responses
                // on this connection.
                if length.is_some_and(|other| other != number) {
                    return Err(nonsense("it has two content-lengths"));
                }
                length = Some(number);
            } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
                encodings += 1;
                // As with two lengths: which of them counts differs between servers and proxies.
                if encodings > 1 {
                    return Err(nonsense("it has several transfer-encodings"));
                }
                chunked = value().eq_ignore_ascii_case("chunked");
                if !chunked && !value().eq_ignore_ascii_case("identity") {
                    return Err(nonsense("its transfer-encoding is unknown"));
                }
            } else if header.name.eq_ignore_ascii_case("connection") {
                closes |= value().split(',').any(|word| word.trim().eq_ignore_ascii_case("close"));
            } else if etag.is_none() && header.name.eq_ignore_ascii_case("etag") {
                // The parser's values are parts of `bytes`.
                let start = header.value.as_ptr().addr() - bytes.as_ptr().addr();
                etag = Some(start..start + header.value.len());
            }
        }
        let framing = match (bodiless || matches!(status, 100..=199 | 204 | 304), chunked, length) {
            (true, ..) => BodyFraming::Length(0),
            // The classic way to smuggle a response through a proxy.
            (_, true, Some(_)) => return Err(nonsense("it has a content-length and is chunked")),
            (_, true, None) => BodyFraming::Chunked,
            (_, false, Some(length)) => BodyFraming::Length(length),
            (_, false, None) => BodyFraming::UntilClose,
        };
        // Nothing can follow a body that ends with the connection.
        closes |= framing == BodyFraming::UntilClose;
        Ok(Some((
            ResponseHead { status, framing, closes, length, etag, text: bytes[..len].to_vec() },
            len,
        )))
    }

    /// One that came as fields, over HTTP/2. A body without a length ends with the stream, as one
    /// in chunks does with its last.
    pub fn of(status: u16, fields: &http::HeaderMap, bodiless: bool) -> Result<ResponseHead> {
        let mut text = b"HTTP/2\n".to_vec();
        let mut length = None;
        let mut etag = None;
        for (name, value) in fields {
            if name == http::header::ETAG && etag.is_none() {
                let start = text.len() + "etag: ".len();
                etag = Some(start..start + value.len());
            }
            for piece in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\n"] {
                text.extend_from_slice(piece);
            }
            if name == http::header::CONTENT_LENGTH {
                let number = value.to_str().ok().and_then(digits);
                let number =
                    number.ok_or_else(|| nonsense("its content-length is not a number"))?;
                if length.is_some_and(|other| other != number) {
                    return Err(nonsense("it has two content-lengths"));
                }
                length = Some(number);
            }
        }
        let framing = match (bodiless || matches!(status, 100..=199 | 204 | 304), length) {
            (true, _) => BodyFraming::Length(0),
            (false, Some(length)) => BodyFraming::Length(length),
            (false, None) => BodyFraming::Chunked,
        };
        Ok(ResponseHead { status, framing, closes: false, length, etag, text })
    }

    /// The first header of that name (in any case), if its value is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        let lines = self.text.split(|byte| *byte == b'\n').skip(1);
        let mut fields = lines.filter_map(|line| line.split_at_checked(name.len()));
        let (_, rest) = fields.find(|(field, rest)| {
            field.eq_ignore_ascii_case(name.as_bytes()) && rest.starts_with(b":")
        })?;
        std::str::from_utf8(&rest[1..]).ok().map(str::trim)
    }

    /// The first `etag`, if it is text.
    pub fn etag(&self) -> Option<&str> {
        std::str::from_utf8(self.text.get(self.etag.clone()?)?).ok().map(str::trim)
    }

    /// Whether it says of an object what every store says of each.
    pub fn is_of_an_object(&self) -> bool {
        self.etag.is_some() && self.header("last-modified").is_some()
    }

    /// Whether it announces an object of at least `bytes`.
    pub fn announces(&self, bytes: usize) -> bool {
        self.is_success() && matches!(self.framing, BodyFraming::Length(len) if len >= bytes as u64)
    }

    /// Whether it says that all is well.
    pub fn is_success(&self) -> bool {
        matches!(self.status, 200..=299)
    }
}

/// A number of digits only, as HTTP wants it: no sign, no blank.
pub fn digits(text: &str) -> Option<u64> {
    (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()))
        .then(|| text.parse().ok())
        .flatten()
}

fn nonsense(what: &'static str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the response makes no sense: {what}")).retryable(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Option<(ResponseHead, usize)>> {
        ResponseHead::parse(text.as_bytes(), false)
    }

    #[test]
    fn heads_and_their_framing() {
        let (head, len) = parse("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nETag: \"x\"\r\n\r\nhello")
            .unwrap()
            .unwrap();
        assert_eq!(
            (head.status, head.framing, head.closes, len),
            (200, BodyFraming::Length(5), false, 49)
        );
        assert_eq!(
            (head.header("etag"), head.header("e"), head.header("content-length")),
            (Some("\"x\""), None, Some("5"))
        );
        assert_eq!(head.etag(), head.header("etag"));
        let (twice, _) =
            parse("HTTP/1.1 200 OK\r\nx: y\r\nETAG:  \"a\" \r\netag: b\r\n\r\n").unwrap().unwrap();
        assert_eq!((twice.etag(), twice.header("etag")), (Some("\"a\""), Some("\"a\"")));
        assert_eq!(
            parse("HTTP/1.1 200 OK\r\netag: \u{e9}\r\n\r\n").unwrap().unwrap().0.etag(),
            Some("\u{e9}")
        );
        let (head, _) =
            parse("HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\nconnection: x, Close\r\n\r\n")
                .unwrap()
                .unwrap();
        assert_eq!((head.framing, head.closes), (BodyFraming::Chunked, true));
        let (head, _) = parse("HTTP/1.0 200 OK\r\n\r\n").unwrap().unwrap();
        assert_eq!((head.framing, head.closes), (BodyFraming::UntilClose, true));
        let (head, _) = ResponseHead::parse(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", true)
            .unwrap()
            .unwrap();
        assert_eq!(head.framing, BodyFraming::Length(0));
        assert!(parse("HTTP/1.1 200 OK\r\nContent-").unwrap().is_none());
    }

    #[test]
    fn fields_are_a_head_too() {
        let of = |fields: &[(&'static str, &str)], bodiless| {
            let mut map = http::HeaderMap::new();
            for (name, value) in fields {
                map.append(*name, value.parse().unwrap());
            }
            ResponseHead::of(200, &map, bodiless)
        };
        let head = of(&[("content-length", "5"), ("etag", "\"x\"")], false).unwrap();
        assert_eq!(
            (head.framing, head.header("etag"), head.header("Content-Length")),
            (BodyFraming::Length(5), Some("\"x\""), Some("5"))
        );
        assert_eq!(head.etag(), Some("\"x\""));
        assert_eq!(of(&[("content-length", "5")], true).unwrap().framing, BodyFraming::Length(0));
        assert_eq!(of(&[], false).unwrap().framing, BodyFraming::Chunked);
        for fields in
            [&[("content-length", "5"), ("content-length", "6")][..], &[("content-length", "+5")]]
        {
            assert_eq!(of(fields, false).unwrap_err().kind(), ErrorKind::Corrupt);
        }
    }

    #[test]
    fn contradictions_are_errors() {
        for headers in [
            "content-length: 5\r\ncontent-length: 6",
            "content-length: -5",
            "content-length: +5",
            "content-length: ",
            "content-length: 99999999999999999999",
            "content-length: 5\r\ntransfer-encoding: chunked",
            "transfer-encoding: gzip, chunked",
            "transfer-encoding: chunked\r\ntransfer-encoding: identity",
            "transfer-encoding: identity\r\ntransfer-encoding: chunked",
            "transfer-encoding: chunked\r\nx: y\r\nTransfer-Encoding: chunked",
        ] {
            let error = parse(&format!("HTTP/1.1 200 OK\r\n{headers}\r\n\r\n")).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{headers}");
        }
        assert!(parse("<html>").is_err());
        assert!(ResponseHead::parse(&[b'a'; HEAD_BYTES_MAX], false).is_err());
        let endless = format!("HTTP/1.1 200 OK\r\na: {}", "b".repeat(HEAD_BYTES_MAX));
        assert!(parse(&endless).is_err());
    }
}
