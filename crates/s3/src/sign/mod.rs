//! Signature version 4 in headers, for S3.
//!
//! The derived key is kept per day, region and service; a request costs a handful of SHA-256 blocks and no allocation beyond
//! the caller's buffer. Nothing is encoded here: the path and query that go onto the wire are the bytes that are signed.

mod hmac;
mod key;

use sha2::{Digest, Sha256};

use crate::time::Stamp;
pub use key::{Keyring, Scope};

/// The hash of an empty body.
pub const EMPTY_SHA256: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
/// The body is not covered by the signature.
pub const UNSIGNED: &str = "UNSIGNED-PAYLOAD";

const HEX: &[u8; 16] = b"0123456789abcdef";

/// The most headers that one request signs.
const HEADERS_MAX: usize = 24;

/// The headers to sign, sorted by name, on the stack.
#[derive(Clone, Copy, Debug)]
pub struct Headers<'a> {
    items: [(&'a str, &'a str); HEADERS_MAX],
    len: usize,
}

impl Default for Headers<'_> {
    fn default() -> Self {
        Headers { items: [("", ""); HEADERS_MAX], len: 0 }
    }
}

impl<'a> Headers<'a> {
    /// Adds one, its name in lower case; returns false when there is no room.
    #[must_use]
    pub fn insert(&mut self, name: &'a str, value: &'a str) -> bool {
        if self.len == HEADERS_MAX {
            return false;
        }
        let at = self.as_slice().partition_point(|(other, _)| *other <= name);
        self.items.copy_within(at..self.len, at + 1);
        self.items[at] = (name, value);
        self.len += 1;
        true
    }

    /// All of them in order.
    pub fn as_slice(&self) -> &[(&'a str, &'a str)] {
        &self.items[..self.len]
    }
}

/// What is signed besides the scope.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a> {
    /// `GET`, `PUT`, ...
    pub method: &'a str,
    /// The encoded path, as it goes onto the wire.
    pub path: &'a str,
    /// The encoded query, sorted, every name with a `=`.
    pub query: &'a str,
    /// `host` and every other header to sign, among them `x-amz-date` and `x-amz-content-sha256`.
    pub headers: &'a Headers<'a>,
    /// The value of `x-amz-content-sha256`.
    pub payload: &'a str,
}

/// Appends the value of the `authorization` header to `out`.
pub fn authorize(out: &mut Vec<u8>, parts: &Parts<'_>, scope: &Scope<'_>, stamp: &Stamp, key: &[u8; 32]) {
    let mut mac = hmac::Hmac::new(key);
    mac.update(b"AWS4-HMAC-SHA256\n");
    mac.update(stamp.text());
    mac.update(b"\n");
    scope.write(stamp, &mut |bytes| mac.update(bytes));
    mac.update(b"\n");
    mac.update(&hex_of(&canonical_hash(parts)));

    let mut put = |bytes: &[u8]| out.extend_from_slice(bytes);
    put(b"AWS4-HMAC-SHA256 Credential=");
    put(scope.access_key.as_bytes());
    put(b"/");
    scope.write(stamp, &mut put);
    put(b", SignedHeaders=");
    signed_names(parts.headers, &mut put);
    put(b", Signature=");
    put(&hex_of(&mac.finish()));
}

fn canonical_hash(parts: &Parts<'_>) -> [u8; 32] {
    let mut sha = Sha256::new();
    for line in [parts.method, parts.path, parts.query] {
        sha.update(line);
        sha.update(b"\n");
    }
    for (name, value) in parts.headers.as_slice() {
        sha.update(name);
        sha.update(b":");
        let mut words = value.split_ascii_whitespace();
        sha.update(words.next().unwrap_or_default());
        for word in words {
            sha.update(b" ");
            sha.update(word);
        }
        sha.update(b"\n");
    }
    sha.update(b"\n");
    signed_names(parts.headers, &mut |bytes| sha.update(bytes));
    sha.update(b"\n");
    sha.update(parts.payload);
    sha.finalize().into()
}

fn signed_names(headers: &Headers<'_>, feed: &mut impl FnMut(&[u8])) {
    for (at, (name, _)) in headers.as_slice().iter().enumerate() {
        if at > 0 {
            feed(b";");
        }
        feed(name.as_bytes());
    }
}

fn hex_of(bytes: &[u8; 32]) -> [u8; 64] {
    let mut out = [0; 64];
    for (pair, byte) in out.chunks_exact_mut(2).zip(bytes) {
        pair[0] = HEX[usize::from(byte >> 4)];
        pair[1] = HEX[usize::from(byte & 15)];
    }
    out
}

/// The lower-case hex SHA-256 of `body`.
pub fn sha256_hex(body: &[u8]) -> String {
    hex_of(&Sha256::digest(body).into()).iter().map(|byte| char::from(*byte)).collect()
}

#[cfg(test)]
mod botocore;
#[cfg(test)]
mod tests;
