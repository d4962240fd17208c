//! Borrows ranges of memory for one batch.

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::borrow::{BatchBorrow, BorrowedRange, LoadTargets};

/// Borrows the memory of one batch.
#[derive(Debug)]
pub struct Borrower<'a> {
    borrow: BatchBorrow,
    targets: &'a Arc<LoadTargets>,
}

impl<'a> Borrower<'a> {
    /// A borrower of one batch, and what tracks its buffers.
    pub fn new(targets: &'a Arc<LoadTargets>) -> Self {
        Borrower { borrow: BatchBorrow::default(), targets }
    }

    /// What tracks the buffers borrowed.
    pub fn into_borrow(self) -> BatchBorrow {
        self.borrow
    }

    /// Borrows `bytes` bytes at an address.
    ///
    /// # Errors
    /// `ValueError` while a load writes into them: the result of one of the two batches would
    /// describe bytes of the other.
    pub fn range(&self, address: usize, bytes: usize, write: bool) -> PyResult<BorrowedRange> {
        self.free_range(address, bytes, write).map_err(PyValueError::new_err)
    }

    /// As [`range`](Self::range), for threads without the GIL.
    ///
    /// # Errors
    /// The same reason.
    pub fn free_range(
        &self,
        address: usize,
        bytes: usize,
        write: bool,
    ) -> Result<BorrowedRange, &'static str> {
        let range = if write {
            self.borrow.write(self.targets, address, bytes)
        } else {
            self.targets.is_free(address, bytes).then(|| self.borrow.read())
        };
        range.ok_or(
            "another load is writing into this memory; wait for its end, or pass other memory",
        )
    }
}
