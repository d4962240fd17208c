//! Memory of Python's that is registered once and then named by ranges, without a Python object for
//! each transfer.
//!
//! A [`Region`] holds an export of the buffer, so that its owner cannot free or unmap it. Each
//! range that a tier uses holds the export too: [`Region::release`] gives it back as soon as no
//! tier uses the memory any more.

use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvtier::{Lease, View};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyIndexError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PySlice;

use crate::borrow::BorrowedRange;
use crate::borrow::Borrower;
use crate::release_later;

/// Contiguous memory that Python keeps at its address.
pub struct Exported {
    /// Released with the GIL, by the next thread that has it.
    buffer: Option<PyUntypedBuffer>,
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the pointer is to memory that the export keeps alive; the export itself is touched only
// under the GIL, when it is released.
unsafe impl Send for Exported {}
// SAFETY: as above; ranges of it are handed out by `RangeOwner`, which states who may access them.
unsafe impl Sync for Exported {}

impl fmt::Debug for Exported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Exported({} bytes at {:p})", self.len, self.base)
    }
}

impl Drop for Exported {
    fn drop(&mut self) {
        self.buffer.take().into_iter().for_each(release_later::release_later);
    }
}

impl Exported {
    /// Exports a writable contiguous buffer.
    ///
    /// # Errors
    /// `BufferError` or `ValueError` if it is none.
    pub fn new(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyUntypedBuffer::get(object)?;
        if !buffer.is_c_contiguous() || buffer.readonly() {
            return Err(PyValueError::new_err(
                "register memory that is contiguous and can be written",
            ));
        }
        let len = buffer.len_bytes();
        // An empty buffer may have no address. Nothing is ever read through this one: its length is
        // 0.
        let base = NonNull::new(buffer.buf_ptr().cast()).unwrap_or(NonNull::dangling());
        Ok(Exported { buffer: Some(buffer), base, len })
    }

    /// The address of its first byte.
    pub fn address(&self) -> usize {
        self.base.addr().get()
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The bytes at `offset`, to be saved.
    ///
    /// # Errors
    /// If they are out of range, or a load writes into them.
    pub fn view(
        self: &Arc<Self>,
        offset: usize,
        bytes: usize,
        borrower: &Borrower<'_>,
    ) -> Result<View, String> {
        Ok(View::from_owner(self.range(offset, bytes, borrower, false)?))
    }

    /// The memory at `offset`, to be loaded into.
    ///
    /// # Errors
    /// As for [`view`](Self::view).
    pub fn lease(
        self: &Arc<Self>,
        offset: usize,
        bytes: usize,
        borrower: &Borrower<'_>,
    ) -> Result<Lease, String> {
        // The bytes of the memory's owner count as no content: what the medium does not write is
        // not part of the chunk.
        let mut lease = Lease::from_owner(self.range(offset, bytes, borrower, true)?);
        lease.assume_filled(0);
        Ok(lease)
    }

    fn range(
        self: &Arc<Self>,
        offset: usize,
        bytes: usize,
        borrower: &Borrower<'_>,
        write: bool,
    ) -> Result<RangeOwner, String> {
        // The offsets come from Python: this check is what keeps `RangeOwner` inside of the export.
        if offset.checked_add(bytes).is_none_or(|end| end > self.len) {
            return Err(format!(
                "{bytes} bytes at {offset} lie outside of the registered {} bytes",
                self.len
            ));
        }
        // Refused while a load writes to any byte of it: the memory would hold parts of two chunks.
        let borrowed = borrower.free_range(self.address() + offset, bytes, write)?;
        Ok(RangeOwner { region: Arc::clone(self), offset, bytes, _borrowed: borrowed })
    }
}

/// A range that one transfer uses.
#[derive(Debug)]
struct RangeOwner {
    region: Arc<Exported>,
    offset: usize,
    bytes: usize,
    // Dropped last: the caller may reuse the memory once it counts as returned.
    _borrowed: BorrowedRange,
}

impl AsRef<[u8]> for RangeOwner {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the range is in the exported memory (`Exported::range`), which stays at its
        // address while `region` lives. The documentation forbids the owner to write into it
        // meanwhile; checksums detect a write.
        unsafe {
            std::slice::from_raw_parts(self.region.base.as_ptr().add(self.offset), self.bytes)
        }
    }
}

impl AsMut<[u8]> for RangeOwner {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and writable; no other load has the range (`LoadTargets`), and the
        // documentation forbids the owner to access it before the load has ended.
        unsafe {
            std::slice::from_raw_parts_mut(self.region.base.as_ptr().add(self.offset), self.bytes)
        }
    }
}

/// Registered memory. `region[a:b]` names a range of it for a queue.
#[pyclass(frozen, module = "kvtier._native")]
#[derive(Debug)]
pub struct Region(Mutex<Option<Arc<Exported>>>);

/// A range of a region.
#[pyclass(frozen, module = "kvtier._native")]
#[derive(Debug)]
pub struct Range {
    region: Arc<Exported>,
    offset: usize,
    bytes: usize,
}

#[pymethods]
impl Region {
    #[new]
    fn new(buffer: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Region(Mutex::new(Some(Arc::new(Exported::new(buffer)?)))))
    }

    #[getter]
    fn address(&self) -> PyResult<usize> {
        Ok(self.exported()?.address())
    }

    fn __len__(&self) -> PyResult<usize> {
        Ok(self.exported()?.len())
    }

    fn __getitem__(&self, range: &Bound<'_, PyAny>) -> PyResult<Range> {
        let region = self.exported()?;
        let slice = range
            .cast::<PySlice>()
            .map_err(|_| PyTypeError::new_err("name a range: region[begin:end]"))?;
        // Python's own rules for slices: negative ends count from the end, and long ones are cut.
        let at = slice.indices(region.len() as isize)?;
        if at.step != 1 {
            return Err(PyValueError::new_err("a range of a region has no step"));
        }
        Ok(Range { offset: at.start as usize, bytes: at.slicelength, region })
    }

    /// The ranges of these rows of `row_bytes` bytes each.
    fn rows(&self, rows: Vec<usize>, row_bytes: usize) -> PyResult<Vec<Range>> {
        let region = self.exported()?;
        let range = |row: usize| match row.checked_mul(row_bytes) {
            Some(offset)
                if offset.checked_add(row_bytes).is_some_and(|end| end <= region.len()) =>
            {
                Ok(Range { region: Arc::clone(&region), offset, bytes: row_bytes })
            }
            _ => Err(PyIndexError::new_err(format!(
                "row {row} of {row_bytes} bytes is outside of the registered {} bytes",
                region.len()
            ))),
        };
        rows.into_iter().map(range).collect()
    }

    /// Gives the buffer back to its owner as soon as no batch uses it.
    // Batches in flight keep the export: it ends with the last of them, in a later call.
    fn release(&self, py: Python<'_>) {
        drop(self.lock().take());
        release_later::release(py);
    }
}

impl Region {
    /// The memory.
    ///
    /// # Errors
    /// `ValueError` after `release`.
    pub fn exported(&self) -> PyResult<Arc<Exported>> {
        self.lock().clone().ok_or_else(|| PyValueError::new_err("the region was released"))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<Exported>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Range {
    fn __len__(&self) -> usize {
        self.bytes
    }
}

impl Range {
    /// As [`Exported::view`].
    pub fn view(&self, borrower: &Borrower<'_>) -> PyResult<View> {
        self.region.view(self.offset, self.bytes, borrower).map_err(PyValueError::new_err)
    }

    /// As [`Exported::lease`].
    pub fn lease(&self, borrower: &Borrower<'_>) -> PyResult<Lease> {
        self.region.lease(self.offset, self.bytes, borrower).map_err(PyValueError::new_err)
    }
}
