//! The tensor that a chunk is, as Python states it.

use std::sync::Arc;

use kvtier::key::{ChunkShape, DType, MemoryFormat};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// An object with the fields of `kvtier.lmcache.gds.Shape`.
#[derive(Debug, FromPyObject)]
pub struct Shape {
    /// How many elements there are along each axis.
    axes: Vec<u64>,
    /// LMCache's name of what the axes mean.
    format: String,
    /// Torch's name of the type of the elements.
    dtype: String,
}

impl Shape {
    /// It in the terms of the tiers. Errors with `ValueError` for a format or a type that LMCache does not have.
    pub fn read(self) -> PyResult<Arc<ChunkShape>> {
        let format: MemoryFormat = self.format.parse().map_err(|e| PyValueError::new_err(format!("{e}")))?;
        let unknown = || PyValueError::new_err(format!("LMCache writes no elements of type {:?}", self.dtype));
        let dtype = DType::from_torch_name(&self.dtype).ok_or_else(unknown)?;
        Ok(Arc::new(ChunkShape::new(self.axes, format).with_dtype(dtype)))
    }
}
