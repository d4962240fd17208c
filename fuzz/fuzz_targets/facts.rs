//! The facts record: any bytes are answered, and what decodes encodes to the same bytes. The checksum is made good first
//! for half of the inputs, so that the fields behind it are reached.
#![no_main]

use kvtier_key::{BlockSums, Facts};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    check(bytes);
    let mut whole = bytes.to_vec();
    if whole.len() > 148 {
        whole[..8].copy_from_slice(b"KVTFACTS");
        let len = whole.len() as u16;
        whole[8..12].copy_from_slice(&[1, 0, len as u8, (len >> 8) as u8]);
        let body = whole.len() - 4;
        let crc = BlockSums::from_bytes(&whole[..body]).whole();
        whole[body..].copy_from_slice(&crc.to_le_bytes());
        check(&whole);
    }
});

fn check(bytes: &[u8]) {
    if let Ok((facts, len)) = Facts::decode_prefix(bytes) {
        assert_eq!(facts.encode(), bytes[..len]);
    }
}
