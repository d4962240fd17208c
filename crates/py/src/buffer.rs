//! Python's memory, lent to a tier until the medium is done with it.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use kvtier::{Lease, View};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::device;
use crate::loan::{Busy, Loan, Piece};

/// Buffers that a tier is done with. Giving one back to Python needs the interpreter's lock, which
/// the tiers' threads must never wait for: whoever has the lock next gives them back.
static DONE: Mutex<Vec<PyUntypedBuffer>> = Mutex::new(Vec::new());

/// Gives back to Python what tiers are done with.
pub fn give_back(py: Python<'_>) {
    let done = std::mem::take(&mut *DONE.lock().unwrap_or_else(PoisonError::into_inner));
    done.into_iter().for_each(|buffer| buffer.release(py));
    device::give_back(py);
}

/// Who lends the memory of one batch.
pub struct Lender<'a> {
    loan: Loan,
    busy: &'a Arc<Busy>,
}

/// The memory of each key of a batch, and when it is home.
pub struct Lent<M> {
    pub memory: Vec<Vec<M>>,
    pub loan: Loan,
}

/// A buffer that Python keeps where it is, for as long as this lives.
struct Held {
    buffer: Option<PyUntypedBuffer>,
    base: NonNull<u8>,
    len: usize,
    /// Dropped when the buffer is on its way back.
    _piece: Piece,
}

// SAFETY: the pointer is to memory that the buffer keeps alive wherever it is used; its own
// counters are touched only under the interpreter's lock, in `give_back`.
unsafe impl Send for Held {}
// SAFETY: as above; shared, it only gives out the bytes.
unsafe impl Sync for Held {}

impl Lender<'_> {
    /// A piece of so many bytes at an address. Errors while a load writes there: the end of one of
    /// the two would be told over bytes of the other.
    pub fn piece(&self, address: usize, bytes: usize, write: bool) -> PyResult<Piece> {
        let piece = if write {
            self.loan.write(self.busy, address, bytes)
        } else {
            self.busy.is_free(address, bytes).then(|| self.loan.read())
        };
        piece.ok_or_else(|| {
            PyValueError::new_err(
                "another load is writing into this memory; wait for its end, or pass other memory",
            )
        })
    }
}

impl Held {
    fn new(object: &Bound<'_, PyAny>, lender: &Lender<'_>, write: bool) -> PyResult<Self> {
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
        let piece = lender.piece(base.addr().get(), len, write)?;
        Ok(Held { buffer: Some(buffer), base, len, _piece: piece })
    }
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the buffer spans `len` contiguous bytes at `base` and is exported as long as
        // `self` lives, so that Python neither frees nor resizes it. Its owner was told not
        // to write into it meanwhile; what it would write is caught by the checksums.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl AsMut<[u8]> for Held {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and writable; its owner was told not to touch it before the load has
        // ended.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            DONE.lock().unwrap_or_else(PoisonError::into_inner).push(buffer);
        }
    }
}

/// How one object lends its memory.
type Lend<M> = fn(&Bound<'_, PyAny>, &Lender<'_>) -> PyResult<M>;

/// The memory of each key, or why there is none: a buffer, or a tuple of buffers that follow each
/// other.
pub fn lend<M>(
    keys: usize,
    bufs: &[Bound<'_, PyAny>],
    busy: &Arc<Busy>,
    lend: Lend<M>,
) -> Result<Lent<M>, String> {
    if keys != bufs.len() {
        return Err(format!("{keys} keys and {} buffers: give one buffer a key", bufs.len()));
    }
    let lender = Lender { loan: Loan::default(), busy };
    let one = |object: &Bound<'_, PyAny>| match object.cast::<PyTuple>() {
        Ok(pieces) => pieces.iter().map(|piece| lend(&piece, &lender)).collect(),
        Err(_) => Ok(vec![lend(object, &lender)?]),
    };
    let memory = bufs.iter().map(one).collect::<PyResult<_>>().map_err(|e| e.to_string())?;
    Ok(Lent { memory, loan: lender.loan })
}

/// The bytes of `object`, to be saved. Errors with `ValueError` or `BufferError` when it has none
/// that lie together.
pub fn view(object: &Bound<'_, PyAny>, lender: &Lender<'_>) -> PyResult<View> {
    if let Some(far) = device::view(object, lender)? {
        return Ok(far);
    }
    Ok(View::from_owner(Held::new(object, lender, false)?))
}

/// The memory of `object`, to be loaded into. Errors also when it is read-only.
pub fn lease(object: &Bound<'_, PyAny>, lender: &Lender<'_>) -> PyResult<Lease> {
    if let Some(far) = device::lease(object, lender)? {
        return Ok(far);
    }
    let mut lease = Lease::from_owner(Held::new(object, lender, true)?);
    lease.assume_filled(0);
    Ok(lease)
}
