use std::any::Any;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::alloc::{Allocator, PAGE, Run};
use crate::backing::{self, Backing, BackingKind, Heap, Mapped, Named};
use crate::foreign::Foreign;
use crate::waiting::{Line, Wait};
use crate::{Descriptor, Error, ErrorKind, Lease, Lent, Place, Region, RegionId};

/// How to make an arena.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ArenaConfig {
    /// Size in bytes, rounded up to whole pages.
    pub bytes: usize,
    /// What kind of memory to ask for: `Heap`, `HugeTlb` (which falls back), `Memfd` or `Named`.
    pub kind: BackingKind,
    /// For `Named`: what the name begins with.
    pub prefix: String,
    /// Cut the arena into slots of this size in bytes, rounded up to pages: for chunks that are all alike.
    pub slot_bytes: Option<usize>,
    /// Take the pages from this NUMA node.
    pub numa_node: Option<u32>,
    /// Make all pages be there from the start.
    pub prefault: bool,
}

impl ArenaConfig {
    /// An arena of `bytes` bytes of ordinary host memory.
    pub fn heap(bytes: usize) -> Self {
        ArenaConfig {
            bytes,
            kind: BackingKind::Heap,
            prefix: String::new(),
            slot_bytes: None,
            numa_node: None,
            prefault: false,
        }
    }

    /// An arena in huge pages of 2 MiB, as far as the kernel gives them; [`Arena::backing`] says what it got.
    pub fn huge(bytes: usize) -> Self {
        ArenaConfig { kind: BackingKind::HugeTlb, ..Self::heap(bytes) }
    }

    /// An arena that other processes can map, given its descriptor. Nothing to clean up, whatever dies.
    pub fn memfd(bytes: usize) -> Self {
        ArenaConfig { kind: BackingKind::Memfd, ..Self::heap(bytes) }
    }

    /// An arena that other processes can map by the name in `/dev/shm`, which begins with `prefix`; see [`sweep`](crate::sweep).
    pub fn named(prefix: &str, bytes: usize) -> Self {
        ArenaConfig { kind: BackingKind::Named, prefix: prefix.to_owned(), ..Self::heap(bytes) }
    }

    /// Cuts the arena into slots of `slot_bytes`: for chunks that are all alike.
    pub fn with_slots(mut self, slot_bytes: usize) -> Self {
        self.slot_bytes = Some(slot_bytes);
        self
    }

    /// Takes the pages from a NUMA node.
    pub fn with_numa_node(mut self, node: u32) -> Self {
        self.numa_node = Some(node);
        self
    }

    /// Makes all pages be there from the start: the first use of each is then as fast as any.
    pub fn with_prefault(mut self) -> Self {
        self.prefault = true;
        self
    }

    fn backing(&self) -> Result<Backing, Error> {
        let len = self.bytes.max(1).next_multiple_of(PAGE);
        let backing = match self.kind {
            BackingKind::Heap => Backing::Heap(Heap::new(len)?),
            BackingKind::HugeTlb | BackingKind::TransparentHuge | BackingKind::Mapped => {
                Backing::Mapped(Mapped::huge(len)?)
            }
            BackingKind::Memfd => Backing::Mapped(Mapped::memfd(len)?),
            BackingKind::Named => Backing::Named(Named::new(&self.prefix, len)?),
            BackingKind::Foreign => {
                let what = "foreign memory is not made by a configuration; use Arena::from_raw";
                return Err(Error::new(ErrorKind::Invalid, what));
            }
        };
        if let Some(node) = self.numa_node {
            backing::bind(backing.base(), backing.len(), node)?;
        }
        if self.prefault {
            backing.prefault()?;
        }
        Ok(backing)
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
    backing: Backing,
    region: Region,
    allocator: Allocator,
    /// Pages that the allocator has, in bytes: all but what is left over by slots.
    capacity: usize,
    line: Line,
}

impl Arena {
    /// Reserves the memory.
    pub fn new(config: ArenaConfig) -> Result<Self, Error> {
        Self::over(config.backing()?, config.slot_bytes)
    }

    /// An arena over memory of others, `len` bytes at `base`, that `owner` keeps; `place` says where it lies.
    ///
    /// # Safety
    /// As for [`Lease::from_raw`].
    pub unsafe fn from_raw(
        base: NonNull<u8>,
        len: usize,
        place: Place,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<Self, Error> {
        if !base.addr().get().is_multiple_of(PAGE) || len < PAGE {
            let what = format!("{len} bytes at {base:?} hold no aligned page of {PAGE} bytes; align the memory");
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        // SAFETY: the caller's promise.
        Self::over(Backing::Foreign(unsafe { Foreign::new(base, len, place, owner) }), None)
    }

    fn over(backing: Backing, slot_bytes: Option<usize>) -> Result<Self, Error> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let invalid = |what: String| Error::new(ErrorKind::Invalid, what);
        let pages = u32::try_from(backing.len() / PAGE)
            .map_err(|_| invalid(format!("an arena of {} bytes is too large; make several", backing.len())))?;
        let allocator = match slot_bytes {
            None => Allocator::general(pages),
            Some(bytes) => {
                let slot = u32::try_from(bytes.div_ceil(PAGE)).ok().filter(|slot| (1..=pages).contains(slot));
                let what = || format!("slots of {bytes} bytes do not fit an arena of {} bytes", backing.len());
                Allocator::slots(pages, slot.ok_or_else(|| invalid(what()))?)
            }
        };
        let id = RegionId(NEXT.fetch_add(1, Ordering::Relaxed));
        let region = Region { id, addr: backing.base().addr().get(), len: backing.len() };
        let capacity = allocator.free().pages as usize * PAGE;
        Ok(Arena(Arc::new(Inner { backing, region, allocator, capacity, line: Line::default() })))
    }

    /// A lease of `len` bytes that starts on a 4 KiB boundary, or `Full`; `Invalid` for more than the arena can ever lease. Does not look
    /// at who waits: what serves the present goes before what can wait.
    pub fn lease(&self, len: usize) -> Result<Lease, Error> {
        let pages = self.pages(len)?;
        self.cut(pages, len).ok_or_else(|| {
            let ArenaStats { free, largest, .. } = self.stats();
            let what =
                format!("no {len} bytes free in the arena: {free} are, {largest} in a row; wait, or make it larger");
            Error::new(ErrorKind::Full { free, largest }, what)
        })
    }

    /// A lease of `len` bytes as soon as there is room and all who waited before are served. Dropping the future gives up the place; the
    /// caller adds a deadline. `Invalid` for more than the arena can ever lease.
    pub async fn lease_waiting(&self, len: usize) -> Result<Lease, Error> {
        let pages = self.pages(len)?;
        Ok(Wait::new(&self.0.line, || self.cut(pages, len)).await)
    }

    /// The ranges to register with a ring or a driver.
    pub fn regions(&self) -> Vec<Region> {
        vec![self.0.region]
    }

    /// What kind of memory it got.
    pub fn backing(&self) -> BackingKind {
        self.0.backing.kind()
    }

    /// What another process needs to [attach](crate::Attached); `None` unless it is shared memory.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.backing.fd()
    }

    /// The name in `/dev/shm`, for named memory.
    pub fn name(&self) -> Option<String> {
        if let Backing::Named(named) = &self.0.backing { Some(named.name()) } else { None }
    }

    /// Puts a lease of this arena into another process's hands. Gives it back when it is not of this arena.
    pub fn lend(&self, lease: Lease) -> Result<Lent, Lease> {
        let Region { addr, len, id } = self.0.region;
        if lease.region() != Some(id) || self.fd().is_none() {
            return Err(lease);
        }
        let offset = lease.addr() - addr;
        debug_assert!(offset + lease.len() <= len, "a lease of this region lies in it");
        let descriptor = Descriptor { offset: offset as u64, len: lease.len() as u64 };
        Ok(Lent::new(lease, descriptor))
    }

    /// How full it is.
    pub fn stats(&self) -> ArenaStats {
        let free = self.0.allocator.free();
        let bytes = |pages: u32| pages as usize * PAGE;
        ArenaStats { capacity: self.0.capacity, free: bytes(free.pages), largest: bytes(free.largest) }
    }

    fn pages(&self, len: usize) -> Result<u32, Error> {
        let most = self.0.allocator.largest_ever();
        u32::try_from(len.div_ceil(PAGE)).ok().filter(|pages| *pages <= most).map(|pages| pages.max(1)).ok_or_else(
            || {
                let what = format!(
                    "{len} bytes are more than the {} that this arena ever leases; make it larger",
                    most as usize * PAGE
                );
                Error::new(ErrorKind::Invalid, what)
            },
        )
    }

    fn cut(&self, pages: u32, len: usize) -> Option<Lease> {
        let run = self.0.allocator.take(pages)?;
        // SAFETY: the allocator gives runs inside the backing.
        let at = unsafe { self.0.backing.base().add(run.page as usize * PAGE) };
        let owner = Arc::new(Taken { arena: Arc::clone(&self.0), run });
        // SAFETY: nobody else has the run until `owner` drops; the backing, zeroed or written when it was made, lives as long.
        Some(unsafe { Lease::from_raw(at, len, self.0.backing.place(), Some(self.0.region.id), owner) })
    }
}

/// A run of pages of an arena, until it is dropped.
struct Taken {
    arena: Arc<Inner>,
    run: Run,
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.arena.allocator.give(self.run);
        self.arena.line.wake();
    }
}
