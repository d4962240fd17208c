//! `libcuda.so.1`: start, devices, contexts and names of errors.

use std::ffi::{c_char, c_int, c_uint};
use std::sync::atomic::Ordering;

use crate::contexts::{CONTEXT, CURRENT, RETAINED, devices, release};
use crate::cuda_error::{
    ILLEGAL_ADDRESS, INVALID, INVALID_CONTEXT, INVALID_DEVICE, INVALID_HANDLE, NO_DEVICE,
    NOT_READY, OK, OUT_OF_MEMORY, fails, write_result,
};
use crate::report::at_exit;

#[unsafe(no_mangle)]
extern "C" fn cuInit(_flags: c_uint) -> c_int {
    at_exit();
    fails!("cuInit");
    if devices() == 0 { NO_DEVICE } else { OK }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> c_int {
    fails!("cuDriverGetVersion");
    // SAFETY: as CUDA requires of the caller.
    unsafe { write_result(version, 13_000) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> c_int {
    fails!("cuDeviceGetCount");
    // SAFETY: as CUDA requires of the caller.
    unsafe { write_result(count, devices() as c_int) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> c_int {
    fails!("cuDeviceGet");
    if ordinal < 0 || ordinal as usize >= devices() {
        return INVALID_DEVICE;
    }
    // SAFETY: as CUDA requires of the caller.
    unsafe { write_result(device, ordinal) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, len: c_int, device: c_int) -> c_int {
    fails!("cuDeviceGetName");
    let text = format!("fake GPU {device}\0");
    if name.is_null() || (len as usize) < text.len() {
        return INVALID;
    }
    // SAFETY: as CUDA requires of the caller, `len` bytes at `name` can be written, and that is
    // enough.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr().cast(), name, text.len()) };
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut usize, device: c_int) -> c_int {
    fails!("cuDevicePrimaryCtxRetain");
    if device < 0 || device as usize >= devices() {
        return INVALID_DEVICE;
    }
    RETAINED[device as usize].fetch_add(1, Ordering::Relaxed);
    // SAFETY: as CUDA requires of the caller.
    unsafe { write_result(context, CONTEXT + device as usize) }
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> c_int {
    fails!("cuDevicePrimaryCtxRelease_v2");
    release(device)
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCurrent(context: usize) -> c_int {
    fails!("cuCtxSetCurrent");
    let device = context.wrapping_sub(CONTEXT);
    let alive = RETAINED.get(device).is_some_and(|count| count.load(Ordering::Relaxed) > 0);
    if context != 0 && !alive {
        return INVALID_CONTEXT;
    }
    CURRENT.set(context);
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetCurrent(context: *mut usize) -> c_int {
    fails!("cuCtxGetCurrent");
    // SAFETY: as CUDA requires of the caller.
    unsafe { write_result(context, CURRENT.get()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorName(error: c_int, name: *mut *const c_char) -> c_int {
    let text = match error {
        OK => c"CUDA_SUCCESS",
        INVALID => c"CUDA_ERROR_INVALID_VALUE",
        OUT_OF_MEMORY => c"CUDA_ERROR_OUT_OF_MEMORY",
        NO_DEVICE => c"CUDA_ERROR_NO_DEVICE",
        INVALID_DEVICE => c"CUDA_ERROR_INVALID_DEVICE",
        INVALID_CONTEXT => c"CUDA_ERROR_INVALID_CONTEXT",
        INVALID_HANDLE => c"CUDA_ERROR_INVALID_HANDLE",
        NOT_READY => c"CUDA_ERROR_NOT_READY",
        ILLEGAL_ADDRESS => c"CUDA_ERROR_ILLEGAL_ADDRESS",
        _ => c"CUDA_ERROR_UNKNOWN",
    };
    // SAFETY: as CUDA requires of the caller; the text is static.
    unsafe { write_result(name, text.as_ptr()) }
}
