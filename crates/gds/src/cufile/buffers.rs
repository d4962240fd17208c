use std::sync::{Mutex, PoisonError};

use kvtier_mem::Arena;

use super::Driver;
use super::file::GpuRange;

/// The most bytes per registration, which is the size of one mapping of nvidia-fs.
const REGION_BYTES_MAX: usize = 16 << 20;

/// Registered GPU memory, which cuFile accesses without a bounce buffer on the GPU.
#[derive(Debug)]
pub struct BufferRegistry {
    driver: Driver,
    regions: Mutex<Vec<RegisteredRegion>>,
}

#[derive(Debug)]
struct RegisteredRegion {
    driver: Driver,
    base: usize,
    len: usize,
    /// Keeps the memory allocated.
    arena: Arena,
}

impl BufferRegistry {
    pub fn new(driver: Driver) -> Self {
        BufferRegistry { driver, regions: Mutex::default() }
    }

    /// Registers an arena on a GPU. Returns the number of bytes, and the reason if it is not all.
    pub fn register(&self, arena: &Arena) -> (usize, Option<String>) {
        let mut bytes = 0;
        let Some(gpu) = arena.gpu() else { return (0, Some("not GPU memory".into())) };
        let _entered = match gpu.enter() {
            Ok(entered) => entered,
            Err(e) => return (0, Some(e.to_string())),
        };
        for region in arena.regions() {
            // Regions registered so far stay registered after an error, for instance when BAR1 is
            // full: the rest works unregistered.
            for offset in (0..region.len).step_by(REGION_BYTES_MAX) {
                let base = region.addr + offset;
                let len = REGION_BYTES_MAX.min(region.len - offset);
                // SAFETY: memory of the arena, which `RegisteredRegion` keeps until it is deregistered.
                let status = unsafe { (self.driver.api().buf_register)(base, len, 0) };
                if let Err(e) = status.check("cuFileBufRegister") {
                    return (bytes, Some(e.to_string()));
                }
                let registered =
                    RegisteredRegion { driver: self.driver, base, len, arena: arena.clone() };
                self.regions.lock().unwrap_or_else(PoisonError::into_inner).push(registered);
                bytes += len;
            }
        }
        (bytes, None)
    }

    /// The longest start of `len` bytes at `addr` that is in one registered region, or in none.
    pub fn range_at(&self, addr: usize, len: usize) -> GpuRange {
        let regions = self.regions.lock().unwrap_or_else(PoisonError::into_inner);
        let containing =
            regions.iter().find(|region| (region.base..region.base + region.len).contains(&addr));
        match containing {
            Some(RegisteredRegion { base, len: whole, .. }) => {
                GpuRange { base: *base, offset: addr - base, len: len.min(base + whole - addr) }
            }
            None => {
                // A range that begins outside all regions must not run into one.
                let next =
                    regions.iter().map(|region| region.base).filter(|base| *base > addr).min();
                GpuRange {
                    base: addr,
                    offset: 0,
                    len: next.map_or(len, |next| len.min(next - addr)),
                }
            }
        }
    }

    /// Deregisters everything.
    pub fn clear(&self) {
        let all = std::mem::take(&mut *self.regions.lock().unwrap_or_else(PoisonError::into_inner));
        drop(all);
    }
}

impl Drop for RegisteredRegion {
    fn drop(&mut self) {
        // Deregistering needs the context of the memory, and this may run on any thread.
        let _entered = self.arena.gpu().map(|gpu| gpu.enter());
        // SAFETY: registered in `register`; the caller of `clear` has ended all transfers.
        unsafe { (self.driver.api().buf_deregister)(self.base) };
    }
}
