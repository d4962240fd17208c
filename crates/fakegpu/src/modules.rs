//! Modules and kernels of `libcuda.so.1`.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::cuda::{
    ILLEGAL_ADDRESS, INVALID, INVALID_HANDLE, NOT_SUPPORTED, OK, fails, with, write_result,
};
use crate::faults::number;
use crate::memory;
use crate::ptx::{Kernel, Words};
use crate::streams::Step;

/// Makes kernels write each word with its lowest bit flipped.
pub const WRONG: &str = "FAKEGPU_WRONG_KERNELS";

const INVALID_PTX: c_int = 218;
const NOT_FOUND: c_int = 500;
const HANDLE: usize = 0x7000;

/// The number of modules ever loaded, and the loaded ones by handle.
static LOADED: Mutex<(usize, BTreeMap<usize, Arc<Kernel>>)> = Mutex::new((0, BTreeMap::new()));
/// Kernels that accessed unmapped memory, and kernels that ran.
static FAULTS: AtomicU64 = AtomicU64::new(0);
static RUNS: AtomicU64 = AtomicU64::new(0);

fn loaded() -> MutexGuard<'static, (usize, BTreeMap<usize, Arc<Kernel>>)> {
    LOADED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The error of every call after a kernel has accessed unmapped memory: as in CUDA, the context is
/// unusable then.
pub fn context_error() -> Option<c_int> {
    (FAULTS.load(Ordering::Relaxed) > 0).then_some(ILLEGAL_ADDRESS)
}

/// The lines of the report about kernels.
pub fn lines() -> [String; 3] {
    let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
    [
        format!("leaked modules {}", loaded().1.len()),
        format!("leaked kernel_faults {}", get(&FAULTS)),
        format!("counted kernels {}", get(&RUNS)),
    ]
}

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
            loaded.0 += 1;
            let handle = HANDLE + loaded.0;
            loaded.1.insert(handle, Arc::new(kernel));
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
    let kernel = loaded().1.get(&module).cloned();
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
    if loaded().1.remove(&module).is_some() { OK } else { INVALID_HANDLE }
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
    let Some(kernel) = loaded().1.get(&function).cloned() else { return INVALID_HANDLE };
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

/// Runs a kernel of a stream.
pub fn run(kernel: &Kernel, shape: (u32, u32), params: &[u64]) {
    RUNS.fetch_add(1, Ordering::Relaxed);
    let flip = u32::from(number::<u32>(WRONG).is_some());
    if kernel.run(shape.0, shape.1, params, &mut DeviceWords { known: Vec::new(), flip }).is_none()
    {
        FAULTS.fetch_add(1, Ordering::Relaxed);
    }
}

/// Device memory, with a cache of the allocations that the kernel has accessed.
struct DeviceWords {
    /// Start, end and host address.
    known: Vec<(u64, u64, usize)>,
    flip: u32,
}

impl DeviceWords {
    fn word(&mut self, at: u64) -> Option<*mut u32> {
        if !at.is_multiple_of(4) {
            return None;
        }
        let known = self.known.iter().find(|(start, end, _)| (*start..*end).contains(&at)).copied();
        let (start, _, host) = match known {
            Some(known) => known,
            None => {
                let (start, len, _) = memory::device_of(at as usize)?;
                let known = (
                    start as u64,
                    (start + len) as u64,
                    memory::host_address(start, len)? as usize,
                );
                self.known.push(known);
                known
            }
        };
        Some((host + (at - start) as usize) as *mut u32)
    }
}

impl Words for DeviceWords {
    fn read(&mut self, at: u64) -> Option<u32> {
        // SAFETY: the word is in a device allocation, which is not freed before its streams are idle;
        // allocations are whole pages.
        self.word(at).map(|word| unsafe { word.read() })
    }

    fn write(&mut self, at: u64, word: u32) -> Option<()> {
        let flip = self.flip;
        // SAFETY: as above.
        self.word(at).map(|to| unsafe { to.write(word ^ flip) })
    }
}
