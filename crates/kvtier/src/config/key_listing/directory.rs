//! The chunks of a directory, from one listing at the start.

use kvtier_core::{Error, ErrorKind};
use kvtier_file::inspect::{ChunkName, Directory};
use kvtier_key::KeyId;

use super::{KeySource, NextChunk};
use crate::config::FileSpec;

#[derive(Debug)]
pub(super) struct DirectoryKeys {
    directory: Directory,
    chunks: std::vec::IntoIter<ChunkName>,
}

impl DirectoryKeys {
    pub(super) fn new(spec: &FileSpec) -> Result<Self, Error> {
        let directory = Directory::open_as(&spec.path, spec.layout.unwrap_or_default())?;
        let chunks = directory.chunks().map_err(|e| {
            Error::new(ErrorKind::Io, format!("cannot list {}", spec.path.display())).with_source(e)
        })?;
        Ok(DirectoryKeys { directory, chunks: chunks.into_iter() })
    }
}

impl KeySource for DirectoryKeys {
    fn next_chunk(&mut self) -> NextChunk {
        let Some(chunk) = self.chunks.next() else { return Ok(None) };
        if let Some(name) = &chunk.name {
            return Ok(Some(self.directory.layout().key_of(name).map(|id| (id, chunk.len))));
        }
        let footer = match self.directory.footer(&chunk) {
            // Evicted since the directory was listed.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Some(None)),
            Err(e) => {
                return Err(
                    Error::new(ErrorKind::Io, "cannot read a chunk's footer").with_source(e)
                );
            }
            Ok(footer) => footer.ok(),
        };
        let id = footer.and_then(|(_, canonical)| KeyId::from_canonical(&canonical).ok());
        Ok(Some(id.map(|id| (id, chunk.len))))
    }
}
