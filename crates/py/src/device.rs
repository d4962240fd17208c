//! Memory on a GPU, lent to a tier until the GPU's work on it is done: whatever has
//! `__cuda_array_interface__` or speaks DLPack.
//!
//! Nothing here needs CUDA to be there: its library is loaded when the first object of a GPU comes
//! by.

mod array;
mod dlpack;

use std::sync::{Mutex, PoisonError};

use kvtier::{Lease, View};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::buffer::Lender;
use crate::loan::Piece;

/// Objects that a tier is done with; see `buffer`.
static DONE: Mutex<Vec<Py<PyAny>>> = Mutex::new(Vec::new());

/// Gives back to Python what tiers are done with.
pub fn give_back(py: Python<'_>) {
    let done = std::mem::take(&mut *DONE.lock().unwrap_or_else(PoisonError::into_inner));
    done.into_iter().for_each(|object| object.drop_ref(py));
}

/// Whether memory at an address is on a GPU; without a driver none is.
#[pyfunction]
pub fn is_on_gpu(address: usize) -> bool {
    kvtier::mem::cuda::Gpu::has_memory_at(address)
}

/// The bytes of `object` on a GPU, to be saved; `None` if it is no memory of a GPU's.
pub fn view(object: &Bound<'_, PyAny>, lender: &Lender<'_>) -> PyResult<Option<View>> {
    let lease = Memory::of(object, false)?.map(|memory| memory.lend(lender, false)).transpose()?;
    Ok(lease.map(Lease::freeze))
}

/// The memory of `object` on a GPU, to be loaded into; `None` if it is no memory of a GPU's. Errors
/// also when it is read-only.
pub fn lease(object: &Bound<'_, PyAny>, lender: &Lender<'_>) -> PyResult<Option<Lease>> {
    let mut lease =
        Memory::of(object, true)?.map(|memory| memory.lend(lender, true)).transpose()?;
    lease.iter_mut().for_each(|lease| lease.assume_filled(0));
    Ok(lease)
}

/// A range of memory that an object says it has on a GPU.
struct Memory {
    address: usize,
    bytes: usize,
    /// The stream whose work on it so far has to be done before it is touched, as the driver
    /// numbers it; `None` for no need to wait.
    stream: Option<usize>,
    owner: Kept,
}

impl Memory {
    /// By the protocol that the object has. What has Python's buffer protocol is host memory.
    fn of(object: &Bound<'_, PyAny>, write: bool) -> PyResult<Option<Self>> {
        // SAFETY: an object of this interpreter, whose lock is held.
        if unsafe { pyo3::ffi::PyObject_CheckBuffer(object.as_ptr()) } == 1 {
            return Ok(None);
        }
        match array::memory(object, write)? {
            Some(memory) => Ok(Some(memory)),
            None => dlpack::memory(object),
        }
    }

    fn lend(self, lender: &Lender<'_>, write: bool) -> PyResult<Lease> {
        let Memory { address, bytes, stream, mut owner } = self;
        if bytes == 0 {
            return Err(wrong("it has no bytes"));
        }
        owner.piece = Some(lender.piece(address, bytes, write)?);
        let failed = |e: kvtier::mem::Error| wrong(e.to_string());
        // SAFETY: the object keeps its memory as long as we keep the object; its owner was told not
        // to touch it meanwhile, and what it would write is caught by the checksums.
        let mut lease =
            unsafe { Lease::from_device(address, bytes, None, owner) }.map_err(failed)?;
        if let (Some(stream), Some(gpu)) = (stream, lease.gpu()) {
            // SAFETY: the object says that this stream works on its memory: one of its context,
            // alive.
            let event = unsafe { gpu.event_after(stream) }.map_err(failed)?;
            lease.set_after(Some(event));
        }
        Ok(lease)
    }
}

fn wrong(what: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(format!("the memory on a GPU cannot be used: {what}"))
}

/// An object that keeps memory. Letting it go needs the interpreter's lock, which the tiers'
/// threads must never wait for: whoever has the lock next lets it go.
struct Kept {
    object: Option<Py<PyAny>>,
    /// Dropped when the object is on its way back.
    piece: Option<Piece>,
}

impl Kept {
    fn new(object: Bound<'_, PyAny>) -> Self {
        Kept { object: Some(object.unbind()), piece: None }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(object) = self.object.take() {
            DONE.lock().unwrap_or_else(PoisonError::into_inner).push(object);
        }
    }
}

/// Bytes of a tensor whose elements lie together in the order of their axes, the last the densest;
/// strides count elements.
fn contiguous_bytes(
    shape: &[i64],
    strides: Option<&[i64]>,
    element_bytes: usize,
) -> PyResult<usize> {
    let mut elements: i64 = 1;
    for (n, len) in shape.iter().enumerate().rev() {
        let stride = strides.map_or(Some(elements), |strides| strides.get(n).copied());
        let is_dense = *len <= 1 || stride == Some(elements);
        if !is_dense && !shape.contains(&0) {
            return Err(wrong("its elements do not lie together; pass what is contiguous"));
        }
        elements = elements
            .checked_mul(*len)
            .filter(|n| *n >= 0)
            .ok_or_else(|| wrong("its shape is none"))?;
    }
    let elements = usize::try_from(elements).map_err(wrong)?;
    elements.checked_mul(element_bytes).ok_or_else(|| wrong("its shape is none"))
}
