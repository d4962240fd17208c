use std::fmt;
use std::ptr::NonNull;

use super::pinned_pieces::pieces;
use super::{Gpu, GpuEvent};
use crate::alloc::PAGE;
use crate::backing::HostMemory;
use crate::{ArenaConfig, Error, ErrorKind, Lease, Place};

/// Host memory pinned for a GPU, and so for all of them.
pub(crate) struct Pinned {
    gpu: Gpu,
    /// The starts of what was pinned, in order.
    starts: Vec<usize>,
    /// Dropped after it is no longer pinned.
    memory: HostMemory,
}

/// Usable from every context, not only the one that it was pinned in.
const PORTABLE: u32 = 1;

impl Pinned {
    /// The memory that a configuration asks for, there and pinned.
    pub fn new(config: &ArenaConfig, gpu: &Gpu) -> Result<Self, Error> {
        let memory = HostMemory::new(&config.clone().with_prefault())?;
        let base = memory.base().addr().get();
        let len = memory.len();
        let mut pinned = Pinned { gpu: gpu.clone(), starts: Vec::new(), memory };
        let api = gpu.api();
        let _entered = gpu.enter()?;
        for (at, len) in pieces(base, len) {
            // SAFETY: the range is memory of ours, resident, and unpinned before it goes.
            let code = unsafe { (api.pin)(at, len, PORTABLE) };
            api.check(code, "cuMemHostRegister").map_err(|e| {
                let what =
                    format!("cannot pin {len} bytes of host memory: {e}; raise the limit of locked memory (ulimit -l)");
                Error::new(e.kind(), what)
            })?;
            pinned.starts.push(at);
        }
        Ok(pinned)
    }

    pub fn memory(&self) -> &HostMemory {
        &self.memory
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let _entered = self.gpu.enter();
        for at in &self.starts {
            // SAFETY: pinned in `new`, and no lease of it is left.
            unsafe { (self.gpu.api().unpin)(*at) };
        }
    }
}

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pinned({:?})", self.memory)
    }
}

/// An allocation on a GPU.
pub(crate) struct DeviceMemory {
    gpu: Gpu,
    allocated: u64,
    base: NonNull<u8>,
    len: usize,
}

impl DeviceMemory {
    /// `bytes` rounded up to whole pages, aligned to one.
    pub fn new(gpu: &Gpu, bytes: usize) -> Result<Self, Error> {
        let len = ArenaConfig::heap(bytes).len()?;
        let api = gpu.api();
        let _entered = gpu.enter()?;
        let mut allocated = 0;
        // SAFETY: `allocated` can be written. One page more, because the driver aligns to less than
        // a page.
        api.check(unsafe { (api.alloc)(&mut allocated, len + PAGE) }, "cuMemAlloc")?;
        let base = NonNull::new((allocated as usize).next_multiple_of(PAGE) as *mut u8);
        let base =
            base.ok_or_else(|| Error::new(ErrorKind::Io, "cuMemAlloc gave the address 0"))?;
        Ok(DeviceMemory { gpu: gpu.clone(), allocated, base, len })
    }

    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }
}

// SAFETY: an address on a device, which no thread touches by itself; the driver may be called from
// every thread.
unsafe impl Send for DeviceMemory {}
// SAFETY: as above.
unsafe impl Sync for DeviceMemory {}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        let _entered = self.gpu.enter();
        // SAFETY: allocated in `new`, and no lease of it is left.
        unsafe { (self.gpu.api().free)(self.allocated) };
    }
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceMemory({} bytes of {:?})", self.len, self.gpu)
    }
}

impl Lease {
    /// A lease of `len` bytes of foreign memory on a GPU, a tensor for example, that
    /// `owner` keeps. With `after`, it is accessed only after that event has passed. All of it
    /// counts as filled. `Invalid` for addresses that are not a GPU's, or reach past an allocation.
    ///
    /// # Safety
    /// As for [`Lease::from_raw`]; "touches" means work on the GPU here.
    pub unsafe fn from_device(
        addr: usize,
        len: usize,
        after: Option<GpuEvent>,
        owner: impl std::any::Any + Send + Sync,
    ) -> Result<Lease, Error> {
        let gpu = Gpu::of(addr, len)?;
        let base = NonNull::new(addr as *mut u8)
            .ok_or_else(|| Error::new(ErrorKind::Invalid, "the address 0"))?;
        // SAFETY: the caller's promise.
        let mut lease = unsafe {
            Lease::from_raw(
                base,
                len,
                Place::Device(gpu.ordinal()),
                None,
                std::sync::Arc::new(owner),
            )
        };
        lease.set_gpu(gpu);
        lease.set_after(after);
        lease.assume_filled(len);
        Ok(lease)
    }
}
