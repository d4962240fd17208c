//! Error codes of CUDA, and what every exported function does first and last.

use std::ffi::c_int;

pub const OK: c_int = 0;
pub const INVALID: c_int = 1;
pub const OUT_OF_MEMORY: c_int = 2;
pub const NO_DEVICE: c_int = 100;
pub const INVALID_DEVICE: c_int = 101;
pub const INVALID_CONTEXT: c_int = 201;
pub const INVALID_HANDLE: c_int = 400;
pub const NOT_READY: c_int = 600;
pub const ILLEGAL_ADDRESS: c_int = 700;
pub const ALREADY_REGISTERED: c_int = 712;
pub const NOT_REGISTERED: c_int = 713;
pub const NOT_SUPPORTED: c_int = 801;

macro_rules! fails {
    ($symbol:literal) => {
        if let Some(code) = $crate::faults::code($symbol) {
            return code;
        }
    };
    ($symbol:literal in a context) => {
        fails!($symbol);
        if $crate::contexts::CURRENT.get() == 0 {
            return $crate::cuda_error::INVALID_CONTEXT;
        }
        if let Some(code) = $crate::loaded_kernels::context_error() {
            return code;
        }
    };
    ($symbol:literal refused during capture) => {
        fails!($symbol in a context);
        if let Some(code) = $crate::libcuda::capture::refusal() {
            return code;
        }
    };
}

pub(crate) use fails;

/// Writes a result to the caller's pointer.
///
/// # Safety
/// `to` is null or valid for a write.
pub unsafe fn write_result<T>(to: *mut T, result: T) -> c_int {
    if to.is_null() {
        return INVALID;
    }
    // SAFETY: the caller's promise.
    unsafe { to.write(result) };
    OK
}
