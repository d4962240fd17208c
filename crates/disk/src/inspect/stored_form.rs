//! How a chunk is stored: its stages, the id of its key, and its lengths, without its payload.

use std::fs;
use std::io;
use std::path::Path;

use kvtier_key::{CodecId, Digest, Facts};

use super::{ChunkName, Damage, Directory, check_file};
use crate::chunk_file_name::{self, file_len};

/// How a chunk is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoredForm {
    /// The stages that it went through; 0 = none.
    pub codec: CodecId,
    /// The id of the key that encrypted it; 0 = none.
    pub key_id: u32,
    /// Length of the payload in bytes.
    pub raw_bytes: u64,
    /// Length of the payload as stored, in bytes.
    pub stored_bytes: u64,
}

impl StoredForm {
    /// The form that facts state.
    pub fn of(facts: &Facts) -> Self {
        StoredForm {
            codec: facts.codec,
            key_id: facts.key_id,
            raw_bytes: facts.raw_len,
            stored_bytes: facts.stored_len(),
        }
    }

    /// The form of a chunk that is stored as it is.
    pub fn plain(bytes: u64) -> Self {
        StoredForm { codec: CodecId(0), key_id: 0, raw_bytes: bytes, stored_bytes: bytes }
    }

    /// Whether the chunk is stored as it is.
    pub fn is_plain(&self) -> bool {
        self.codec == CodecId(0) && self.key_id == 0
    }

    /// The names of the stages in their order, such as `zstd+aes-256-gcm`; `plain` without any.
    pub fn codec_name(&self) -> String {
        match self.is_plain() {
            true => "plain".to_owned(),
            false => kvtier_codec::stage_names(self.codec).join("+"),
        }
    }
}

/// Whether the file of a chunk in layout `kvtier` can be read without a key. `false` for a damaged one.
pub fn is_in_clear(root: &Path, digest: &Digest, len: u64) -> bool {
    let chunk = ChunkName { digest: *digest, name: None, len };
    let footer = check_file::regular(&chunk_file_name::path(root, digest, len))
        .map(|file| file.map(|file| check_file::read_footer(&file, &chunk)));
    matches!(footer, Ok(Ok(Ok(Ok((facts, _))))) if facts.key_id == 0)
}

impl Directory {
    /// How a chunk is stored. Reads the footer of a chunk whose file has another length than its name
    /// states, and nothing in a directory without encoded chunks.
    ///
    /// # Errors
    /// The file is gone or cannot be read.
    pub fn stored_form(&self, chunk: &ChunkName) -> io::Result<Result<StoredForm, Damage>> {
        match self.has_encoded {
            true => self.form_of_file(chunk),
            false => Ok(Ok(StoredForm::plain(chunk.len))),
        }
    }

    /// The same, also where a process has begun to encode since this was opened.
    pub(super) fn form_of_file(&self, chunk: &ChunkName) -> io::Result<Result<StoredForm, Damage>> {
        // A file that has the length of its name is never an encoded one's.
        if fs::symlink_metadata(self.path(chunk))?.len() == file_len(chunk.len) {
            return Ok(Ok(StoredForm::plain(chunk.len)));
        }
        Ok(match self.footer(chunk)? {
            Ok((facts, _)) if facts.key == chunk.digest && facts.raw_len == chunk.len => {
                Ok(StoredForm::of(&facts))
            }
            Ok(_) => Err(Damage::Swapped),
            Err(damage) => Err(damage),
        })
    }
}
