//! A file that failed a check.

use kvtier_index::Chunk;
use kvtier_key::Digest;

use crate::data_dir::FileId;

/// A chunk's file that is to be moved into quarantine.
#[derive(Clone, Copy, Debug)]
pub struct CorruptFile {
    /// The chunk.
    pub digest: Digest,
    /// Its length, as the file's name states it.
    pub len: u64,
    /// The file that failed.
    pub file: FileId,
    /// The chunk's entry in the index at that time.
    pub known: Option<Chunk>,
}
