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
