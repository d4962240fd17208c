//! A key as Python gives it: spelled, or as LMCache's object.

use kvtier::key::{ChunkHash, KvRank, ObjectKey};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use pyo3::{Borrowed, intern};

/// A key of a batch.
#[derive(Debug)]
pub enum Name {
    /// As LMCache spells it.
    Text(String),
    /// An object with the fields of LMCache's `ObjectKey`: its parts, not checked yet. Spelling it
    /// in Python would cost more than all else that is done with it under the interpreter's
    /// lock.
    Object(ObjectKey),
    /// Neither, and why: the batch goes on without it, and says so in the end.
    None(String),
}

impl<'a, 'py> FromPyObject<'a, 'py> for Name {
    type Error = PyErr;

    /// Never errors: who submits is not to be surprised.
    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        Ok(Name::read(object).unwrap_or_else(|e| Name::None(e.to_string())))
    }
}

impl Name {
    fn read<'py>(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if object.is_instance_of::<PyString>() {
            return Ok(Name::Text(object.extract()?));
        }
        let py = object.py();
        let text =
            |name: &Bound<'py, PyString>| -> PyResult<String> { object.getattr(name)?.extract() };
        let hash = object.getattr(intern!(py, "chunk_hash"))?;
        Ok(Name::Object(ObjectKey {
            model: text(intern!(py, "model_name"))?.into(),
            rank: KvRank(object.getattr(intern!(py, "kv_rank"))?.extract()?),
            group: object.getattr(intern!(py, "object_group_id"))?.extract()?,
            hash: ChunkHash::new(hash.cast::<PyBytes>()?.as_bytes()),
            salt: text(intern!(py, "cache_salt"))?.into(),
        }))
    }
}
