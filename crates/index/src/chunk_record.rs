//! The record of a chunk in snapshots and journals.

use crate::fields::FieldReader;
use crate::{Chunk, DigestTag, TenantId};

/// A chunk as a record: digest 32, length u64, bytes u64, parent's tag u64 (0 = none), depth u32,
/// tenant 16 bytes (all 0: none).
pub(crate) const CHUNK_BYTES: usize = 76;
/// The same in version 1, whose tenants had 4 bytes.
const CHUNK_BYTES_1: usize = 64;

/// How a chunk is spelled in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChunkEncoding {
    /// Version 1: whose it is remains unknown.
    Numbered,
    /// Version 2.
    Digested,
}

impl ChunkEncoding {
    /// Bytes of a chunk.
    pub fn chunk_bytes(self) -> usize {
        match self {
            ChunkEncoding::Numbered => CHUNK_BYTES_1,
            ChunkEncoding::Digested => CHUNK_BYTES,
        }
    }
}

/// Appends a chunk as a record of [`CHUNK_BYTES`].
pub(crate) fn put_chunk(chunk: &Chunk, out: &mut Vec<u8>) {
    out.extend_from_slice(chunk.digest.as_bytes());
    out.extend_from_slice(&chunk.len.to_le_bytes());
    out.extend_from_slice(&chunk.bytes.to_le_bytes());
    out.extend_from_slice(&chunk.parent.map_or(0, DigestTag::as_u64).to_le_bytes());
    out.extend_from_slice(&chunk.depth.to_le_bytes());
    out.extend_from_slice(&chunk.tenant.to_bytes());
}

impl FieldReader<'_> {
    /// Takes a chunk.
    pub fn chunk(&mut self, form: ChunkEncoding) -> Option<Chunk> {
        let chunk = Chunk::new(self.digest()?, self.u64()?, self.u64()?);
        let parent = DigestTag::from_u64(self.u64()?);
        let depth = self.u32()?;
        let tenant = match form {
            ChunkEncoding::Digested => TenantId::from_bytes(self.array()?),
            // Read and dropped: those numbers were hashes that two tenants could share.
            ChunkEncoding::Numbered => self.u32().map(|_| TenantId::NONE)?,
        };
        Some(Chunk { parent, depth, tenant, ..chunk })
    }
}
