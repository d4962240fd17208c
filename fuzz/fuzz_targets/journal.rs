//! The recency journal and the index snapshot: decoding never panics, and decoded records encode to bytes that decode to the same. Each
//! input is also decoded after a correct frame header, which covers the records.
#![no_main]

use kvtier_index::journal::{self, RecordBatch};
use kvtier_index::snapshot;
use kvtier_key::BlockSums;
use libfuzzer_sys::fuzz_target;

const HEADER: usize = 32;
/// The start of most journal records: a kind and a digest.
const RECORD: usize = 33;

fuzz_target!(|bytes: &[u8]| {
    check(bytes);
    for (magic, record, flags) in [(b"KVTJ", RECORD, 0u16), (b"KVTS", 64, 0), (b"KVTS", 64, 1)] {
        for count in [bytes.len() / record, bytes.first().copied().unwrap_or_default().into()] {
            check(&frame(magic, flags, count as u32, bytes));
        }
    }
});

fn frame(magic: &[u8; 4], flags: u16, records: u32, body: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; HEADER];
    frame[..4].copy_from_slice(magic);
    frame[4..6].copy_from_slice(&1u16.to_le_bytes());
    frame[6..8].copy_from_slice(&flags.to_le_bytes());
    frame[20..24].copy_from_slice(&records.to_le_bytes());
    frame[24..28].copy_from_slice(&(body.len() as u32).to_le_bytes());
    let crc = BlockSums::from_bytes(&[&frame[..28], body].concat()).whole();
    frame[28..].copy_from_slice(&crc.to_le_bytes());
    frame.extend_from_slice(body);
    frame
}

fn check(bytes: &[u8]) {
    let batches: Vec<RecordBatch> = journal::decode(bytes).collect();
    let mut again = Vec::new();
    batches.iter().for_each(|batch| {
        journal::encode_after(batch.follows, batch.at_ms, &batch.records, &mut again)
    });
    assert_eq!(journal::decode(&again).collect::<Vec<_>>(), batches);

    let chunks: Vec<_> = snapshot::decode(bytes).flatten().collect();
    let mut writer = snapshot::SnapshotEncoder::new(1);
    let mut again = Vec::new();
    writer.write(&chunks, &mut again);
    writer.finish(&mut again);
    assert_eq!(snapshot::decode(&again).flatten().collect::<Vec<_>>(), chunks);
}
