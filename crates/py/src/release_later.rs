//! Python's buffers that tiers are done with.

use std::sync::{Mutex, PoisonError};

use pyo3::buffer::PyUntypedBuffer;
use pyo3::prelude::*;

/// Buffers that a tier is done with. Releasing one needs the GIL, for which a tier's thread must
/// never wait: the next thread with the GIL releases them.
static RETURNED: Mutex<Vec<PyUntypedBuffer>> = Mutex::new(Vec::new());

/// Releases a buffer with the next thread that has the GIL.
pub fn release_later(buffer: PyUntypedBuffer) {
    RETURNED.lock().unwrap_or_else(PoisonError::into_inner).push(buffer);
}

/// Releases the buffers that tiers are done with.
pub fn release(py: Python<'_>) {
    let returned = std::mem::take(&mut *RETURNED.lock().unwrap_or_else(PoisonError::into_inner));
    returned.into_iter().for_each(|buffer| buffer.release(py));
}
