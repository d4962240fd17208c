//! LZ4 payloads: decoding any bytes stays within the buffer, and every payload survives a round trip.
#![no_main]

use kvtier_codec::{Codec, ErrorKind, Lz4};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u16, &[u8])| {
    let (raw_len, bytes) = input;
    let mut raw = vec![0; raw_len.into()];
    if let Err(error) = Lz4.decode(bytes, &mut raw) {
        assert_eq!(error.kind(), ErrorKind::Corrupt);
    }
    let mut stored = vec![0; Lz4.bound(bytes.len()).unwrap()];
    let len = Lz4.encode(bytes, &mut stored).unwrap();
    let mut back = vec![0; bytes.len()];
    Lz4.decode(&stored[..len], &mut back).unwrap();
    assert_eq!(back, bytes);
});
