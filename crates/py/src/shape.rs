//! The tensor that a chunk is, as Python states it.

use std::sync::Arc;

use kvtier::key::{ChunkShape, DType, MemoryFormat};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// What tiers know of the shapes of chunks that are saved without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shapes {
    /// All that they need: the configuration states it, or their files do not.
    Known,
    /// That of chunks like those that are there already.
    Learned,
    /// Nothing.
    Missing,
}

impl Shapes {
    /// It for Python.
    pub fn name(self) -> &'static str {
        match self {
            Shapes::Known => "known",
            Shapes::Learned => "learned",
            Shapes::Missing => "missing",
        }
    }
}

/// An object with the fields of `kvtier.Shape`.
#[derive(Debug, FromPyObject)]
pub struct Shape {
    /// How many elements there are along each axis.
    axes: Vec<u64>,
    /// LMCache's name of what the axes mean.
    format: String,
    /// Torch's name of the type of the elements; `None`: the type that each key names.
    dtype: Option<String>,
}

impl Shape {
    /// It in the terms of the tiers. Errors with `ValueError` for a format or a type that LMCache
    /// does not have.
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
