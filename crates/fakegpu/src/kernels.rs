//! Modules and kernels of `libcuda.so.1`.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::cuda::{ILLEGAL_ADDRESS, INVALID, INVALID_HANDLE, NOT_SUPPORTED, OK, fails, tell, with};
use crate::faults::number;
use crate::memory;
use crate::ptx::{Kernel, Words};
use crate::streams::Step;

/// Kernels write each word with its lowest bit wrong.
pub const WRONG: &str = "FAKEGPU_WRONG_KERNELS";

const INVALID_PTX: c_int = 218;
const NOT_FOUND: c_int = 500;
const HANDLE: usize = 0x7000;

/// Those that are loaded, by their handles, and how many ever were.
static LOADED: Mutex<(usize, BTreeMap<usize, Arc<Kernel>>)> = Mutex::new((0, BTreeMap::new()));
/// Kernels that touched memory that is not there, and how many ran.
static FAULTS: AtomicU64 = AtomicU64::new(0);
static RUNS: AtomicU64 = AtomicU64::new(0);

fn loaded() -> MutexGuard<'static, (usize, BTreeMap<usize, Arc<Kernel>>)> {
    LOADED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What every call answers once a kernel touched memory that is not there: as the real one's, the
/// context is of no use any more.
pub fn broke() -> Option<c_int> {
    (FAULTS.load(Ordering::Relaxed) > 0).then_some(ILLEGAL_ADDRESS)
}

/// What the report says of kernels.
pub fn lines() -> [String; 3] {
    let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
    [
        format!("left modules {}", loaded().1.len()),
        format!("left kernel_faults {}", get(&FAULTS)),
        format!("saw kernels {}", get(&RUNS)),
    ]
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleLoadData(module: *mut usize, image: *const c_char) -> c_int {
    fails!("cuModuleLoadData" in a context);
    // SAFETY: as CUDA demands of its caller, an image of some kind.
    let first = if image.is_null() { 0 } else { (unsafe { *image }) as u8 };
    if !first.is_ascii_graphic() || first == b'P' {
        // No text: machine code, in a container of NVIDIA's.
        return NOT_SUPPORTED;
    }
    // SAFETY: as CUDA demands of its caller, text ends with a zero byte.
    let text = unsafe { CStr::from_ptr(image) }.to_string_lossy();
    match Kernel::read(&text) {
        Ok(kernel) => {
            let mut loaded = loaded();
            loaded.0 += 1;
            let handle = HANDLE + loaded.0;
            loaded.1.insert(handle, Arc::new(kernel));
            // SAFETY: as CUDA demands of its caller.
            unsafe { tell(module, handle) }
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
    // SAFETY: as CUDA demands of its caller, a text.
    let name = unsafe { CStr::from_ptr(name) };
    match kernel.filter(|kernel| name.to_bytes() == kernel.name.as_bytes()) {
        // A module has one function: it goes by the same handle.
        // SAFETY: as CUDA demands of its caller.
        Some(_) => unsafe { tell(function, module) },
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
    fails!("cuLaunchKernel" minded by captures);
    let Some(kernel) = loaded().1.get(&function).cloned() else { return INVALID_HANDLE };
    if [blocks_y, blocks_z, threads_y, threads_z] != [1; 4]
        || blocks == 0
        || !(1..=1024).contains(&threads)
    {
        return INVALID;
    }
    let values = kernel.params.iter().enumerate().map(|(n, bytes)| {
        // SAFETY: as CUDA demands of its caller, a pointer to each parameter.
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

/// Runs a kernel in its stream's turn.
pub fn run(kernel: &Kernel, shape: (u32, u32), params: &[u64]) {
    RUNS.fetch_add(1, Ordering::Relaxed);
    let flip = u32::from(number::<u32>(WRONG).is_some());
    if kernel.run(shape, params, &mut Behind { known: Vec::new(), flip }).is_none() {
        FAULTS.fetch_add(1, Ordering::Relaxed);
    }
}

/// The device's memory, as far as the kernel has touched it.
struct Behind {
    /// Start, end, and where it can be reached.
    known: Vec<(u64, u64, usize)>,
    flip: u32,
}

impl Behind {
    fn word(&mut self, at: u64) -> Option<*mut u32> {
        if !at.is_multiple_of(4) {
            return None;
        }
        let known = self.known.iter().find(|(start, end, _)| (*start..*end).contains(&at)).copied();
        let (start, _, behind) = match known {
            Some(known) => known,
            None => {
                let (start, len, _) = memory::device_of(at as usize)?;
                let known =
                    (start as u64, (start + len) as u64, memory::behind(start, len)? as usize);
                self.known.push(known);
                known
            }
        };
        Some((behind + (at - start) as usize) as *mut u32)
    }
}

impl Words for Behind {
    fn read(&mut self, at: u64) -> Option<u32> {
        // SAFETY: it lies in an allocation of the device's, which is not freed before its streams
        // are idle; allocations are whole pages.
        self.word(at).map(|word| unsafe { word.read() })
    }

    fn write(&mut self, at: u64, word: u32) -> Option<()> {
        let flip = self.flip;
        // SAFETY: as above.
        self.word(at).map(|to| unsafe { to.write(word ^ flip) })
    }
}
