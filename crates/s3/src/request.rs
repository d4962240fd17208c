//! One request as the operations describe it, and how it goes onto the wire.

use crate::creds::Credentials;
use crate::encode;
use crate::endpoint::{Endpoint, Style};
use crate::error::{Error, ErrorKind, Result};
use crate::http::Conn;
use crate::sign::{EMPTY_SHA256, Headers, Parts, UNSIGNED, sha256_hex};
use crate::time::Stamp;

/// The longest key that S3 allows, in bytes.
pub const KEY_BYTES_MAX: usize = 1024;

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
}

impl<'a> Request<'a> {
    /// One without query, headers and body.
    pub fn new(method: &'static str, key: Option<&'a str>) -> Self {
        let (signer, payload) = (Signer::Data, Payload::Hashed);
        Request { method, key, query: &[], headers: &[], body: &[], signer, payload }
    }

    /// Whether it can be sent at all.
    pub fn check(&self) -> Result<()> {
        let invalid = |what: &'static str| Err(Error::new(ErrorKind::Invalid, what));
        match self.key {
            Some("") => return invalid("an object's key cannot be empty"),
            Some(key) if key.len() > KEY_BYTES_MAX => return invalid("an object's key has at most 1024 bytes"),
            _ => {}
        }
        let printable = |value: &str| value.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        let token = |name: &str| {
            name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte))
        };
        match self.headers.iter().all(|(name, value)| token(name) && printable(value)) {
            true => Ok(()),
            false => invalid("metadata has lower-case names and printable ASCII values"),
        }
    }

    /// Writes its head into `conn.out`.
    pub fn write(
        &self,
        conn: &mut Conn,
        site: &Endpoint,
        who: &Credentials,
        stamp: &Stamp,
        sign_body: bool,
    ) -> Result<()> {
        let Conn { out, path, target, .. } = conn;
        let split = self.target(path, site);
        let (path, query) = path.split_at(split);
        let hash;
        let payload = match self.payload {
            _ if self.body.is_empty() => EMPTY_SHA256,
            Payload::Bulk if !sign_body => UNSIGNED,
            _ => {
                hash = sha256_hex(self.body);
                &hash
            }
        };
        let token_name = if site.service() == "s3express" && self.signer == Signer::Data {
            "x-amz-s3session-token"
        } else {
            "x-amz-security-token"
        };
        let token = who.token().map(|token| (token_name, token));
        let own =
            [("host", target.authority.as_str()), ("x-amz-content-sha256", payload), ("x-amz-date", stamp.as_str())];
        let mut headers = Headers::default();
        for (name, value) in own.into_iter().chain(token).chain(self.headers.iter().copied()) {
            if !headers.insert(name, value) {
                return Err(Error::new(ErrorKind::Invalid, "too many headers: send less metadata"));
            }
        }
        out.clear();
        self.write_line(out, path, query);
        for (name, value) in headers.as_slice() {
            put(out, &[name, ": ", value, "\r\n"]);
        }
        if !self.body.is_empty() || matches!(self.method, "PUT" | "POST") {
            put(out, &["content-length: "]);
            decimal(out, self.body.len());
            put(out, &["\r\n"]);
        }
        put(out, &["authorization: "]);
        let parts = Parts { method: self.method, path, query, headers: &headers, payload };
        who.authorize(out, &parts, (site.region(), site.service()), stamp);
        put(out, &["\r\n\r\n"]);
        Ok(())
    }

    /// Writes path and canonical query into `text`; returns where the query begins.
    fn target(&self, text: &mut String, site: &Endpoint) -> usize {
        text.clear();
        text.push('/');
        if site.style() == Style::Path {
            text.push_str(site.bucket());
            if self.key.is_some() {
                text.push('/');
            }
        }
        encode::path(text, self.key.unwrap_or_default());
        let split = text.len();
        for (at, (name, value)) in self.query.iter().enumerate() {
            if at > 0 {
                text.push('&');
            }
            encode::query(text, name);
            text.push('=');
            encode::query(text, value);
        }
        split
    }

    /// On the wire a name without a value carries no `=`, though it is signed with one.
    fn write_line(&self, out: &mut Vec<u8>, path: &str, query: &str) {
        put(out, &[self.method, " ", path]);
        for (at, pair) in query.split('&').filter(|pair| !pair.is_empty()).enumerate() {
            put(out, &[if at == 0 { "?" } else { "&" }, pair.strip_suffix('=').unwrap_or(pair)]);
        }
        put(out, &[" HTTP/1.1\r\n"]);
    }
}

fn put(out: &mut Vec<u8>, pieces: &[&str]) {
    pieces.iter().for_each(|piece| out.extend_from_slice(piece.as_bytes()));
}

/// Appends a number without an allocation.
fn decimal(out: &mut Vec<u8>, mut number: usize) {
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
