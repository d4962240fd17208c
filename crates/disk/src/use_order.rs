//! The order of use, kept across restarts: each process writes a journal, and the leading process
//! takes snapshots of the index. Which chunks are stored is decided by the listing alone.

mod journal;
mod journal_reader;
mod snapshot;

use std::io;
use std::path::Path;

use kvtier_index::journal::Record;
use kvtier_index::{Chunk, Index, LastUses, TenantId};

pub use journal::Journal;
pub use journal_reader::Reader;
pub use snapshot::{SNAPSHOT_AFTER_BYTES, write as write_snapshot};

/// The contents of snapshot and journals.
#[derive(Debug)]
pub struct History {
    /// The least recent first.
    pub records: Vec<Record>,
    /// The reader of the journals, positioned after the records.
    pub reader: Reader,
    /// What could not be read, and is missing from the order of use.
    pub damage: Vec<String>,
}

/// Puts the listed chunks of `index` into the order of use in snapshot and journals. Other chunks are
/// least recent. Returns the reader of the journals, and what could not be read.
pub fn restore(own: &Path, index: &mut Index) -> io::Result<(Reader, Vec<String>)> {
    let History { records, reader, damage } = read(own)?;
    records.iter().for_each(|record| apply(index, record));
    Ok((reader, damage))
}

/// Reads snapshot and journals, as far as they are intact.
pub fn read(own: &Path) -> io::Result<History> {
    let snapshot = snapshot::read(own);
    // A snapshot begins with the most recent chunks, so that a torn one keeps the best part. They
    // are entered last.
    let mut records: Vec<Record> =
        snapshot.chunks.iter().rev().map(|chunk| Record::Insert(*chunk)).collect();
    let mut reader = Reader::new(own, snapshot.at_ms);
    records.extend(reader.read(None)?);
    let damage = snapshot.damage.into_iter().chain(reader.take_damage()).collect();
    Ok(History { records, reader, damage })
}

/// When chunks were used last, by snapshot and journals.
pub fn last_uses(own: &Path) -> io::Result<LastUses> {
    let snapshot = snapshot::read(own);
    let mut uses = LastUses::default();
    uses.add_snapshot(snapshot.at_ms, &snapshot.chunks);
    Reader::new(own, snapshot.at_ms).batches(None)?.iter().for_each(|batch| uses.add_batch(batch));
    Ok(uses)
}

/// Applies a record to a chunk in the index.
pub fn apply(index: &mut Index, record: &Record) {
    match record {
        Record::Touch(digest) => index.touch_batch(&[*digest]),
        Record::Insert(chunk) => match index.get(&chunk.digest).map(|known| known.chunk) {
            // An unknown length stays unknown: the record may be of another file.
            Some(known) if known.len == chunk.len || known.len == 0 => {
                let mut chunk: Chunk = *chunk;
                (chunk.len, chunk.bytes) = (known.len, known.bytes);
                // A record without a tenant does not clear the tenant.
                if chunk.tenant == TenantId::NONE {
                    chunk.tenant = known.tenant;
                }
                let _ = index.insert(chunk);
            }
            _ => {}
        },
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use kvtier_evict::PolicyKind;
    use kvtier_index::IndexConfig;
    use kvtier_key::Digest;

    use super::*;

    /// The index may hold a chunk that was listed, and whose length no scan has read yet.
    #[test]
    fn a_record_sets_the_tenant_of_a_file_of_its_length_or_of_unknown_length() {
        let digest = Digest([1; 32]);
        let (theirs, ours) = (TenantId(7), TenantId(8));
        let tenant_after = |known_len, record_len, tenant| {
            let mut index = Index::new(IndexConfig::new(1 << 20), PolicyKind::Lru.build()).unwrap();
            let _ = index.insert(Chunk::new(digest, known_len, 8192).with_tenant(ours));
            let record = Chunk::new(digest, record_len, 4096).with_tenant(tenant);
            apply(&mut index, &Record::Insert(record));
            let known = index.get(&digest).unwrap().chunk;
            assert_eq!((known.len, known.bytes), (known_len, 8192), "as its file");
            known.tenant
        };
        assert_eq!(tenant_after(5000, 5000, theirs), theirs);
        assert_eq!(tenant_after(0, 5000, theirs), theirs);
        assert_eq!(tenant_after(4000, 5000, theirs), ours, "of another file");
        assert_eq!(tenant_after(5000, 5000, TenantId::NONE), ours, "it states none");
    }

    #[test]
    fn a_touch_makes_a_chunk_the_most_recent() {
        let mut index = Index::new(IndexConfig::new(1 << 20), PolicyKind::Lru.build()).unwrap();
        let digests = [1, 2, 3].map(|n| Digest([n; 32]));
        digests.iter().for_each(|digest| {
            let _ = index.insert(Chunk::new(*digest, 4000, 4096));
        });
        apply(&mut index, &Record::Touch(digests[0]));
        apply(&mut index, &Record::Remove(digests[1]));
        let order = index.eviction_order();
        let order: Vec<_> = index.chunks_at(&order).map(|chunk| chunk.digest).collect();
        assert_eq!(
            order,
            [digests[1], digests[2], digests[0]],
            "the listing decides what is there"
        );
    }

    #[test]
    fn the_last_uses_are_those_of_snapshot_and_journals() {
        let own = tempfile::tempdir().unwrap();
        std::fs::create_dir(own.path().join("journal")).unwrap();
        let index = Index::new(IndexConfig::new(1 << 20), PolicyKind::Lru.build()).unwrap();
        let index = std::sync::Mutex::new(index);
        let digests = [1, 2, 3].map(|n| Digest([n; 32]));
        for digest in &digests[..2] {
            let _ = index.lock().unwrap().insert(Chunk::new(*digest, 4000, 4096));
        }
        write_snapshot(own.path(), &index, 1000).unwrap();
        let clock = kvtier_core::Clock::real();
        let (journal, from_ms) = (Journal::new(own.path(), "host.1.5.0", &clock), clock.unix_ms());
        journal.note([Record::Touch(digests[1])]);
        journal.flush().unwrap();
        let uses = last_uses(own.path()).unwrap();
        let at_ms = digests.map(|digest| uses.get(&digest).map(|used| used.at_ms));
        assert_eq!((at_ms[0], at_ms[2]), (Some(1000), None));
        assert!(at_ms[1].is_some_and(|at_ms| at_ms >= from_ms), "{at_ms:?}");
    }
}
