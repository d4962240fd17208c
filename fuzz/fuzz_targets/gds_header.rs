//! The header of LMCache's GDS files: any bytes are answered, and what is read is written so that it reads as the same. The length is made
//! good first for half of the inputs, so that the JSON behind it is reached.
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
    // Texts written without anything but ASCII may take more room than they came in.
    if let Ok(again) = header.encode() {
        assert_eq!(again.len(), GDS_HEADER_BYTES);
        assert_eq!(GdsHeader::decode(&again), Ok(header));
    }
}
