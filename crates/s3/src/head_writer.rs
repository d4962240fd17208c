//! Writes the head of a request as HTTP/1.1 lines or HTTP/2 fields. Both carry the same signature.

use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use zeroize::Zeroizing;

use crate::error::{Error, ErrorKind, Result};

/// What a head is written into, in this order.
pub trait HeadWriter {
    /// Method, path and canonical query. On the wire a name without a value carries no `=`, though
    /// it is signed with one.
    fn line(&mut self, method: &'static str, path: &str, query: &str);
    /// One header, its name in lower case, its value written by `value`.
    fn header(&mut self, name: &str, value: &dyn Fn(&mut Vec<u8>));
    /// That was all.
    fn end(&mut self) {}
}

/// HTTP/1.1, without an allocation of its own.
pub struct Http1Head<'a>(pub &'a mut Vec<u8>);

impl HeadWriter for Http1Head<'_> {
    fn line(&mut self, method: &'static str, path: &str, query: &str) {
        put(self.0, &[method, " "]);
        target(self.0, path, query);
        put(self.0, &[" HTTP/1.1\r\n"]);
    }

    fn header(&mut self, name: &str, value: &dyn Fn(&mut Vec<u8>)) {
        put(self.0, &[name, ": "]);
        value(self.0);
        put(self.0, &["\r\n"]);
    }

    fn end(&mut self) {
        put(self.0, &["\r\n"]);
    }
}

/// HTTP/2.
#[derive(Default)]
pub struct Http2Head {
    method: Method,
    target: Vec<u8>,
    map: HeaderMap,
    value: Zeroizing<Vec<u8>>,
    refused: bool,
}

impl HeadWriter for Http2Head {
    fn line(&mut self, method: &'static str, path: &str, query: &str) {
        target(&mut self.target, path, query);
        match Method::from_bytes(method.as_bytes()) {
            Ok(method) => self.method = method,
            Err(_) => self.refused = true,
        }
    }

    fn header(&mut self, name: &str, value: &dyn Fn(&mut Vec<u8>)) {
        // It is signed as `host`, and goes as `:authority`.
        if name == "host" {
            return;
        }
        // One buffer for all values, wiped at the end: one of them is the token.
        self.value.clear();
        value(&mut self.value);
        match (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_bytes(&self.value)) {
            (Ok(name), Ok(mut value)) => {
                // Tokens are neither printed nor kept in tables for compression.
                value.set_sensitive(name.as_str().ends_with("-token"));
                self.map.append(name, value);
            }
            // Reported by `request`, since the writer's methods cannot fail.
            _ => self.refused = true,
        }
    }
}

impl Http2Head {
    /// The request.
    pub fn request(self, scheme: &str, authority: &str) -> Result<http::Request<()>> {
        let uri =
            Uri::builder().scheme(scheme).authority(authority).path_and_query(self.target).build();
        let invalid = || {
            Error::new(ErrorKind::Invalid, "the request cannot be said in HTTP/2: set http2 to off")
        };
        let mut request = http::Request::new(());
        *request.uri_mut() = uri.map_err(|e| invalid().with_source(e))?;
        *request.method_mut() = self.method;
        *request.headers_mut() = self.map;
        *request.version_mut() = http::Version::HTTP_2;
        if self.refused { Err(invalid()) } else { Ok(request) }
    }
}

fn target(out: &mut Vec<u8>, path: &str, query: &str) {
    put(out, &[path]);
    for (at, pair) in query.split('&').filter(|pair| !pair.is_empty()).enumerate() {
        put(out, &[if at == 0 { "?" } else { "&" }, pair.strip_suffix('=').unwrap_or(pair)]);
    }
}

/// Appends text.
pub fn put(out: &mut Vec<u8>, pieces: &[&str]) {
    pieces.iter().for_each(|piece| out.extend_from_slice(piece.as_bytes()));
}

/// Appends a number without an allocation.
pub fn decimal(out: &mut Vec<u8>, mut number: usize) {
    let start = out.len();
    loop {
        out.push(b'0' + u8::try_from(number % 10).expect("a digit"));
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out[start..].reverse();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        for number in [0, 7, 10, 65_536, usize::MAX] {
            let mut out = Vec::new();
            decimal(&mut out, number);
            assert_eq!(out, number.to_string().as_bytes());
        }
    }

    #[test]
    fn tokens_are_sensitive() {
        let mut fields = Http2Head::default();
        for name in ["x-amz-security-token", "x-amz-s3session-token", "x-amz-date"] {
            fields.header(name, &|out| put(out, &["hush"]));
        }
        let sensitive: Vec<bool> = fields.map.values().map(HeaderValue::is_sensitive).collect();
        assert_eq!(sensitive, [true, true, false]);
        assert!(!format!("{:?}", fields.map.get("x-amz-security-token")).contains("hush"));
    }

    #[test]
    fn paths_go_over_http2_as_they_are_signed() {
        for path in [
            "/b/n//dbl",
            "//lead",
            "/b/n/./dot",
            "/b/n/../up",
            "/b/a%20b",
            "/b/~!*'()",
            "/b/%3Fx%3D1",
        ] {
            let mut fields = Http2Head::default();
            fields.line("GET", path, "list-type=2&uploads=");
            fields.header("x-amz-meta-a", &|out| put(out, &["b c"]));
            let request = fields.request("https", "h:9000").unwrap();
            assert_eq!(request.uri().path(), path);
            assert_eq!(request.uri().query(), Some("list-type=2&uploads"));
        }
    }
}
