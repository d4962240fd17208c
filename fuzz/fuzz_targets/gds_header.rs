//! The header of LMCache's GDS files: decoding never panics, and a decoded header encodes to one that decodes to the same. Each input is also
//! decoded with a correct length, which covers the JSON after it.
#![no_main]

use kvtier_key::{GDS_HEADER_BYTES, GdsHeader};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    check(bytes);
    check(&[&(bytes.len() as u64).to_le_bytes(), bytes].concat());
});

fn check(bytes: &[u8]) {
    let Ok(header) = GdsHeader::decode(bytes) else { return };
    assert!(header.payload_bytes().is_some());
    // Escaped to ASCII, a text may be longer than before and no longer fit.
    if let Ok(again) = header.encode() {
        assert_eq!(again.len(), GDS_HEADER_BYTES);
        assert_eq!(GdsHeader::decode(&again), Ok(header));
    }
}
