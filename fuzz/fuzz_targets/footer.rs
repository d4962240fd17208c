//! The footer of a chunk file: decoding never panics, and a decoded page has no unchecked bytes. Each input is also decoded with a correct
//! magic and facts checksum, which covers the fields after them.
#![no_main]

use kvtier_disk::footer;
use kvtier_key::BlockSums;
use libfuzzer_sys::fuzz_target;

const PAGE: usize = 4096;
/// Magic and length of the key.
const HEAD: usize = 12;

fuzz_target!(|bytes: &[u8]| {
    check(bytes);
    let mut page = [0; PAGE];
    let len = bytes.len().min(PAGE - HEAD);
    page[..8].copy_from_slice(b"KVTFOOT1");
    page[HEAD..HEAD + len].copy_from_slice(&bytes[..len]);
    check(&page);
    // A record whose length the first byte of the input selects; the rest is the key.
    let record = 148 + bytes.first().copied().unwrap_or_default() as usize * 4;
    if len > record {
        let facts = &mut page[HEAD..HEAD + record];
        facts[..8].copy_from_slice(b"KVTFACTS");
        facts[8..12].copy_from_slice(&[1, 0, record as u8, (record >> 8) as u8]);
        let crc = BlockSums::from_bytes(&facts[..record - 4]).whole();
        facts[record - 4..].copy_from_slice(&crc.to_le_bytes());
        page[8..HEAD].copy_from_slice(&((len - record) as u32).to_le_bytes());
        check(&page);
    }
});

fn check(page: &[u8]) {
    if let Ok((facts, name)) = footer::decode(page) {
        let mut again = b"KVTFOOT1".to_vec();
        again.extend((name.len() as u32).to_le_bytes());
        again.extend(facts.encode());
        again.extend(name);
        again.resize(PAGE, 0);
        assert_eq!(again, page);
    }
}
