//! Journal and snapshot: what was written comes back; what was not written never does.
#![allow(clippy::unwrap_used)]

use kvtier_index::journal::{self, Record, RecordBatch};
use kvtier_index::snapshot::{self, FRAME_CHUNKS_MAX};
use kvtier_index::{Chunk, ReadEnd, TenantId};
use kvtier_key::Digest;
use proptest::prelude::*;

fn chunk(n: u8) -> Chunk {
    let chunk = Chunk::new(Digest([n; 32]), u64::from(n) << 20, (u64::from(n) << 20) + 4096);
    match n % 2 {
        0 => chunk,
        _ => chunk
            .with_tenant(TenantId(u128::from(n) << 96 | 7))
            .with_parent(&Digest([n - 1; 32]), u32::from(n)),
    }
}

fn small_journal() -> Vec<u8> {
    let mut bytes = Vec::new();
    journal::encode(
        1_790_000_000_000,
        &[Record::Insert(chunk(1)), Record::Touch(Digest([2; 32]))],
        &mut bytes,
    );
    journal::encode(
        1_790_000_010_000,
        &[Record::Remove(Digest([1; 32])), Record::Insert(chunk(4))],
        &mut bytes,
    );
    bytes
}

fn small_snapshot() -> Vec<u8> {
    encode_snapshot(1_790_000_020_000, &[vec![chunk(3), chunk(4)], vec![chunk(5)]])
}

fn encode_snapshot(at_ms: u64, pieces: &[Vec<Chunk>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = snapshot::SnapshotEncoder::new(at_ms);
    pieces.iter().for_each(|piece| writer.write(piece, &mut bytes));
    writer.finish(&mut bytes);
    bytes
}

fn read_journal(bytes: &[u8]) -> (Vec<RecordBatch>, ReadEnd) {
    let mut batches = journal::decode(bytes);
    let all: Vec<RecordBatch> = batches.by_ref().collect();
    assert_eq!(batches.next(), None, "the end stays the end");
    (all, batches.end().unwrap())
}

fn read_snapshot(bytes: &[u8]) -> (Vec<Chunk>, ReadEnd) {
    let mut pieces = snapshot::decode(bytes);
    let all: Vec<Chunk> = pieces.by_ref().flatten().collect();
    assert_eq!(pieces.next(), None, "the end stays the end");
    (all, pieces.end().unwrap())
}

/// The damaged bytes yield a prefix of what the whole ones do, and are not called clean.
fn assert_damage_is_noticed(damaged: &[u8], journal: bool) {
    if journal {
        let (got, end) = read_journal(damaged);
        let (whole, _) = read_journal(&small_journal());
        assert!(whole.starts_with(&got) && got.len() < whole.len() && end != ReadEnd::Clean);
    } else {
        let (got, end) = read_snapshot(damaged);
        let (whole, _) = read_snapshot(&small_snapshot());
        assert!(whole.starts_with(&got) && end != ReadEnd::Clean);
    }
}

#[test]
fn the_formats_have_not_changed() {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");
    for (name, bytes) in
        [("journal-v2.bin", small_journal()), ("snapshot-v2.bin", small_snapshot())]
    {
        let path = format!("{golden}/{name}");
        assert_eq!(
            std::fs::read(&path).unwrap(),
            bytes,
            "{name}: a changed format needs a new version"
        );
    }
}

#[test]
fn version_one_is_read_and_says_nothing_of_tenants() {
    let golden = |name: &str| {
        std::fs::read(format!("{}/tests/golden/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
    };
    let unknown = |record: Record| match record {
        Record::Insert(chunk) => Record::Insert(chunk.with_tenant(TenantId::NONE)),
        other => other,
    };
    let (now, _) = read_journal(&small_journal());
    let now: Vec<Vec<Record>> =
        now.into_iter().map(|batch| batch.records.into_iter().map(unknown).collect()).collect();
    let (then, end) = read_journal(&golden("journal-v1.bin"));
    assert_eq!(
        (then.into_iter().map(|batch| batch.records).collect::<Vec<_>>(), end),
        (now, ReadEnd::Clean)
    );
    let now: Vec<Chunk> = read_snapshot(&small_snapshot())
        .0
        .into_iter()
        .map(|chunk| chunk.with_tenant(TenantId::NONE))
        .collect();
    assert_eq!(read_snapshot(&golden("snapshot-v1.bin")), (now, ReadEnd::Clean));
}

#[test]
fn journals_and_snapshots_read_as_written() {
    let (batches, end) = read_journal(&small_journal());
    assert_eq!(end, ReadEnd::Clean);
    assert_eq!(
        batches.iter().map(|batch| batch.at_ms).collect::<Vec<_>>(),
        [1_790_000_000_000, 1_790_000_010_000]
    );
    assert_eq!(batches[0].records, [Record::Insert(chunk(1)), Record::Touch(Digest([2; 32]))]);
    assert_eq!(batches[1].records, [Record::Remove(Digest([1; 32])), Record::Insert(chunk(4))]);
    assert_eq!(
        read_snapshot(&small_snapshot()),
        (vec![chunk(3), chunk(4), chunk(5)], ReadEnd::Clean)
    );
    let bytes = small_snapshot();
    let mut pieces = snapshot::decode(&bytes);
    assert_eq!(
        (pieces.at_ms(), pieces.by_ref().count(), pieces.at_ms()),
        (None, 2, Some(1_790_000_020_000))
    );
}

#[test]
fn no_bytes_are_an_empty_journal_and_a_torn_snapshot() {
    assert_eq!(read_journal(&[]), (vec![], ReadEnd::Clean));
    assert_eq!(read_snapshot(&[]), (vec![], ReadEnd::Torn { at: 0 }));
    assert_eq!(read_snapshot(&encode_snapshot(7, &[])), (vec![], ReadEnd::Clean));
    let mut bytes = Vec::new();
    journal::encode(7, &[], &mut bytes);
    assert!(bytes.is_empty());
}

#[test]
fn more_than_a_frame_takes_several() {
    let chunks: Vec<Chunk> = (0..FRAME_CHUNKS_MAX * 2 + 1).map(|n| chunk(n as u8)).collect();
    let bytes = encode_snapshot(1, std::slice::from_ref(&chunks));
    assert_eq!(snapshot::decode(&bytes).map(|piece| piece.len()).max(), Some(FRAME_CHUNKS_MAX));
    assert_eq!(read_snapshot(&bytes), (chunks.clone(), ReadEnd::Clean));
    let records: Vec<Record> = chunks.into_iter().map(Record::Insert).collect();
    let mut bytes = Vec::new();
    journal::encode(1, &records, &mut bytes);
    let (batches, end) = read_journal(&bytes);
    assert_eq!((batches.len(), end), (3, ReadEnd::Clean));
    assert_eq!(batches.into_iter().flat_map(|batch| batch.records).collect::<Vec<_>>(), records);
}

#[test]
fn a_cut_at_any_byte_loses_the_tail_and_no_more() {
    let bytes = small_journal();
    let first = 32 + 77 + 33;
    for len in 0..bytes.len() {
        let (batches, end) = read_journal(&bytes[..len]);
        assert_eq!(batches.len(), usize::from(len >= first), "cut at {len}");
        let clean = len == 0 || len == first;
        assert_eq!(
            end,
            if clean {
                ReadEnd::Clean
            } else {
                ReadEnd::Torn { at: if len > first { first } else { 0 } }
            }
        );
    }
    let bytes = small_snapshot();
    (0..bytes.len()).for_each(|len| assert_damage_is_noticed(&bytes[..len], false));
}

#[test]
fn any_flipped_bit_is_noticed() {
    for (bytes, journal) in [(small_journal(), true), (small_snapshot(), false)] {
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_damage_is_noticed(&flipped, journal);
        }
    }
}

#[test]
fn a_later_version_is_named() {
    let mut bytes = small_journal();
    bytes[4] = 3;
    assert_eq!(read_journal(&bytes), (vec![], ReadEnd::Version { at: 0, version: 3 }));
}

#[test]
fn frames_of_another_snapshot_do_not_continue_this_one() {
    let old = encode_snapshot(1, &[vec![chunk(1)], vec![chunk(2)]]);
    let new = encode_snapshot(2, &[vec![chunk(3)]]);
    let frame = 32 + 76;
    let spliced = [&new[..frame], &old[frame..]].concat();
    assert_eq!(read_snapshot(&spliced), (vec![chunk(3)], ReadEnd::Torn { at: frame }));
    let skipped = [&old[..frame], &old[2 * frame..]].concat();
    assert_eq!(read_snapshot(&skipped), (vec![chunk(1)], ReadEnd::Torn { at: frame }));
    let twice = [&old[..], &old[..]].concat();
    assert_eq!(read_snapshot(&twice).1, ReadEnd::Torn { at: old.len() });
    assert_eq!(read_journal(&old), (vec![], ReadEnd::Torn { at: 0 }), "a snapshot is no journal");
}

fn any_chunk() -> impl Strategy<Value = Chunk> {
    let parent = prop::option::of(any::<[u8; 32]>());
    (any::<[u8; 32]>(), any::<u64>(), any::<u64>(), any::<u128>(), parent, any::<u32>()).prop_map(
        |(digest, len, bytes, tenant, parent, depth)| {
            let chunk = Chunk::new(Digest(digest), len, bytes).with_tenant(TenantId(tenant));
            parent.map_or(chunk, |parent| chunk.with_parent(&Digest(parent), depth))
        },
    )
}

fn any_record() -> impl Strategy<Value = Record> {
    prop_oneof![
        any::<[u8; 32]>().prop_map(|digest| Record::Touch(Digest(digest))),
        any::<[u8; 32]>().prop_map(|digest| Record::Remove(Digest(digest))),
        any_chunk().prop_map(Record::Insert),
    ]
}

proptest! {
    #[test]
    fn any_journal_comes_back(batches in prop::collection::vec((any::<u64>(), prop::collection::vec(any_record(), 1..20)), 0..8)) {
        let mut bytes = Vec::new();
        batches.iter().for_each(|(at_ms, records)| journal::encode(*at_ms, records, &mut bytes));
        let (read, end) = read_journal(&bytes);
        prop_assert_eq!(end, ReadEnd::Clean);
        prop_assert_eq!(read.into_iter().map(|batch| (batch.at_ms, batch.records)).collect::<Vec<_>>(), batches);
    }

    #[test]
    fn any_snapshot_comes_back(at_ms: u64, pieces in prop::collection::vec(prop::collection::vec(any_chunk(), 0..20), 0..6)) {
        let bytes = encode_snapshot(at_ms, &pieces);
        prop_assert_eq!(read_snapshot(&bytes), (pieces.concat(), ReadEnd::Clean));
    }

    #[test]
    fn any_bytes_are_read_without_panic(tail in prop::collection::vec(any::<u8>(), 0..300), at in 0usize..400, journal: bool) {
        let mut bytes = if journal { small_journal() } else { small_snapshot() };
        let at = at.min(bytes.len());
        let whole = bytes.clone();
        bytes.splice(at.., tail);
        if !bytes.starts_with(&whole) {
            let (batches, _) = read_journal(&bytes);
            prop_assert!(read_journal(&whole).0.starts_with(&batches));
            let (chunks, _) = read_snapshot(&bytes);
            prop_assert!(read_snapshot(&whole).0.starts_with(&chunks));
        }
    }
}
