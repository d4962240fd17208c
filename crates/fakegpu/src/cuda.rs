//! The functions of `libcuda.so.1` that this workspace calls.

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::faults::number;
use crate::report::at_exit;
use crate::streams::{Step, Stream};
use crate::{events, memory, streams};

/// The number of devices; the default is 1.
pub const DEVICES: &str = "FAKEGPU_DEVICES";

pub const OK: c_int = 0;
pub const INVALID: c_int = 1;
pub const OUT_OF_MEMORY: c_int = 2;
const NO_DEVICE: c_int = 100;
pub const INVALID_DEVICE: c_int = 101;
pub const INVALID_CONTEXT: c_int = 201;
pub const INVALID_HANDLE: c_int = 400;
const NOT_READY: c_int = 600;
pub const ILLEGAL_ADDRESS: c_int = 700;
const ALREADY_REGISTERED: c_int = 712;
const NOT_REGISTERED: c_int = 713;
pub const NOT_SUPPORTED: c_int = 801;

const DEVICES_MAX: usize = 16;
/// The handle of a context is this plus the number of its device.
pub const CONTEXT: usize = 0xc000;

static RETAINED: [AtomicUsize; DEVICES_MAX] = [const { AtomicUsize::new(0) }; DEVICES_MAX];
thread_local!(pub static CURRENT: Cell<usize> = const { Cell::new(0) });

/// The number of retained contexts.
pub fn contexts() -> usize {
    RETAINED.iter().map(|count| count.load(Ordering::Relaxed)).sum()
}

/// Whether the calling thread has a context.
pub fn has_context() -> bool {
    CURRENT.get() != 0
}

pub fn devices() -> usize {
    number(DEVICES).unwrap_or(1).min(DEVICES_MAX)
}

macro_rules! fails {
    ($symbol:literal) => {
        if let Some(code) = $crate::faults::code($symbol) {
            return code;
        }
    };
    ($symbol:literal in a context) => {
        fails!($symbol);
        if $crate::cuda::CURRENT.get() == 0 {
            return $crate::cuda::INVALID_CONTEXT;
        }
        if let Some(code) = $crate::modules::context_error() {
            return code;
        }
    };
    ($symbol:literal refused during capture) => {
        fails!($symbol in a context);
        if let Some(code) = $crate::capture::refusal() {
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

/// Whether the context of a device is retained.
pub fn is_retained(device: c_int) -> bool {
    RETAINED.get(device as usize).is_some_and(|count| count.load(Ordering::Relaxed) > 0)
}

/// Releases the context of a device once.
pub fn release(device: c_int) -> c_int {
    let count = RETAINED.get(device as usize);
    let less = |n: usize| n.checked_sub(1);
    match count.map(|count| count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)) {
        Some(Ok(_)) => OK,
        _ => INVALID_CONTEXT,
    }
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
unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, all: *mut usize) -> c_int {
    fails!("cuMemGetInfo_v2" in a context);
    let (bytes, left) = memory::sizes();
    // SAFETY: as CUDA requires of the caller.
    unsafe { write_result(free, left).max(write_result(all, bytes)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAlloc_v2(at: *mut u64, len: usize) -> c_int {
    fails!("cuMemAlloc_v2" refused during capture);
    match memory::allocate(len, CURRENT.get()) {
        // SAFETY: as CUDA requires of the caller.
        Some(address) => unsafe { write_result(at, address as u64) },
        None => OUT_OF_MEMORY,
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFree_v2(at: u64) -> c_int {
    fails!("cuMemFree_v2" refused during capture);
    // CUDA frees memory only after pending work has finished.
    streams::wait_for_all();
    if memory::free(at as usize) { OK } else { INVALID }
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostRegister_v2(at: usize, len: usize, _flags: c_uint) -> c_int {
    fails!("cuMemHostRegister_v2" refused during capture);
    match () {
        () if at == 0 || len == 0 => INVALID,
        () if memory::pin(at, len) => OK,
        () => ALREADY_REGISTERED,
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostUnregister(at: usize) -> c_int {
    fails!("cuMemHostUnregister" refused during capture);
    if memory::unpin(at) { OK } else { NOT_REGISTERED }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuPointerGetAttribute(data: *mut c_void, attribute: c_int, at: u64) -> c_int {
    fails!("cuPointerGetAttribute");
    let Some((start, len, context)) = memory::device_of(at as usize) else { return INVALID };
    // SAFETY: as CUDA requires of the caller, `data` is valid for a write of the
    // attribute's type.
    unsafe {
        match attribute {
            1 => write_result(data.cast::<usize>(), context),
            2 => write_result(data.cast::<c_uint>(), 2),
            3 | 7 => {
                write_result(data.cast::<usize>(), if attribute == 3 { at as usize } else { start })
            }
            // Synchronous, managed, legacy IPC, mapped.
            6 | 8 | 10 | 13 => write_result(data.cast::<c_uint>(), c_uint::from(attribute == 13)),
            9 => write_result(data.cast::<c_int>(), (context - CONTEXT) as c_int),
            11 => write_result(data.cast::<usize>(), start),
            12 => write_result(data.cast::<usize>(), len),
            _ => INVALID,
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamCreate(stream: *mut usize, _flags: c_uint) -> c_int {
    fails!("cuStreamCreate" in a context);
    match streams::create() {
        // SAFETY: as CUDA requires of the caller.
        Some(handle) => unsafe { write_result(stream, handle) },
        None => OUT_OF_MEMORY,
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamDestroy_v2(stream: usize) -> c_int {
    fails!("cuStreamDestroy_v2" in a context);
    if streams::destroy(stream) { OK } else { INVALID_HANDLE }
}

/// Runs `work` with a stream, if the handle is valid.
pub fn with(stream: usize, work: impl FnOnce(&Stream) -> c_int) -> c_int {
    streams::get(stream).map_or(INVALID_HANDLE, |stream| work(&stream))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamSynchronize(stream: usize) -> c_int {
    fails!("cuStreamSynchronize" refused during capture);
    with(stream, |stream| {
        stream.wait();
        crate::modules::context_error().unwrap_or(OK)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamQuery(stream: usize) -> c_int {
    fails!("cuStreamQuery" refused during capture);
    with(stream, |stream| if stream.is_idle() { OK } else { NOT_READY })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitEvent(stream: usize, event: usize, _flags: c_uint) -> c_int {
    fails!("cuStreamWaitEvent" in a context);
    let Some(event) = events::get(event) else { return INVALID_HANDLE };
    with(stream, |stream| {
        let time = event.last();
        stream.push(Step::Wait(event, time));
        OK
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventCreate(event: *mut usize, _flags: c_uint) -> c_int {
    fails!("cuEventCreate" in a context);
    // SAFETY: as CUDA requires of the caller.
    unsafe { write_result(event, events::create()) }
}

#[unsafe(no_mangle)]
extern "C" fn cuEventDestroy_v2(event: usize) -> c_int {
    fails!("cuEventDestroy_v2");
    if events::destroy(event) { OK } else { INVALID_HANDLE }
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecord(event: usize, stream: usize) -> c_int {
    fails!("cuEventRecord" in a context);
    let Some(event) = events::get(event) else { return INVALID_HANDLE };
    with(stream, |stream| {
        let time = event.record();
        stream.push(Step::Pass(event, time));
        OK
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventQuery(event: usize) -> c_int {
    fails!("cuEventQuery" refused during capture);
    events::get(event)
        .map_or(INVALID_HANDLE, |event| if event.has_passed() { OK } else { NOT_READY })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventSynchronize(event: usize) -> c_int {
    fails!("cuEventSynchronize");
    events::get(event).map_or(INVALID_HANDLE, |event| {
        event.wait(event.last());
        OK
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoDAsync_v2(to: u64, from: usize, len: usize, stream: usize) -> c_int {
    fails!("cuMemcpyHtoDAsync_v2" in a context);
    let Some(to) = memory::host_address(to as usize, len) else { return INVALID };
    copy(stream, Step::Copy { to: to as usize, from, len }, from, len)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoHAsync_v2(to: usize, from: u64, len: usize, stream: usize) -> c_int {
    fails!("cuMemcpyDtoHAsync_v2" in a context);
    let Some(from) = memory::host_address(from as usize, len) else { return INVALID };
    copy(stream, Step::Copy { to, from: from as usize, len }, to, len)
}

/// A copy between device memory and the host memory at `host`. Unless that is pinned, the copy is
/// synchronous, as in CUDA.
fn copy(stream: usize, step: Step, host: usize, len: usize) -> c_int {
    with(stream, |stream| {
        stream.push(step);
        if !memory::is_pinned(host, len) {
            memory::note_pageable(len);
            stream.wait();
        }
        OK
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8Async(to: u64, byte: u8, len: usize, stream: usize) -> c_int {
    fails!("cuMemsetD8Async" in a context);
    let Some(to) = memory::host_address(to as usize, len) else { return INVALID };
    with(stream, |stream| {
        stream.push(Step::Set { to: to as usize, len, byte });
        OK
    })
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
