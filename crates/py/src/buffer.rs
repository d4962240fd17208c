//! Borrows Python's buffers for a tier, without a copy, until the medium is done with them.

use std::ptr::NonNull;
use std::sync::Arc;

use kvtier::{Lease, View};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::borrow::Borrower;
use crate::borrow::{BatchBorrow, BorrowedRange, LoadTargets};
use crate::device;
use crate::region::Range;
use crate::release_later;

/// Releases the buffers and GPU objects that tiers are done with.
pub fn release_returned(py: Python<'_>) {
    release_later::release(py);
    device::release_returned(py);
}

/// The memory of each key of a batch.
pub struct BorrowedMemory<M> {
    pub memory: Vec<Vec<M>>,
    pub borrow: BatchBorrow,
}

/// A buffer that Python keeps at its address while this exists.
struct HostBuffer {
    buffer: Option<PyUntypedBuffer>,
    base: NonNull<u8>,
    len: usize,
    /// Dropped after the buffer is in `RETURNED`.
    // Dropped last, after the export was handed over: the range then counts as returned, and the
    // caller may free or reuse the memory.
    _range: BorrowedRange,
}

// SAFETY: the pointer is to memory that the buffer keeps alive wherever it is used; its own
// counters are touched only under the GIL, in `release_returned`.
unsafe impl Send for HostBuffer {}
// SAFETY: as above; a shared reference gives access to the bytes only.
unsafe impl Sync for HostBuffer {}

impl HostBuffer {
    fn new(object: &Bound<'_, PyAny>, borrower: &Borrower<'_>, write: bool) -> PyResult<Self> {
        let buffer = PyUntypedBuffer::get(object)?;
        if !buffer.is_c_contiguous() {
            return Err(PyValueError::new_err("the buffer is not contiguous; pass one that is"));
        }
        if write && buffer.readonly() {
            return Err(PyValueError::new_err(
                "the buffer to load into is read-only; pass one that can be written",
            ));
        }
        let len = buffer.len_bytes();
        let base = NonNull::new(buffer.buf_ptr().cast()).unwrap_or(NonNull::dangling());
        // After the checks: a range that is refused must not stay reserved.
        let range = borrower.range(base.addr().get(), len, write)?;
        Ok(HostBuffer { buffer: Some(buffer), base, len, _range: range })
    }
}

impl AsRef<[u8]> for HostBuffer {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the buffer spans `len` contiguous bytes at `base` and is exported as long as
        // `self` lives, so Python neither frees nor resizes it. The documentation forbids its owner
        // to write into it meanwhile; checksums detect a write.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl AsMut<[u8]> for HostBuffer {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and writable; the documentation forbids its owner to access it before
        // the load has ended.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        self.buffer.take().into_iter().for_each(release_later::release_later);
    }
}

/// Borrows the memory of one object.
type BorrowOne<M> = fn(&Bound<'_, PyAny>, &Borrower<'_>) -> PyResult<M>;

/// Borrows the memory of each key: a buffer, or a tuple of buffers that together hold the chunk.
///
/// # Errors
/// The reason, if the numbers of keys and buffers differ or a buffer cannot be borrowed.
pub fn borrow_all<M>(
    keys: usize,
    bufs: &[Bound<'_, PyAny>],
    targets: &Arc<LoadTargets>,
    borrow_one: BorrowOne<M>,
) -> Result<BorrowedMemory<M>, String> {
    if keys != bufs.len() {
        return Err(format!("{keys} keys and {} buffers: give one buffer a key", bufs.len()));
    }
    let borrower = Borrower::new(targets);
    // A tuple holds the parts of one chunk, in order. Anything else is the whole of it.
    let of_key = |object: &Bound<'_, PyAny>| match object.cast::<PyTuple>() {
        Ok(parts) => parts.iter().map(|part| borrow_one(&part, &borrower)).collect(),
        Err(_) => Ok(vec![borrow_one(object, &borrower)?]),
    };
    // The first buffer that is wrong ends the batch. Those before it are returned by their drops.
    let memory = bufs.iter().map(of_key).collect::<PyResult<_>>().map_err(|e| e.to_string())?;
    Ok(BorrowedMemory { memory, borrow: borrower.into_borrow() })
}

/// The bytes of `object`, to be saved.
///
/// # Errors
/// `ValueError` or `BufferError` if it has no contiguous bytes, or a load writes into them.
pub fn view(object: &Bound<'_, PyAny>, borrower: &Borrower<'_>) -> PyResult<View> {
    if let Ok(range) = object.cast::<Range>() {
        return range.get().view(borrower);
    }
    if let Some(on_gpu) = device::view(object, borrower)? {
        return Ok(on_gpu);
    }
    Ok(View::from_owner(HostBuffer::new(object, borrower, false)?))
}

/// The memory of `object`, to be loaded into.
///
/// # Errors
/// As for [`view`], and if it is read-only.
pub fn lease(object: &Bound<'_, PyAny>, borrower: &Borrower<'_>) -> PyResult<Lease> {
    if let Ok(range) = object.cast::<Range>() {
        return range.get().lease(borrower);
    }
    if let Some(on_gpu) = device::lease(object, borrower)? {
        return Ok(on_gpu);
    }
    let mut lease = Lease::from_owner(HostBuffer::new(object, borrower, true)?);
    lease.assume_filled(0);
    Ok(lease)
}
