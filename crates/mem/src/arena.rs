use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{Error, ErrorKind, Lease, Place, Region, RegionId};

const ALIGN: usize = 4096;

/// How to make an arena.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ArenaConfig {
    /// Size in bytes, rounded up to whole pages.
    pub bytes: usize,
}

impl ArenaConfig {
    /// An arena of `bytes` bytes of ordinary host memory.
    pub fn heap(bytes: usize) -> Self {
        ArenaConfig { bytes }
    }
}

/// How full an arena is, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ArenaStats {
    /// All of it.
    pub capacity: usize,
    /// Not leased.
    pub free: usize,
    /// The largest lease possible now.
    pub largest: usize,
}

/// A range of memory from which leases are cut, 4 KiB-aligned. Clones share it; it lives until the last lease is back.
#[derive(Clone, Debug)]
pub struct Arena(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    base: NonNull<u8>,
    region: Region,
    free: Mutex<Vec<(usize, usize)>>,
}

// SAFETY: `base` is only used to compute addresses of leases, which are handed out without overlap under the mutex.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Arena {
    /// Reserves the memory.
    pub fn new(config: ArenaConfig) -> Result<Self, Error> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let len = config.bytes.max(1).next_multiple_of(ALIGN);
        let layout =
            Layout::from_size_align(len, ALIGN).map_err(|_| Error::new(ErrorKind::Invalid, "arena too large"))?;
        // SAFETY: the layout has a non-zero size.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(|| {
            Error::new(ErrorKind::Full { free: 0, largest: 0 }, format!("no memory for an arena of {len} bytes"))
        })?;
        let region = Region { id: RegionId(NEXT.fetch_add(1, Ordering::Relaxed)), addr: base.as_ptr() as usize, len };
        Ok(Arena(Arc::new(Inner { base, region, free: Mutex::new(vec![(0, len)]) })))
    }

    /// A lease of `len` bytes that starts on a 4 KiB boundary, or `Full`.
    pub fn lease(&self, len: usize) -> Result<Lease, Error> {
        let size = len.max(1).next_multiple_of(ALIGN);
        let mut free = self.0.free();
        let Some(i) = free.iter().position(|(_, n)| *n >= size) else {
            let (free, largest) = (free.iter().map(|(_, n)| n).sum(), free.iter().map(|(_, n)| *n).max().unwrap_or(0));
            return Err(Error::new(ErrorKind::Full { free, largest }, format!("no {len} bytes free in the arena")));
        };
        let start = free[i].0;
        free[i] = (start + size, free[i].1 - size);
        free.retain(|(_, n)| *n > 0);
        let slot = Slot { arena: Arc::clone(&self.0), start, size };
        // SAFETY: `start + size <= len` of the arena, the range was free and is ours until the slot drops.
        unsafe { Ok(Lease::from_raw(self.0.base.add(start), len, Place::Heap, Some(self.0.region.id), Arc::new(slot))) }
    }

    /// The ranges to register with a ring or a driver.
    pub fn regions(&self) -> Vec<Region> {
        vec![self.0.region]
    }

    /// How full it is.
    pub fn stats(&self) -> ArenaStats {
        let free = self.0.free();
        let (sum, largest) = (free.iter().map(|(_, n)| n).sum(), free.iter().map(|(_, n)| *n).max().unwrap_or(0));
        ArenaStats { capacity: self.0.region.len, free: sum, largest }
    }
}

impl Inner {
    fn free(&self) -> MutexGuard<'_, Vec<(usize, usize)>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Slot {
    arena: Arc<Inner>,
    start: usize,
    size: usize,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut free = self.arena.free();
        let i = free.partition_point(|(start, _)| *start < self.start);
        free.insert(i, (self.start, self.size));
        if i + 1 < free.len() && free[i].0 + free[i].1 == free[i + 1].0 {
            free[i].1 += free[i + 1].1;
            free.remove(i + 1);
        }
        if i > 0 && free[i - 1].0 + free[i - 1].1 == free[i].0 {
            free[i - 1].1 += free[i].1;
            free.remove(i);
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let layout = Layout::from_size_align(self.region.len, ALIGN).expect("made with this layout");
        // SAFETY: allocated with this very layout; the last slot is gone, since each holds an Arc of us.
        unsafe { dealloc(self.base.as_ptr(), layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_come_back() {
        let arena = Arena::new(ArenaConfig::heap(1 << 20)).unwrap();
        let mut a = arena.lease(5000).unwrap();
        a.write_at(0, b"hello").unwrap();
        let view = a.freeze();
        assert_eq!(view.as_host(), Some(&b"hello"[..]));
        assert_eq!(arena.stats().free, (1 << 20) - 8192);
        drop(view);
        assert_eq!(arena.stats().largest, 1 << 20);
    }
}
