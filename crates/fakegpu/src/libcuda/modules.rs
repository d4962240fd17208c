//! `libcuda.so.1`: modules, and launches of their kernels.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::Arc;

use super::streams::with;
use crate::cuda_error::{INVALID, INVALID_HANDLE, NOT_SUPPORTED, OK, fails, write_result};
use crate::loaded_kernels::{HANDLE, loaded};
use crate::ptx_interpreter::Kernel;
use crate::streams::Step;

const INVALID_PTX: c_int = 218;
const NOT_FOUND: c_int = 500;

#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleLoadData(module: *mut usize, image: *const c_char) -> c_int {
    fails!("cuModuleLoadData" in a context);
    // SAFETY: as CUDA requires of the caller, an image of some kind.
    let first = if image.is_null() { 0 } else { (unsafe { *image }) as u8 };
    if !first.is_ascii_graphic() || first == b'P' {
        // Not a text: machine code.
        return NOT_SUPPORTED;
    }
    // SAFETY: as CUDA requires of the caller, text ends with a zero byte.
    let text = unsafe { CStr::from_ptr(image) }.to_string_lossy();
    match Kernel::read(&text) {
        Ok(kernel) => {
            let mut loaded = loaded();
            loaded.count += 1;
            let handle = HANDLE + loaded.count;
            loaded.by_handle.insert(handle, Arc::new(kernel));
            // SAFETY: as CUDA requires of the caller.
            unsafe { write_result(module, handle) }
        }
        Err(_) => INVALID_PTX,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleGetFunction(
    function: *mut usize,
    module: usize,
    name: *const c_char,
) -> c_int {
    fails!("cuModuleGetFunction" in a context);
    let kernel = loaded().by_handle.get(&module).cloned();
    // SAFETY: as CUDA requires of the caller, a text.
    let name = unsafe { CStr::from_ptr(name) };
    match kernel.filter(|kernel| name.to_bytes() == kernel.name.as_bytes()) {
        // A module has one function, which has the same handle.
        // SAFETY: as CUDA requires of the caller.
        Some(_) => unsafe { write_result(function, module) },
        None => NOT_FOUND,
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleUnload(module: usize) -> c_int {
    fails!("cuModuleUnload" in a context);
    if loaded().by_handle.remove(&module).is_some() { OK } else { INVALID_HANDLE }
}

// tidy: allow(fn-params): as CUDA declares it
#[unsafe(no_mangle)]
unsafe extern "C" fn cuLaunchKernel(
    function: usize,
    blocks: c_uint,
    blocks_y: c_uint,
    blocks_z: c_uint,
    threads: c_uint,
    threads_y: c_uint,
    threads_z: c_uint,
    _shared: c_uint,
    stream: usize,
    params: *const *const c_void,
    _extra: *const c_void,
) -> c_int {
    fails!("cuLaunchKernel" refused during capture);
    let Some(kernel) = loaded().by_handle.get(&function).cloned() else { return INVALID_HANDLE };
    if [blocks_y, blocks_z, threads_y, threads_z] != [1; 4]
        || blocks == 0
        || !(1..=1024).contains(&threads)
    {
        return INVALID;
    }
    let values = kernel.params.iter().enumerate().map(|(n, bytes)| {
        // SAFETY: as CUDA requires of the caller, a pointer to each parameter.
        unsafe {
            let at = *params.add(n);
            if *bytes == 8 {
                at.cast::<u64>().read_unaligned()
            } else {
                at.cast::<u32>().read_unaligned().into()
            }
        }
    });
    let values = values.collect();
    with(stream, |stream| {
        stream.push(Step::Run { kernel, shape: (blocks, threads), params: values });
        OK
    })
}
