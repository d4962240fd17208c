//! Signature version 4 in headers, for S3.
//!
//! The derived key is kept per day, region and service; a request costs a handful of SHA-256 blocks
//! and no allocation beyond the caller's buffer. Nothing is encoded here: the path and query that
//! go onto the wire are the bytes that are signed.

mod hmac;
mod key;

use sha2::{Digest, Sha256};

use crate::time_formats::Stamp;
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
    /// Adds a header, its name in lower case. Returns false when the list is full.
    #[must_use]
    pub fn insert(&mut self, name: &'a str, value: &'a str) -> bool {
        if self.len == HEADERS_MAX {
            return false;
        }
        // Sorted as they come: the signature needs that order, and there are few.
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
pub fn authorize(
    out: &mut Vec<u8>,
    parts: &Parts<'_>,
    scope: &Scope<'_>,
    stamp: &Stamp,
    key: &[u8; 32],
) {
    // What is hashed is written behind what is there and taken away again: one long hash costs less
    // than many short pieces.
    let start = out.len();
    canonical(out, parts);
    let hash = hex_of(&Sha256::digest(&out[start..]).into());
    out.truncate(start);
    for piece in [&b"AWS4-HMAC-SHA256\n"[..], stamp.text(), b"\n"] {
        out.extend_from_slice(piece);
    }
    scope.write(stamp, out);
    out.push(b'\n');
    out.extend_from_slice(&hash);
    let signature = hmac::hmac(key, &out[start..]);
    out.truncate(start);

    out.extend_from_slice(b"AWS4-HMAC-SHA256 Credential=");
    out.extend_from_slice(scope.access_key.as_bytes());
    out.push(b'/');
    scope.write(stamp, out);
    out.extend_from_slice(b", SignedHeaders=");
    signed_names(out, parts.headers);
    out.extend_from_slice(b", Signature=");
    out.extend_from_slice(&hex_of(&signature));
}

fn canonical(out: &mut Vec<u8>, parts: &Parts<'_>) {
    for line in [parts.method, parts.path, parts.query] {
        out.extend_from_slice(line.as_bytes());
        out.push(b'\n');
    }
    for (name, value) in parts.headers.as_slice() {
        out.extend_from_slice(name.as_bytes());
        out.push(b':');
        // Few values have blanks, and to look at all bytes at once is cheap.
        match value.bytes().fold(false, |blank, byte| blank | (byte <= b' ')) {
            true => words(out, value),
            false => out.extend_from_slice(value.as_bytes()),
        }
        out.push(b'\n');
    }
    out.push(b'\n');
    signed_names(out, parts.headers);
    out.push(b'\n');
    out.extend_from_slice(parts.payload.as_bytes());
}

/// The words of `value` with one blank between them.
fn words(out: &mut Vec<u8>, value: &str) {
    for (at, word) in value.split_ascii_whitespace().enumerate() {
        if at > 0 {
            out.push(b' ');
        }
        out.extend_from_slice(word.as_bytes());
    }
}

fn signed_names(out: &mut Vec<u8>, headers: &Headers<'_>) {
    for (at, (name, _)) in headers.as_slice().iter().enumerate() {
        if at > 0 {
            out.push(b';');
        }
        out.extend_from_slice(name.as_bytes());
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
mod aws_suite_tests;
#[cfg(test)]
mod botocore_tests;
#[cfg(test)]
mod tests;
