//! Loaded kernels, and how a stream runs them.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::cuda_error::ILLEGAL_ADDRESS;
use crate::faults::number;
use crate::memory;
use crate::ptx_interpreter::{Kernel, Words};

/// Makes kernels write each word with its lowest bit flipped.
pub const WRONG: &str = "FAKEGPU_WRONG_KERNELS";

pub const HANDLE: usize = 0x7000;

/// The number of modules ever loaded, and the loaded ones by handle.
static LOADED: Mutex<LoadedModules> =
    Mutex::new(LoadedModules { count: 0, by_handle: BTreeMap::new() });
/// Kernels that accessed unmapped memory, and kernels that ran.
static FAULTS: AtomicU64 = AtomicU64::new(0);
static RUNS: AtomicU64 = AtomicU64::new(0);

/// The modules that are loaded; each has one kernel.
pub struct LoadedModules {
    /// How many were ever loaded: handles are never used again.
    pub count: usize,
    pub by_handle: BTreeMap<usize, Arc<Kernel>>,
}

/// The loaded kernels.
pub fn loaded() -> MutexGuard<'static, LoadedModules> {
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
        format!("leaked modules {}", loaded().by_handle.len()),
        format!("leaked kernel_faults {}", get(&FAULTS)),
        format!("counted kernels {}", get(&RUNS)),
    ]
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
