//! The name of a key as Python passes it: a text, or LMCache's object.

use kvtier::key::{ChunkHash, KvRank, ObjectKey};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use pyo3::{Borrowed, intern};

/// The name of a key of a batch.
#[derive(Debug)]
pub enum KeyName {
    /// The text that LMCache uses.
    Text(String),
    /// An object with the fields of LMCache's `ObjectKey`, not validated yet. Formatting it as a
    /// text in Python would cost more time under the GIL than everything else.
    Object(ObjectKey),
    /// Neither, with the reason. The batch runs without the key and reports the error.
    Invalid(String),
}

impl<'a, 'py> FromPyObject<'a, 'py> for KeyName {
    type Error = PyErr;

    /// Never errors: an invalid key must not make a submission raise.
    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        Ok(KeyName::read(object).unwrap_or_else(|e| KeyName::Invalid(e.to_string())))
    }
}

impl KeyName {
    fn read<'py>(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if object.is_instance_of::<PyString>() {
            return Ok(KeyName::Text(object.extract()?));
        }
        let py = object.py();
        let text =
            |name: &Bound<'py, PyString>| -> PyResult<String> { object.getattr(name)?.extract() };
        let hash = object.getattr(intern!(py, "chunk_hash"))?;
        Ok(KeyName::Object(ObjectKey {
            model: text(intern!(py, "model_name"))?.into(),
            rank: KvRank(object.getattr(intern!(py, "kv_rank"))?.extract()?),
            group: object.getattr(intern!(py, "object_group_id"))?.extract()?,
            hash: ChunkHash::new(hash.cast::<PyBytes>()?.as_bytes()),
            salt: text(intern!(py, "cache_salt"))?.into(),
        }))
    }
}
