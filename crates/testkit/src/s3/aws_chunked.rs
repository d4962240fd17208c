//! Uploads in chunks (`aws-chunked`), as the SDKs of AWS send them: each chunk has its length in
//! hexadecimal digits in a line of its own, and headers may follow the last.

use super::wire::WireRequest;

/// What `x-amz-content-sha256` begins with for a body in chunks. The head's signature does not cover
/// the body then.
pub const STREAMING: &str = "STREAMING-";

/// The object in a body; the body itself unless it is in chunks. `None` if the chunks are malformed
/// or do not have the length that the request states.
pub fn decode(request: &WireRequest, body: Vec<u8>) -> Option<Vec<u8>> {
    let hash = request.header("x-amz-content-sha256").unwrap_or_default();
    if !hash.starts_with(STREAMING) {
        return Some(body);
    }
    let stated = request.header("x-amz-decoded-content-length")?.parse().ok()?;
    let object = join(&body)?;
    (object.len() == stated).then_some(object)
}

fn join(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut object = Vec::with_capacity(rest.len());
    loop {
        let end = rest.windows(2).position(|two| two == b"\r\n")?;
        let line = std::str::from_utf8(&rest[..end]).ok()?;
        // A signature of the chunk may follow, which is not checked.
        let len = usize::from_str_radix(line.split(';').next()?, 16).ok()?;
        rest = &rest[end + 2..];
        if len == 0 {
            return Some(object);
        }
        object.extend_from_slice(rest.get(..len)?);
        rest = rest.get(len..)?.strip_prefix(b"\r\n")?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_joined_and_torn_ones_are_refused() {
        let body =
            b"5;chunk-signature=ab\r\nhello\r\n1\r\n!\r\n0\r\nx-amz-checksum-crc32:AAAA\r\n\r\n";
        assert_eq!(join(body).as_deref(), Some(&b"hello!"[..]));
        for torn in [
            &b""[..],
            b"5\r\nhell",
            b"5\r\nhello",
            b"5\r\nhello\r\n",
            b"g\r\n",
            b"fffffffffffffff\r\nx",
        ] {
            assert_eq!(join(torn), None, "{torn:?}");
        }
    }
}
