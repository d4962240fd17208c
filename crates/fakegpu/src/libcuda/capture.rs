//! Stream capture into graphs. During a capture, an unsafe call of any thread fails and invalidates
//! the capture, as in CUDA.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::cuda_error::{INVALID, OK, write_result};

/// The mode in which unsafe calls are allowed.
const RELAXED: c_uint = 2;
const UNSUPPORTED: c_int = 900;
const INVALIDATED: c_int = 901;
const UNMATCHED: c_int = 903;

thread_local!(static MODE: Cell<c_uint> = const { Cell::new(0) });

/// The streams in capture, and whether each capture was invalidated.
static CAPTURED: Mutex<BTreeMap<usize, bool>> = Mutex::new(BTreeMap::new());

fn captured() -> MutexGuard<'static, BTreeMap<usize, bool>> {
    CAPTURED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The error of an unsafe call during a capture; `None` if the call is allowed.
pub fn refusal() -> Option<c_int> {
    let mut captured = captured();
    if captured.is_empty() || MODE.get() == RELAXED {
        return None;
    }
    captured.values_mut().for_each(|is_invalid| *is_invalid = true);
    Some(UNSUPPORTED)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuThreadExchangeStreamCaptureMode(mode: *mut c_uint) -> c_int {
    if mode.is_null() {
        return INVALID;
    }
    // SAFETY: as CUDA requires of the caller.
    unsafe { mode.write(MODE.replace(mode.read())) };
    OK
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamBeginCapture_v2(stream: usize, mode: c_uint) -> c_int {
    if mode != RELAXED {
        captured().insert(stream, false);
    }
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamEndCapture(stream: usize, graph: *mut usize) -> c_int {
    match captured().remove(&stream) {
        None => UNMATCHED,
        Some(true) => INVALIDATED,
        // SAFETY: as CUDA requires of the caller.
        Some(false) => unsafe { write_result(graph, 0x9000) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamIsCapturing(stream: usize, status: *mut c_int) -> c_int {
    // SAFETY: as CUDA requires of the caller.
    unsafe { write_result(status, c_int::from(captured().contains_key(&stream))) }
}
