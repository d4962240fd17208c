//! Responses of an S3 server: heads, listings, errors, sessions, bodies of any length. Nothing panics, and no byte is written outside the
//! given memory.
#![no_main]

use kvtier_s3::fuzzing;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    fuzzing::head(bytes);
    let framed = [b"HTTP/1.1 206 Partial\r\n", bytes, b"\r\n\r\n"].concat();
    fuzzing::head(&framed);
    fuzzing::xml(bytes);
    let listing =
        [b"<ListBucketResult><EncodingType>url</EncodingType>", bytes, b"</ListBucketResult>"]
            .concat();
    fuzzing::xml(&listing);
    let deleted = [b"<DeleteResult>", bytes, b"</DeleteResult>"].concat();
    fuzzing::xml(&deleted);
    kvtier_s3_tier::fuzz_manifest(bytes);
    fuzzing::sink(bytes, usize::from(bytes.first().copied().unwrap_or_default()));
});
