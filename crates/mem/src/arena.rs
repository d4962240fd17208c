use std::any::Any;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::alloc::{Allocator, PAGE, Run};
use crate::backing::{Backing, BackingKind};
#[cfg(feature = "cuda")]
use crate::cuda::{DeviceMemory, Gpu, Pinned};
use crate::foreign::ForeignMemory;
use crate::wait_queue::{Wait, WaitQueue};
use crate::{ArenaConfig, Error, ErrorKind, Lease, Place, Region, RegionId};

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
    /// Never to be leased again: lent to another process, and the [`Lent`](crate::Lent) was dropped
    /// without a reclaim.
    pub leaked: usize,
}

/// A range of memory that is cut into leases, each aligned to 4 KiB. Clones share it; it lives
/// until the last lease is back.
///
/// ```
/// use kvtier_mem::{Arena, ArenaConfig, ErrorKind};
///
/// let arena = Arena::new(ArenaConfig::heap(8192))?;
/// let (first, _second) = (arena.lease(4096)?, arena.lease(4096)?);
/// assert!(matches!(arena.lease(1).unwrap_err().kind(), ErrorKind::Full { free: 0, .. }));
/// drop(first);
/// assert!(arena.lease(1).is_ok());
/// # Ok::<(), kvtier_mem::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Arena(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    backing: Backing,
    region: Region,
    allocator: Allocator,
    /// Bytes of the pages that the allocator has: all but the remainder after the last slot.
    capacity: usize,
    lost: AtomicUsize,
    queue: WaitQueue,
}

impl Arena {
    /// Allocates the memory.
    ///
    /// # Errors
    ///
    /// `Invalid` for a configuration that no memory can satisfy, `Io` where the kernel refuses,
    /// `Unsupported` where this machine lacks the kind of memory.
    pub fn new(config: ArenaConfig) -> Result<Self, Error> {
        Self::over(Backing::new(&config)?, config.slot_bytes)
    }

    /// Allocates host memory as configured and pins it for GPUs, `gpu` and all others. Its leases
    /// are [`Place::Pinned`].
    #[cfg(feature = "cuda")]
    pub fn pinned(config: ArenaConfig, gpu: &Gpu) -> Result<Self, Error> {
        let slot_bytes = config.slot_bytes;
        Self::over(Backing::Pinned(Pinned::new(&config, gpu)?), slot_bytes)
    }

    /// Allocates `bytes` of a GPU's memory. Its leases are [`Place::Device`], which the CPU cannot
    /// reach. `Full` when the GPU has no more.
    #[cfg(feature = "cuda")]
    pub fn device(gpu: &Gpu, bytes: usize) -> Result<Self, Error> {
        Self::over(Backing::Device(DeviceMemory::new(gpu, bytes)?), None)
    }

    /// An arena over foreign memory: `len` bytes at `base`, at `place`, kept alive by `owner`.
    ///
    /// # Errors
    ///
    /// `Invalid` for memory without an aligned page.
    ///
    /// # Safety
    /// As for [`Lease::from_raw`].
    pub unsafe fn from_raw(
        base: NonNull<u8>,
        len: usize,
        place: Place,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<Self, Error> {
        // SAFETY: the caller's promise.
        let memory = unsafe { ForeignMemory::new(base, len, place, owner) }?;
        Self::over(Backing::Foreign(memory), None)
    }

    /// Like [`from_raw`](Arena::from_raw) for memory on a GPU: `len` bytes at `addr`, kept alive by
    /// `owner`.
    ///
    /// # Errors
    ///
    /// `Invalid` for addresses that are not on a GPU, or reach past an allocation.
    ///
    /// # Safety
    /// As for [`Lease::from_device`].
    #[cfg(feature = "cuda")]
    pub unsafe fn from_device(
        addr: usize,
        len: usize,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<Self, Error> {
        // SAFETY: the caller's promise.
        let memory = unsafe { ForeignMemory::on_gpu(addr, len, owner) }?;
        Self::over(Backing::Foreign(memory), None)
    }

    fn over(backing: Backing, slot_bytes: Option<usize>) -> Result<Self, Error> {
        let invalid = |what: String| Error::new(ErrorKind::Invalid, what);
        // Page numbers have 32 bits, which halves the bookkeeping. 16 TiB are enough for one arena.
        let pages = u32::try_from(backing.len() / PAGE).map_err(|_| {
            invalid(format!("an arena of {} bytes is too large; make several", backing.len()))
        })?;
        let allocator = match slot_bytes {
            None => Allocator::general(pages),
            Some(bytes) => {
                let slot = u32::try_from(bytes.div_ceil(PAGE))
                    .ok()
                    .filter(|slot| (1..=pages).contains(slot));
                let what = || {
                    format!("slots of {bytes} bytes do not fit an arena of {} bytes", backing.len())
                };
                Allocator::slots(pages, slot.ok_or_else(|| invalid(what()))?)
            }
        };
        let region =
            Region { id: RegionId::next(), addr: backing.base().addr().get(), len: backing.len() };
        // All that can ever be leased. With slots, a remainder behind the last one can not.
        let capacity = allocator.free().pages as usize * PAGE;
        Ok(Arena(Arc::new(Inner {
            backing,
            region,
            allocator,
            capacity,
            lost: AtomicUsize::new(0),
            queue: WaitQueue::default(),
        })))
    }

    /// A lease of `len` bytes, aligned to 4 KiB. It overtakes tasks in
    /// [`lease_waiting`](Arena::lease_waiting): work that needs memory at once goes before work
    /// that can wait.
    ///
    /// # Errors
    ///
    /// `Full` while no run of free pages is that long, `Invalid` for more than the arena can ever
    /// lease.
    pub fn lease(&self, len: usize) -> Result<Lease, Error> {
        let pages = self.pages(len)?;
        self.cut(pages, len).ok_or_else(|| {
            let ArenaStats { free, largest, .. } = self.stats();
            let what =
                format!("no {len} bytes free in the arena: {free} are, {largest} in a row; wait, or make it larger");
            Error::new(ErrorKind::Full { free, largest }, what)
        })
    }

    /// A lease of `len` bytes as soon as there is memory and all earlier waiters are served.
    /// Dropping the future leaves the queue; the caller adds a deadline.
    ///
    /// # Errors
    ///
    /// `Invalid` for more than the arena can ever lease.
    pub async fn lease_waiting(&self, len: usize) -> Result<Lease, Error> {
        let pages = self.pages(len)?;
        Ok(Wait::new(&self.0.queue, || self.cut(pages, len)).await)
    }

    /// The ranges to register with a ring or a driver.
    pub fn regions(&self) -> Vec<Region> {
        vec![self.0.region]
    }

    /// Its only region.
    pub(crate) fn region(&self) -> Region {
        self.0.region
    }

    /// The GPU that holds its memory.
    #[cfg(feature = "cuda")]
    pub fn gpu(&self) -> Option<&Gpu> {
        self.0.backing.gpu()
    }

    /// The kind of memory that it got.
    pub fn backing(&self) -> BackingKind {
        self.0.backing.kind()
    }

    /// The descriptor that another process needs to [attach](crate::Attached); `None` unless the
    /// memory is shared. A process with the descriptor can write anywhere in the arena. Give it
    /// only to processes that you trust to touch nothing but what they were lent.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.backing.fd()
    }

    /// The name in `/dev/shm`, for named memory.
    pub fn name(&self) -> Option<String> {
        self.0.backing.name()
    }

    /// Counts memory that can never be freed, because another process may still use it.
    pub(crate) fn leak(&self, lease: Lease) {
        // The other process was lent these bytes and did not return them, so it may still write. To
        // lease them again could give a caller bytes that change under it. They stay taken for the
        // life of the arena, and the statistics show them.
        self.0.lost.fetch_add(lease.len(), Ordering::Relaxed);
        std::mem::forget(lease);
    }

    /// How full it is.
    pub fn stats(&self) -> ArenaStats {
        let free = self.0.allocator.free();
        let bytes = |pages: u32| pages as usize * PAGE;
        ArenaStats {
            capacity: self.0.capacity,
            free: bytes(free.pages),
            largest: bytes(free.largest),
            leaked: self.0.lost.load(Ordering::Relaxed),
        }
    }

    fn pages(&self, len: usize) -> Result<u32, Error> {
        let most = self.0.allocator.largest_ever();
        u32::try_from(len.div_ceil(PAGE))
            .ok()
            .filter(|pages| *pages <= most)
            .map(|pages| pages.max(1))
            .ok_or_else(|| {
                let what = format!(
                    "{len} bytes are more than the {} that this arena ever leases; make it larger",
                    most as usize * PAGE
                );
                Error::new(ErrorKind::Invalid, what)
            })
    }

    fn cut(&self, pages: u32, len: usize) -> Option<Lease> {
        let run = self.0.allocator.take(pages)?;
        // SAFETY: the allocator gives runs inside the backing.
        let at = unsafe { self.0.backing.base().add(run.page as usize * PAGE) };
        // From here on the run is returned by a drop alone. Nothing between the allocator and this
        // line can fail or panic with the run lost.
        let owner = Arc::new(Taken { arena: Arc::clone(&self.0), run });
        // SAFETY: the run is exclusively ours until `owner` drops; the backing, zeroed or written when
        // it was made, lives as long.
        let lease = unsafe {
            Lease::from_raw(at, len, self.0.backing.place(), Some(self.0.region.id), owner)
        };
        #[cfg(feature = "cuda")]
        let lease = self.0.backing.on_device(lease);
        Some(lease)
    }
}

/// A run of pages of an arena, returned on drop.
struct Taken {
    arena: Arc<Inner>,
    run: Run,
}

impl Drop for Taken {
    fn drop(&mut self) {
        // First free, then wake: a task that was woken earlier would find nothing, and would sleep
        // without another wake-up.
        self.arena.allocator.give(self.run);
        self.arena.queue.wake();
    }
}
