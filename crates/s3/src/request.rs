//! One request as the operations describe it, and how it goes onto the wire.

use zeroize::Zeroizing;

use crate::creds::Credentials;
use crate::endpoint::{Endpoint, Style};
use crate::error::{Error, ErrorKind, Result};
use crate::head_writer::{HeadWriter, Http1Head, Http2Head, decimal, put};
use crate::http::Transport;
use crate::percent_encode;
use crate::retry::RequestKind;
use crate::sign::{EMPTY_SHA256, Headers, Parts, UNSIGNED, sha256_hex};
use crate::time_formats::Stamp;

/// The longest key that S3 allows, in bytes.
pub const KEY_BYTES_MAX: usize = 1024;

/// What a head has besides: names of headers, host, bucket, scope, signature.
const HEAD_BYTES: usize = 2048;

/// Whose credentials sign on S3 Express, where data is signed by a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Signer {
    /// The session's.
    Data,
    /// The base credentials.
    Base,
}

/// What the `x-amz-content-sha256` header says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Payload {
    /// There is no body, or a small one whose hash costs nothing.
    Hashed,
    /// A bulk body: its hash only where the store insists.
    Bulk,
}

/// What signs one attempt.
#[derive(Clone, Copy, Debug)]
pub struct Signing<'a> {
    /// Where it goes.
    pub endpoint: &'a Endpoint,
    /// Whose name it bears.
    pub credentials: &'a Credentials,
    /// When.
    pub stamp: &'a Stamp,
    /// Whether a bulk body's hash is signed.
    pub sign_body: bool,
}

/// A request, the same for every attempt.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// `GET`, `PUT`, ...
    pub method: &'static str,
    /// The object, or none for the bucket itself.
    pub key: Option<&'a str>,
    /// Names and values, sorted by name.
    pub query: &'a [(&'a str, &'a str)],
    /// Headers to send and sign, lower-case.
    pub headers: &'a [(&'a str, &'a str)],
    /// The body.
    pub body: &'a [u8],
    /// Who signs.
    pub signer: Signer,
    /// How the body is signed.
    pub payload: Payload,
    /// Whether it goes where directory buckets are made.
    pub to_control: bool,
    /// Whether it goes to the configured endpoint, wherever others go.
    pub to_configured: bool,
}

impl<'a> Request<'a> {
    /// Whether a success is an object, or what is to be said of one.
    pub fn reads_an_object(&self) -> bool {
        matches!(self.method, "GET" | "HEAD") && self.key.is_some() && self.query.is_empty()
    }

    /// One without query, headers and body.
    pub fn new(method: &'static str, key: Option<&'a str>) -> Self {
        let signer = Signer::Data;
        let payload = Payload::Hashed;
        Request {
            method,
            key,
            query: &[],
            headers: &[],
            body: &[],
            signer,
            payload,
            to_control: false,
            to_configured: false,
        }
    }

    /// What it is for.
    pub fn kind(&self) -> RequestKind {
        match (self.method, self.key) {
            ("GET" | "HEAD", Some(_)) => RequestKind::Read,
            ("DELETE", Some(_)) | ("POST", None) => RequestKind::Delete,
            (_, Some(_)) => RequestKind::Write,
            _ if self.query == [("session", "")] => RequestKind::Session,
            _ => RequestKind::Control,
        }
    }

    /// Whether it can be sent at all.
    pub fn check(&self) -> Result<()> {
        let invalid = |what: &'static str| Err(Error::new(ErrorKind::Invalid, what));
        match self.key {
            Some("") => return invalid("an object's key cannot be empty"),
            Some(key) if key.len() > KEY_BYTES_MAX => {
                return invalid("an object's key has at most 1024 bytes");
            }
            _ => {}
        }
        let printable = |value: &str| value.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        let token = |name: &str| {
            name.bytes().all(|byte| {
                byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte)
            })
        };
        match self.headers.iter().all(|(name, value)| token(name) && printable(value)) {
            true => Ok(()),
            false => invalid("metadata has lower-case names and printable ASCII values"),
        }
    }

    /// Writes its head for the transport that it takes.
    pub fn write(&self, transport: &mut Transport, signing: &Signing<'_>) -> Result<()> {
        match transport {
            Transport::Http1(conn) => {
                conn.out.clear();
                self.reserve_head(&mut conn.out, signing.credentials);
                self.sign(
                    &mut Http1Head(&mut conn.out),
                    &conn.target.authority,
                    &mut conn.path,
                    signing,
                )
            }
            Transport::Http2(stream) => {
                let mut fields = Http2Head::default();
                self.sign(&mut fields, stream.authority(), &mut String::new(), signing)?;
                stream.request = Some(fields.request(stream.scheme(), stream.authority())?);
                Ok(())
            }
        }
    }

    /// Reserves space for a whole head with a token in it, before it is written: a buffer that
    /// grows leaves copies behind.
    fn reserve_head(&self, out: &mut Zeroizing<Vec<u8>>, credentials: &Credentials) {
        let Some(token) = credentials.token() else { return };
        let own = |(name, value): &(&str, &str)| name.len() + value.len();
        let said: usize = self.headers.iter().chain(self.query).map(own).sum();
        // Behind the head it stands once more, as it is signed. Of a key or a query every byte may
        // take three.
        let bytes = 2 * (token.len() + 3 * (said + self.key.map_or(0, str::len)) + HEAD_BYTES);
        if out.capacity() < bytes {
            *out = Zeroizing::new(Vec::with_capacity(bytes));
        }
    }

    fn sign(
        &self,
        form: &mut impl HeadWriter,
        authority: &str,
        path: &mut String,
        signing: &Signing<'_>,
    ) -> Result<()> {
        let Signing { endpoint, credentials, stamp, sign_body } = *signing;
        // Path and query are encoded once, and these bytes are both signed and sent.
        let split = self.target(path, endpoint);
        let (path, query) = path.split_at(split);
        let hash;
        // Bulk bodies are not hashed by default: the checksum header and TLS protect them, at a
        // fraction of the cost.
        let payload = match self.payload {
            _ if self.body.is_empty() => EMPTY_SHA256,
            Payload::Bulk if !sign_body => UNSIGNED,
            _ => {
                hash = sha256_hex(self.body);
                &hash
            }
        };
        // S3 Express distinguishes a session from temporary credentials by the header's name.
        let token_name = if endpoint.service() == "s3express" && self.signer == Signer::Data {
            "x-amz-s3session-token"
        } else {
            "x-amz-security-token"
        };
        let token = credentials.token().map(|token| (token_name, token));
        let own = [
            ("host", authority),
            ("x-amz-content-sha256", payload),
            ("x-amz-date", stamp.as_str()),
        ];
        let mut headers = Headers::default();
        for (name, value) in own.into_iter().chain(token).chain(self.headers.iter().copied()) {
            if !headers.insert(name, value) {
                return Err(Error::new(ErrorKind::Invalid, "too many headers: send less metadata"));
            }
        }
        form.line(self.method, path, query);
        headers
            .as_slice()
            .iter()
            .for_each(|(name, value)| form.header(name, &|out| put(out, &[value])));
        // Not signed: proxies may change it. Some stores refuse a PUT without it, also an empty
        // one.
        if !self.body.is_empty() || matches!(self.method, "PUT" | "POST") {
            form.header("content-length", &|out| decimal(out, self.body.len()));
        }
        let parts = Parts { method: self.method, path, query, headers: &headers, payload };
        form.header("authorization", &|out| {
            credentials.authorize(out, &parts, (endpoint.region(), endpoint.service()), stamp)
        });
        form.end();
        Ok(())
    }

    /// Writes path and canonical query into `text`; returns where the query begins.
    fn target(&self, text: &mut String, endpoint: &Endpoint) -> usize {
        text.clear();
        text.push('/');
        if endpoint.style() == Style::Path {
            text.push_str(endpoint.bucket());
            if self.key.is_some() {
                text.push('/');
            }
        }
        percent_encode::path(text, self.key.unwrap_or_default());
        let split = text.len();
        for (at, (name, value)) in self.query.iter().enumerate() {
            if at > 0 {
                text.push('&');
            }
            percent_encode::query(text, name);
            text.push('=');
            percent_encode::query(text, value);
        }
        split
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_requests_are_for() {
        let kind = |method, key, query| Request { query, ..Request::new(method, key) }.kind();
        for (method, query, is) in [
            ("GET", &[][..], RequestKind::Read),
            ("HEAD", &[], RequestKind::Read),
            ("PUT", &[], RequestKind::Write),
            ("POST", &[("uploads", "")], RequestKind::Write),
            ("DELETE", &[], RequestKind::Delete),
            ("DELETE", &[("uploadId", "i")], RequestKind::Delete),
        ] {
            assert_eq!(kind(method, Some("k"), query), is, "{method} {query:?}");
        }
        for (method, query, is) in [
            ("GET", &[("session", "")], RequestKind::Session),
            ("GET", &[("list-type", "2")], RequestKind::Control),
            ("POST", &[("delete", "")], RequestKind::Delete),
        ] {
            assert_eq!(kind(method, None, query), is, "{method} {query:?}");
        }
        assert_eq!(kind("HEAD", None, &[]), RequestKind::Control);
    }

    #[test]
    fn a_head_with_a_token_in_it_never_grows_out_of_its_memory() {
        let endpoint = crate::BucketAddress::new("http://127.0.0.1:9000")
            .bucket("bucket")
            .region("us-east-1")
            .resolve()
            .unwrap();
        let key = "\u{e9}".repeat(KEY_BYTES_MAX / 2);
        let meta = "m".repeat(2000);
        for len in [1, 1500, 20_000] {
            let who = Credentials::temporary("AKID", "s", Some("t".repeat(len)), None);
            let signing = Signing {
                endpoint: &endpoint,
                credentials: &who,
                stamp: &Stamp::of(0),
                sign_body: false,
            };
            let headers = [("x-amz-meta-kvtier", meta.as_str()), ("range", "bytes=0-1")];
            let request = Request { headers: &headers, ..Request::new("GET", Some(&key)) };
            let mut out = Zeroizing::new(Vec::new());
            request.reserve_head(&mut out, &who);
            let capacity = out.capacity();
            request
                .sign(&mut Http1Head(&mut out), "127.0.0.1:9000", &mut String::new(), &signing)
                .unwrap();
            assert_eq!(out.capacity(), capacity, "a token of {len} bytes");
        }
    }

    #[test]
    fn what_would_break_the_wire_is_refused() {
        let with = |name: &'static str, value: &'static str| {
            Request { headers: &[(name, value)], ..Request::new("PUT", Some("k")) }.check().is_ok()
        };
        assert!(with("x-amz-meta-a", "b c~"));
        assert!(!with("x-amz-meta-a", "b\r\nx: y"));
        assert!(!with("x-amz-meta-a\r\n", "b"));
        assert!(!with("X-Amz", "b"));
        assert!(Request::new("GET", Some("")).check().is_err());
        assert!(Request::new("GET", Some(&"k".repeat(1025))).check().is_err());
        assert!(Request::new("GET", Some(&"k".repeat(1024))).check().is_ok());
    }
}
