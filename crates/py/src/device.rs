//! Borrows GPU memory from Python objects with `__cuda_array_interface__` or DLPack.
//!
//! CUDA need not be installed: its library is loaded for the first object in GPU memory.

mod cuda_array;
mod dlpack;

use std::sync::{Mutex, PoisonError};

use kvtier::{Lease, View};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::borrow::BorrowedRange;
use crate::borrow::Borrower;

/// Objects that a tier is done with; see `buffer::RETURNED`.
static RETURNED: Mutex<Vec<Py<PyAny>>> = Mutex::new(Vec::new());

/// Releases the objects that tiers are done with.
pub fn release_returned(py: Python<'_>) {
    let returned = std::mem::take(&mut *RETURNED.lock().unwrap_or_else(PoisonError::into_inner));
    returned.into_iter().for_each(|object| object.drop_ref(py));
}

/// Whether the memory at an address is on a GPU; false without a driver.
#[pyfunction]
pub fn is_on_gpu(address: usize) -> bool {
    kvtier::mem::cuda::Gpu::has_memory_at(address)
}

/// The bytes of `object` on a GPU, to be saved; `None` if it has no GPU memory.
pub fn view(object: &Bound<'_, PyAny>, borrower: &Borrower<'_>) -> PyResult<Option<View>> {
    let lease = DeviceMemory::from_object(object, false)?
        .map(|memory| memory.borrow(borrower, false))
        .transpose()?;
    Ok(lease.map(Lease::freeze))
}

/// The memory of `object` on a GPU, to be loaded into; `None` if it has no GPU memory.
///
/// # Errors
/// As for [`view`], and if it is read-only.
pub fn lease(object: &Bound<'_, PyAny>, borrower: &Borrower<'_>) -> PyResult<Option<Lease>> {
    let mut lease = DeviceMemory::from_object(object, true)?
        .map(|memory| memory.borrow(borrower, true))
        .transpose()?;
    lease.iter_mut().for_each(|lease| lease.assume_filled(0));
    Ok(lease)
}

/// A range of GPU memory, as its object describes it.
struct DeviceMemory {
    address: usize,
    bytes: usize,
    /// The driver's number of the stream whose pending work must finish before the memory is
    /// accessed; `None` if there is none.
    stream: Option<usize>,
    owner: DeviceOwner,
}

impl DeviceMemory {
    /// Reads the object's interface. An object with Python's buffer protocol has host memory.
    fn from_object(object: &Bound<'_, PyAny>, write: bool) -> PyResult<Option<Self>> {
        // SAFETY: an object of this interpreter, and the GIL is held.
        if unsafe { pyo3::ffi::PyObject_CheckBuffer(object.as_ptr()) } == 1 {
            return Ok(None);
        }
        match cuda_array::memory(object, write)? {
            Some(memory) => Ok(Some(memory)),
            None => dlpack::memory(object),
        }
    }

    fn borrow(self, borrower: &Borrower<'_>, write: bool) -> PyResult<Lease> {
        let DeviceMemory { address, bytes, stream, mut owner } = self;
        if bytes == 0 {
            return Err(wrong("it has no bytes"));
        }
        owner.range = Some(borrower.range(address, bytes, write)?);
        let failed = |e: kvtier::mem::Error| wrong(e.to_string());
        // SAFETY: the object keeps its memory, and `owner` keeps the object. The documentation
        // forbids the object's owner to access it meanwhile; checksums detect a write.
        let mut lease =
            unsafe { Lease::from_device(address, bytes, None, owner) }.map_err(failed)?;
        if let (Some(stream), Some(gpu)) = (stream, lease.gpu()) {
            // SAFETY: the object names the stream that works on its memory, so the stream exists in
            // the memory's context.
            let event = unsafe { gpu.event_after(stream) }.map_err(failed)?;
            lease.set_after(Some(event));
        }
        Ok(lease)
    }
}

fn wrong(what: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(format!("the memory on a GPU cannot be used: {what}"))
}

/// An object that keeps GPU memory alive. Releasing it needs the GIL, for which a tier's thread must
/// never wait: the next thread with the GIL releases it.
struct DeviceOwner {
    object: Option<Py<PyAny>>,
    /// Dropped after the object is in `RETURNED`.
    range: Option<BorrowedRange>,
}

impl DeviceOwner {
    fn new(object: Bound<'_, PyAny>) -> Self {
        DeviceOwner { object: Some(object.unbind()), range: None }
    }
}

impl Drop for DeviceOwner {
    fn drop(&mut self) {
        if let Some(object) = self.object.take() {
            RETURNED.lock().unwrap_or_else(PoisonError::into_inner).push(object);
        }
    }
}

/// The size of a contiguous tensor in row-major order; strides count elements.
///
/// # Errors
/// `ValueError` if it is not contiguous.
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
            return Err(wrong("it is not contiguous; pass a contiguous tensor"));
        }
        elements = elements
            .checked_mul(*len)
            .filter(|n| *n >= 0)
            .ok_or_else(|| wrong("its shape is invalid"))?;
    }
    let elements = usize::try_from(elements).map_err(wrong)?;
    elements.checked_mul(element_bytes).ok_or_else(|| wrong("its shape is invalid"))
}
