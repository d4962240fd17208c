//! What one file says of the chunk in it, and what a directory notes of its chunks besides their
//! names.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::SystemTime;

use kvtier_key::{Facts, GDS_HEADER_BYTES, GdsHeader};

use super::{ChunkName, Damage, Directory, foreign_files, regular};
use crate::direct_io::PAGE;
use crate::{footer, use_order};

/// What the file of a chunk states about it. All are `None` for a file that is no chunk's, or was
/// written by another program without a header.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ChunkFile {
    /// Length of the file in bytes.
    pub file_bytes: u64,
    /// The facts, from the footer or the attribute `user.kvtier`.
    pub facts: Option<Facts>,
    /// The key in canonical form, from the footer. Foreign layouts spell the key in the name.
    pub canonical: Option<Vec<u8>>,
    /// The header of LMCache's GDS layouts.
    pub header: Option<GdsHeader>,
}

impl ChunkFile {
    /// Reads the file at `path` without its payload. `Kind` for what is no regular file, `Length`
    /// for a footer of a file of another length, `Footer` for an attribute that holds no facts.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(path: &Path) -> io::Result<Result<Self, Damage>> {
        let Ok(file) = regular(path)? else { return Ok(Err(Damage::Kind)) };
        let file_bytes = file.metadata()?.len();
        let mut page = [0; PAGE as usize];
        if file_bytes >= PAGE {
            file.read_exact_at(&mut page, file_bytes - PAGE)?;
        }
        if let Ok((facts, key)) = footer::decode(&page) {
            if footer::file_len_of(&facts) != file_bytes {
                return Ok(Err(Damage::Length));
            }
            let canonical = Some(key.to_vec());
            return Ok(Ok(ChunkFile { file_bytes, facts: Some(facts), canonical, header: None }));
        }
        let facts = match foreign_files::facts(&file)? {
            Ok(facts) => facts,
            Err(damage) => return Ok(Err(damage)),
        };
        let mut head = [0; GDS_HEADER_BYTES];
        let header = match file.read_exact_at(&mut head, 0) {
            Ok(()) => GdsHeader::decode(&head).ok(),
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => None,
            Err(e) => return Err(e),
        };
        Ok(Ok(ChunkFile { file_bytes, facts, canonical: None, header }))
    }
}

impl Directory {
    /// When a chunk's file was written.
    ///
    /// # Errors
    /// The file is gone or cannot be read.
    pub fn written(&self, chunk: &ChunkName) -> io::Result<SystemTime> {
        fs::symlink_metadata(self.path(chunk))?.modified()
    }

    /// When chunks were used last, by the digests of their keys, as far as snapshot and journals
    /// say.
    ///
    /// # Errors
    /// A file below `.kvtier` cannot be read.
    pub fn last_uses(&self) -> io::Result<kvtier_index::LastUses> {
        use_order::last_uses(&self.own())
    }
}
