//! `CacheGen`: checks and decodes the containers that LMCache writes with `remote_serde: cachegen`.
//! LMCache unpickles them, which can run any code. Here only what LMCache itself writes is read.

use std::sync::Arc;

use kvtier_codec::FloatType;
use kvtier_codec::cachegen::{Bins, CacheGen as Codec, KvOrder, KvShape};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::borrow::{Borrower, LoadTargets};
use crate::buffer;

/// The containers of one model's chunks.
#[derive(Debug)]
#[pyclass(frozen, module = "kvtier._native")]
pub struct CacheGen {
    codec: Codec,
    chunk_tokens: usize,
    bytes_max: usize,
}

#[pymethods]
impl CacheGen {
    /// For chunks of LMCache's `kv_shape`: layers, 2, tokens of a full chunk, heads, elements of a
    /// head. `dtype` is torch's name.
    ///
    /// # Errors
    /// `ValueError`, if LMCache's CacheGen has no such data.
    #[new]
    fn new(model: &str, kv_shape: [usize; 5], dtype: &str) -> PyResult<Self> {
        let [layers, _, chunk_tokens, heads, head_size] = kv_shape;
        let all = [FloatType::Bf16, FloatType::Fp16, FloatType::Fp32];
        let found = all.into_iter().find(|float| float.torch_name() == dtype);
        let float = found.ok_or_else(|| {
            PyValueError::new_err(format!(
                "CacheGen takes bfloat16, float16 and float32, not {dtype}"
            ))
        })?;
        let bins = Bins::for_model(model).unwrap_or_else(|| Bins::for_layers(layers));
        let shape = KvShape { layers, heads, head_size };
        let codec = Codec::new(shape, KvOrder::KeysThenValues, float, bins).map_err(refused)?;
        let token_bytes = 2 * layers * heads * head_size * float.bytes();
        let raw_max = chunk_tokens.checked_mul(token_bytes).ok_or_else(|| {
            PyValueError::new_err(format!("chunks of {chunk_tokens} tokens are too large"))
        })?;
        let bytes_max = codec.bound(raw_max).map_err(refused)?;
        Ok(CacheGen { codec, chunk_tokens, bytes_max })
    }

    /// The most bytes that a container of a full chunk has.
    #[getter]
    fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// The tokens of a container.
    ///
    /// # Errors
    /// `ValueError`, if it is no container of a chunk of this model.
    fn tokens(&self, py: Python<'_>, container: &Bound<'_, PyAny>) -> PyResult<usize> {
        let targets = Arc::new(LoadTargets::default());
        let view = buffer::view(container, &Borrower::new(&targets))?;
        let bytes = view.as_host().ok_or_else(in_gpu_memory)?;
        let found = py.detach(|| self.codec.tokens(bytes));
        drop(view);
        buffer::release_returned(py);
        let tokens = found.map_err(refused)?;
        if tokens > self.chunk_tokens {
            let why = format!("a CacheGen container of {tokens} tokens, of {}", self.chunk_tokens);
            return Err(PyValueError::new_err(why));
        }
        Ok(tokens)
    }

    /// Decodes a container into memory for exactly its tokens.
    ///
    /// # Errors
    /// `ValueError`, if it is no container of this model's data; what the memory holds is then
    /// undefined.
    fn decode(
        &self,
        py: Python<'_>,
        container: &Bound<'_, PyAny>,
        into: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let targets = Arc::new(LoadTargets::default());
        let borrower = Borrower::new(&targets);
        let view = buffer::view(container, &borrower)?;
        let mut lease = buffer::lease(into, &borrower)?;
        let bytes = view.as_host().ok_or_else(in_gpu_memory)?;
        let raw = lease.as_host_mut().ok_or_else(in_gpu_memory)?;
        let decoded = py.detach(|| self.codec.decode(bytes, raw));
        drop((view, lease));
        buffer::release_returned(py);
        decoded.map_err(refused)
    }
}

fn refused(error: kvtier_codec::Error) -> PyErr {
    PyValueError::new_err(error.to_string())
}

fn in_gpu_memory() -> PyErr {
    PyValueError::new_err("CacheGen containers are read in host memory, not in GPU memory")
}
