use std::fs;
use std::io::{self, ErrorKind as Io};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use kvtier_index::journal::snapshot_mark;
use kvtier_index::snapshot::{self as format, FRAME_CHUNKS_MAX, SnapshotEncoder};
use kvtier_index::{Chunk, Index, ReadEnd};

use crate::data_dir::{FileId, internal_files};

/// The most bytes of a snapshot that are read: those of 56 million chunks.
const BYTES_MAX: u64 = 4 << 30;

/// A snapshot is taken when all processes together journaled this much since the last one.
pub const SNAPSHOT_AFTER_BYTES: u64 = 4 << 20;

/// More bytes than its first piece has.
const PIECE_BYTES_MAX: u64 = 2 << 20;

/// The contents of a snapshot.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// When it was taken, Unix time in milliseconds; 0 where there is none.
    pub at_ms: u64,
    /// The most recently used first.
    pub chunks: Vec<Chunk>,
    /// Why not all of it can be read.
    pub damage: Option<String>,
}

/// Reads the snapshot as far as it is intact. A missing one is empty.
pub fn read(own: &Path) -> Snapshot {
    let path = own.join("snapshot");
    let bytes = match internal_files::read(&path, BYTES_MAX) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == Io::NotFound => return Snapshot::default(),
        Err(e) => {
            let damage =
                Some(format!("{} cannot be read: {e}; the order of use is lost", path.display()));
            return Snapshot { damage, ..Snapshot::default() };
        }
    };
    let mut pieces = format::decode(&bytes);
    let chunks: Vec<Chunk> = pieces.by_ref().flatten().collect();
    let damage = match pieces.end() {
        Some(ReadEnd::Clean) => None,
        Some(ReadEnd::Version { version, .. }) => {
            Some(format!("has version {version}, which this build does not read"))
        }
        _ => Some("is damaged".to_owned()),
    };
    let lost = |why| {
        format!(
            "{} {why}; of the order of use, that of {} chunks is left",
            path.display(),
            chunks.len()
        )
    };
    let damage = damage.map(lost);
    Snapshot { at_ms: pieces.at_ms().unwrap_or(0), chunks, damage }
}

/// The mark of the newest snapshot, read again when the file changes.
#[derive(Debug, Default)]
pub struct SnapshotMark {
    file: Option<FileId>,
    mark: u32,
}

impl SnapshotMark {
    /// The mark of the current snapshot; 0 where there is none.
    pub fn mark(&mut self, own: &Path) -> u32 {
        let path = own.join("snapshot");
        let file = fs::symlink_metadata(&path).ok().map(|meta| FileId::of(&meta));
        if file != self.file {
            let first = internal_files::read(&path, PIECE_BYTES_MAX).unwrap_or_default();
            let mut pieces = format::decode(&first);
            let _ = pieces.next();
            (self.file, self.mark) = (file, pieces.at_ms().map_or(0, snapshot_mark));
        }
        self.mark
    }
}

/// Writes the index in the order of use, as of `at_ms`. The index is locked for one piece at a time.
/// Only the leading process does this.
pub fn write(own: &Path, index: &Mutex<Index>, at_ms: u64) -> io::Result<()> {
    let lock = || index.lock().unwrap_or_else(PoisonError::into_inner);
    let mut order = lock().eviction_order();
    order.reverse();
    let draft = own.join("snapshot.new");
    let mut file = internal_files::create(&draft)?;
    let mut writer = SnapshotEncoder::new(at_ms);
    let mut bytes = Vec::new();
    for slots in order.chunks(FRAME_CHUNKS_MAX) {
        let chunks: Vec<Chunk> = lock().chunks_at(slots).collect();
        writer.write(&chunks, &mut bytes);
        kvtier_os::write_all(&mut file, &bytes)?;
        bytes.clear();
    }
    writer.finish(&mut bytes);
    kvtier_os::write_all(&mut file, &bytes)?;
    kvtier_os::rename(draft, own.join("snapshot"))
}

#[cfg(test)]
mod tests {
    use kvtier_evict::PolicyKind;
    use kvtier_index::IndexConfig;
    use kvtier_key::Digest;

    use super::*;

    /// Chunks by their numbers, the least recently used first.
    fn index(numbers: &[u8]) -> Mutex<Index> {
        let mut index = Index::new(IndexConfig::new(1 << 20), PolicyKind::Lru.build()).unwrap();
        for n in numbers {
            let _ = index.insert(Chunk::new(Digest([*n; 32]), 4000, 4096));
        }
        Mutex::new(index)
    }

    #[test]
    fn a_snapshot_has_the_most_recent_first_and_a_mark_of_its_own() {
        let own = tempfile::tempdir().unwrap();
        let mut mark = SnapshotMark::default();
        assert_eq!(mark.mark(own.path()), 0);
        let none = read(own.path());
        assert!((none.at_ms, none.chunks.len()) == (0, 0) && none.damage.is_none(), "{none:?}");
        for (at_ms, numbers) in [(1000, [1, 2, 3]), (2000, [3, 1, 2])] {
            write(own.path(), &index(&numbers), at_ms).unwrap();
            assert_eq!(mark.mark(own.path()), snapshot_mark(at_ms));
            assert_eq!(mark.mark(own.path()), snapshot_mark(at_ms), "of the same file");
            let Snapshot { at_ms: read_ms, chunks, damage } = read(own.path());
            let read: Vec<u8> = chunks.iter().rev().map(|chunk| chunk.digest.0[0]).collect();
            assert_eq!((read_ms, read.as_slice(), damage), (at_ms, &numbers[..], None));
        }
        fs::remove_file(own.path().join("snapshot")).unwrap();
        assert_eq!(mark.mark(own.path()), 0);
    }

    #[test]
    fn what_cannot_be_read_of_a_snapshot_is_reported() {
        let own = tempfile::tempdir().unwrap();
        let path = own.path().join("snapshot");
        write(own.path(), &index(&[1, 2]), 1000).unwrap();
        let bytes = fs::read(&path).unwrap();
        let damage = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            let read = read(own.path());
            (read.chunks.len(), read.damage.unwrap_or_default())
        };
        let (chunks, text) = damage(&bytes[..bytes.len() - 1]);
        assert!(
            chunks == 2 && text.contains("is damaged") && text.contains("of 2 chunks"),
            "{text}"
        );
        let mut later = bytes.clone();
        later[4..6].copy_from_slice(&77u16.to_le_bytes());
        let (chunks, text) = damage(&later);
        assert!(chunks == 0 && text.contains("has version 77"), "{text}");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        let unreadable = read(own.path());
        assert!(unreadable.chunks.is_empty());
        assert!(unreadable.damage.unwrap().contains("cannot be read"));
    }
}
