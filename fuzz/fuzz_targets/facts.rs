//! The facts record: decoding never panics, and a decoded record encodes to the same bytes. Each input is also decoded with a correct
//! checksum, which covers the fields after it.
#![no_main]

use kvtier_key::{BlockSums, Facts};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    check(bytes);
    let mut fixed = bytes.to_vec();
    if fixed.len() > 148 {
        fixed[..8].copy_from_slice(b"KVTFACTS");
        let len = fixed.len() as u16;
        fixed[8..12].copy_from_slice(&[1, 0, len as u8, (len >> 8) as u8]);
        let body = fixed.len() - 4;
        let crc = BlockSums::from_bytes(&fixed[..body]).whole();
        fixed[body..].copy_from_slice(&crc.to_le_bytes());
        check(&fixed);
    }
});

fn check(bytes: &[u8]) {
    if let Ok((facts, len)) = Facts::decode_prefix(bytes) {
        assert_eq!(facts.encode(), bytes[..len]);
    }
}
