//! `libcuda.so.1`: events.

use std::ffi::{c_int, c_uint};

use super::streams::with;
use crate::cuda_error::{INVALID_HANDLE, NOT_READY, OK, fails, write_result};
use crate::events;
use crate::streams::Step;

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
