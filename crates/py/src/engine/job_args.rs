//! The arguments of a job, as the engine passes them.

use pyo3::Borrowed;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// The name of a chunk as the engine passes it.
#[derive(Debug)]
pub struct ChunkName(pub Box<[u8]>);

impl<'a, 'py> FromPyObject<'a, 'py> for ChunkName {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        Ok(ChunkName(object.cast::<PyBytes>()?.as_bytes().into()))
    }
}

/// The chunks of a job, a tuple in Python.
#[derive(Debug, FromPyObject)]
pub struct JobArgs {
    #[pyo3(item(0))]
    pub job: u64,
    #[pyo3(item(1))]
    pub names: Vec<ChunkName>,
    /// Where the pieces of the chunks begin in the region, chunk by chunk.
    #[pyo3(item(2))]
    pub offsets: Vec<usize>,
    /// The position of each chunk's end in its request, in tokens.
    #[pyo3(item(3))]
    pub ends: Vec<Option<u64>>,
    #[pyo3(item(4))]
    pub piece_bytes: usize,
}

impl JobArgs {
    /// The number of pieces of each chunk.
    ///
    /// # Errors
    /// If chunks have different numbers.
    pub fn pieces(&self) -> Result<usize, String> {
        match self.names.len() {
            0 => Ok(0),
            keys if self.offsets.len().is_multiple_of(keys) => Ok(self.offsets.len() / keys),
            keys => Err(format!(
                "{keys} chunks and {} pieces of memory: give each chunk as many",
                self.offsets.len()
            )),
        }
    }
}
