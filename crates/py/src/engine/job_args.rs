//! The arguments of jobs, as the adapters of engines pass them.

use std::sync::Arc;

use kvtier::core::Digest;
use pyo3::Borrowed;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use super::keys::GROUP_BYTES;
use super::registered_memory::Piece;
use crate::region::Exported;

/// The length of the hash that names a page, in bytes.
const HASH_BYTES: usize = 32;
/// Keeps names that are no hash apart from those that are one.
const TEXT_DOMAIN: &str = "kvtier 2026 engine page name v1";

/// The name of a chunk: its hash, and behind it its group. An adapter passes these bytes.
#[derive(Debug)]
pub struct ChunkName(pub Box<[u8]>);

impl<'a, 'py> FromPyObject<'a, 'py> for ChunkName {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        Ok(ChunkName(object.cast::<PyBytes>()?.as_bytes().into()))
    }
}

/// The name of a page, of group 0: a text of 64 hexadecimal digits, as engines write their hashes,
/// or any other text.
#[derive(Debug)]
pub struct PageName(pub ChunkName);

impl<'a, 'py> FromPyObject<'a, 'py> for PageName {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        Ok(PageName::new(object.cast::<PyString>()?.to_str()?))
    }
}

impl PageName {
    fn new(text: &str) -> Self {
        // Upper case is another text: two texts must not be one name.
        let is_lower = !text.bytes().any(|digit| digit.is_ascii_uppercase());
        let hash = Digest::from_hex(text).filter(|_| is_lower);
        let hash = hash.unwrap_or_else(|| Digest::derive(TEXT_DOMAIN, text.as_bytes()));
        let mut name = [0; HASH_BYTES + GROUP_BYTES];
        name[..HASH_BYTES].copy_from_slice(hash.as_bytes());
        PageName(ChunkName(name.into()))
    }
}

/// The chunks of a job, and their memory.
#[derive(Debug)]
pub struct JobArgs {
    pub job: u64,
    pub names: Vec<ChunkName>,
    /// The memory of the chunks, chunk by chunk. Each chunk has as many pieces.
    pub pieces: Vec<Piece>,
    /// The position of each chunk's end in its request, in tokens.
    pub ends: Vec<Option<u64>>,
    /// The atomic set of each chunk; none if the chunks are independent of each other.
    pub sets: Vec<Arc<[Digest]>>,
}

impl JobArgs {
    /// The number of pieces of each chunk.
    ///
    /// # Errors
    /// If chunks have different numbers.
    pub fn pieces_per_chunk(&self) -> Result<usize, String> {
        match self.names.len() {
            0 => Ok(0),
            keys if self.pieces.len().is_multiple_of(keys) => Ok(self.pieces.len() / keys),
            keys => Err(format!(
                "{keys} chunks and {} pieces of memory: give each chunk as many",
                self.pieces.len()
            )),
        }
    }
}

/// The chunks of a job in rows of one region, a tuple in Python.
#[derive(Debug, FromPyObject)]
pub struct RowJobArgs {
    #[pyo3(item(0))]
    job: u64,
    #[pyo3(item(1))]
    names: Vec<ChunkName>,
    /// Where the pieces of the chunks begin in the region, chunk by chunk.
    #[pyo3(item(2))]
    offsets: Vec<usize>,
    /// The position of each chunk's end in its request, in tokens.
    #[pyo3(item(3))]
    ends: Vec<Option<u64>>,
    #[pyo3(item(4))]
    piece_bytes: usize,
}

impl RowJobArgs {
    /// The arguments, with the pieces in this region.
    pub fn in_region(self, region: &Exported) -> JobArgs {
        let bytes = self.piece_bytes;
        // An offset that is too large names memory outside of the region, which is refused later.
        let piece =
            |offset: usize| Piece { address: region.address().saturating_add(offset), bytes };
        let pieces = self.offsets.into_iter().map(piece).collect();
        JobArgs { job: self.job, names: self.names, pieces, ends: self.ends, sets: Vec::new() }
    }
}
