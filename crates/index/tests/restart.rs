//! An index that is rebuilt from a listing, a snapshot and a journal evicts in the order that the
//! old one would have.
#![allow(clippy::unwrap_used)]

use kvtier_evict::PolicyKind;
use kvtier_index::journal::{self, Record};
use kvtier_index::{
    Chunk, Index, IndexConfig, InsertOutcome, ReadEnd, RemoveOutcome, TenantId, snapshot,
};
use kvtier_key::Digest;

fn key(n: u8) -> Digest {
    Digest([n; 32])
}

fn chunk(n: u8) -> Chunk {
    Chunk::new(key(n), 100 + u64::from(n), 4096)
        .with_parent(&key(n.wrapping_sub(1)), u32::from(n))
        .with_tenant(TenantId(7))
}

fn empty() -> Index {
    Index::new(IndexConfig::new(1 << 30), PolicyKind::Lru.build()).unwrap()
}

fn ordered(index: &mut Index) -> Vec<Chunk> {
    let slots = index.eviction_order();
    index.chunks_at(&slots).collect()
}

/// The least recent slots come first in the order, the most recent chunks in the snapshot.
fn snapshot_of(index: &mut Index) -> Vec<u8> {
    let mut slots = index.eviction_order();
    let mut bytes = Vec::new();
    let mut writer = snapshot::SnapshotEncoder::new(1);
    slots.reverse();
    for slots in slots.chunks(16) {
        writer.write(&index.chunks_at(slots).collect::<Vec<_>>(), &mut bytes);
    }
    writer.finish(&mut bytes);
    bytes
}

fn apply(index: &mut Index, record: &Record) {
    match record {
        Record::Touch(digest) => index.touch_batch(&[*digest]),
        Record::Remove(digest) => drop(index.forget(digest)),
        Record::Insert(chunk) => {
            assert!(matches!(
                index.insert(*chunk),
                InsertOutcome::New(_) | InsertOutcome::Replaced { .. }
            ))
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_rebuilt_index_evicts_in_the_old_order() {
    let mut old = empty();
    (0..100).for_each(|n| assert!(matches!(old.insert(chunk(n)), InsertOutcome::New(_))));
    old.touch_batch(&[key(3), key(4), key(5)]);
    let snapshot = snapshot_of(&mut old);
    assert!(matches!(old.remove(&key(50)), RemoveOutcome::Gone(_)));
    old.touch_batch(&[key(60), key(61)]);
    assert!(matches!(old.insert(chunk(200)), InsertOutcome::New(_)));
    let mut journal = Vec::new();
    let records = [
        Record::Remove(key(50)),
        Record::Touch(key(61)),
        Record::Touch(key(60)),
        Record::Insert(chunk(200)),
    ];
    journal::encode(2, &records, &mut journal);

    let mut new = empty();
    for n in (0..100).filter(|n| *n != 50).chain([200]) {
        let listed = Chunk::new(key(n), 100 + u64::from(n), 4096).with_tenant(TenantId(7));
        assert!(matches!(new.insert(listed), InsertOutcome::New(_)));
    }
    let mut pieces = snapshot::decode(&snapshot);
    let chunks: Vec<Chunk> = pieces.by_ref().flatten().collect();
    assert_eq!(pieces.end(), Some(ReadEnd::Clean));
    // The listing is the authority: what it does not name is not there, whatever the snapshot says.
    for chunk in
        chunks.iter().rev().filter(|chunk| new.get(&chunk.digest).is_some()).collect::<Vec<_>>()
    {
        assert!(matches!(new.insert(*chunk), InsertOutcome::Replaced { .. }));
    }
    journal::decode(&journal)
        .flat_map(|batch| batch.records)
        .for_each(|record| apply(&mut new, &record));

    assert_eq!(ordered(&mut new), ordered(&mut old));
    assert_eq!(new.usage(), old.usage());
}
