//! The tensor that a chunk holds, as Python states it.

use std::sync::Arc;

use kvtier::key::{ChunkShape, DType, MemoryFormat};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Where tiers take the shape of a chunk from that is saved without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ShapeSource {
    /// The configuration states it, or the layout stores none.
    Configured,
    /// The existing files of the tier state it.
    Files,
    /// No source: the save must state it.
    Missing,
}

impl ShapeSource {
    /// The name that the Python half uses.
    pub fn name(self) -> &'static str {
        match self {
            ShapeSource::Configured => "configured",
            ShapeSource::Files => "files",
            ShapeSource::Missing => "missing",
        }
    }
}

/// An object with the fields of `kvtier.Shape`.
#[derive(Debug, FromPyObject)]
pub struct PyShape {
    /// The number of elements along each axis.
    axes: Vec<u64>,
    /// LMCache's name for the meaning of the axes.
    format: String,
    /// Torch's name for the element type; `None`: the type that each key names.
    dtype: Option<String>,
}

impl PyShape {
    /// Converts it for the tiers.
    ///
    /// # Errors
    /// `ValueError` for a format or an element type that LMCache does not have.
    pub fn read(self) -> PyResult<Arc<ChunkShape>> {
        let format: MemoryFormat =
            self.format.parse().map_err(|e| PyValueError::new_err(format!("{e}")))?;
        let shape = ChunkShape::new(self.axes, format);
        let Some(name) = self.dtype else { return Ok(Arc::new(shape)) };
        let unknown =
            || PyValueError::new_err(format!("LMCache writes no elements of type {name:?}"));
        Ok(Arc::new(shape.with_dtype(DType::from_torch_name(&name).ok_or_else(unknown)?)))
    }
}
