//! `libcuda.so.1`: streams.

use std::ffi::{c_int, c_uint};

use crate::cuda_error::{INVALID_HANDLE, NOT_READY, OK, OUT_OF_MEMORY, fails, write_result};
use crate::streams::{Step, Stream};
use crate::{events, loaded_kernels, streams};

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
        loaded_kernels::context_error().unwrap_or(OK)
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
