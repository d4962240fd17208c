//! `libcuda.so.1`: memory and copies.

use std::ffi::{c_int, c_uint, c_void};

use super::streams::with;
use crate::contexts::{CONTEXT, CURRENT};
use crate::cuda_error::{
    ALREADY_REGISTERED, INVALID, NOT_REGISTERED, OK, OUT_OF_MEMORY, fails, write_result,
};
use crate::streams::Step;
use crate::{memory, streams};

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
