use std::sync::{Mutex, PoisonError};

use kvtier_mem::Arena;

use super::Driver;
use super::file::Target;

/// The most bytes that are registered at once: one mapping of nvidia-fs has no more.
const REGION_BYTES_MAX: usize = 16 << 20;

/// GPU memory that is registered, so that it is reached without a copy on the GPU.
#[derive(Debug)]
pub struct Buffers {
    driver: Driver,
    regions: Mutex<Vec<Registered>>,
}

#[derive(Debug)]
struct Registered {
    driver: Driver,
    base: usize,
    len: usize,
    /// Keeps the memory.
    arena: Arena,
}

impl Buffers {
    pub fn new(driver: Driver) -> Self {
        Buffers { driver, regions: Mutex::default() }
    }

    /// Registers all of an arena on a GPU. Answers how many bytes were, and why not all.
    pub fn register(&self, arena: &Arena) -> (usize, Option<String>) {
        let mut bytes = 0;
        let Some(gpu) = arena.gpu() else { return (0, Some("not memory of a GPU's".into())) };
        let _entered = match gpu.enter() {
            Ok(entered) => entered,
            Err(e) => return (0, Some(e.to_string())),
        };
        for region in arena.regions() {
            for offset in (0..region.len).step_by(REGION_BYTES_MAX) {
                let (base, len) = (region.addr + offset, REGION_BYTES_MAX.min(region.len - offset));
                // SAFETY: memory of the arena's, which is kept until it is deregistered.
                let answer = unsafe { (self.driver.api().buf_register)(base, len, 0) };
                if let Err(failure) = answer.check("cuFileBufRegister") {
                    return (bytes, Some(failure.to_string()));
                }
                let registered =
                    Registered { driver: self.driver, base, len, arena: arena.clone() };
                self.regions.lock().unwrap_or_else(PoisonError::into_inner).push(registered);
                bytes += len;
            }
        }
        (bytes, None)
    }

    /// Where the beginning of `len` bytes at `addr` lies: in one registered region, as far as that
    /// goes, or in none.
    pub fn target(&self, addr: usize, len: usize) -> Target {
        let regions = self.regions.lock().unwrap_or_else(PoisonError::into_inner);
        let around =
            regions.iter().find(|region| (region.base..region.base + region.len).contains(&addr));
        match around {
            Some(Registered { base, len: whole, .. }) => {
                Target { base: *base, offset: addr - base, len: len.min(base + whole - addr) }
            }
            None => {
                let next =
                    regions.iter().map(|region| region.base).filter(|base| *base > addr).min();
                Target { base: addr, offset: 0, len: next.map_or(len, |next| len.min(next - addr)) }
            }
        }
    }

    /// Deregisters everything.
    pub fn clear(&self) {
        let all = std::mem::take(&mut *self.regions.lock().unwrap_or_else(PoisonError::into_inner));
        drop(all);
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let _entered = self.arena.gpu().map(|gpu| gpu.enter());
        // SAFETY: registered in `register`; whoever clears has ended all transfers.
        unsafe { (self.driver.api().buf_deregister)(self.base) };
    }
}
