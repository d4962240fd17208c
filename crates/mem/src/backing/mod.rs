//! The memory of an arena. Each kind is a range of bytes that stays in place until
//! it is dropped.

mod heap;
mod mapped;
mod named;
mod numa;
mod stale_segments;
mod transparent_huge_pages;

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use heap::Heap;
pub(crate) use mapped::Mapped;
use named::Named;
pub(crate) use named::open;
pub use stale_segments::{Swept, sweep};

#[cfg(feature = "cuda")]
use crate::Lease;
#[cfg(feature = "cuda")]
use crate::cuda::{DeviceMemory, Pinned};
use crate::foreign::ForeignMemory;
use crate::{ArenaConfig, Error, ErrorKind, Place};

/// The kind of memory of an arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum BackingKind {
    /// Pages of 4 KiB from the allocator.
    Heap,
    /// Huge pages that the kernel had reserved (`vm.nr_hugepages`). All are there from the start.
    HugeTlb,
    /// Memory for which huge pages were asked; the kernel gives them as it can.
    TransparentHuge,
    /// Pages of 4 KiB from the kernel, which come as they are touched.
    Mapped,
    /// Memory that other processes can map: a memfd.
    Memfd,
    /// Memory that other processes can map by name, in `/dev/shm`. All of it is reserved from the
    /// start.
    Named,
    /// Foreign memory.
    Foreign,
    /// A GPU's.
    Device,
}

/// The memory of one arena.
#[derive(Debug)]
pub(crate) enum Backing {
    Heap(Heap),
    Mapped(Mapped),
    Named(Named),
    Foreign(ForeignMemory),
    #[cfg(feature = "cuda")]
    Pinned(Pinned),
    #[cfg(feature = "cuda")]
    Device(DeviceMemory),
}

impl Backing {
    /// What the configuration asks for, zeroed.
    pub fn new(config: &ArenaConfig) -> Result<Self, Error> {
        let len = config.len()?;
        let node = config.numa_node;
        let backing = match config.kind {
            BackingKind::Heap if node.is_none() => Backing::Heap(Heap::new(len)?),
            BackingKind::Heap | BackingKind::Mapped => Backing::Mapped(Mapped::plain(len)?),
            BackingKind::HugeTlb => Backing::Mapped(Mapped::huge(len, node)?),
            BackingKind::TransparentHuge => Backing::Mapped(Mapped::transparent(len)?),
            BackingKind::Memfd => Backing::Mapped(Mapped::memfd(len)?),
            BackingKind::Named => Backing::Named(Named::new(&config.prefix, len, node)?),
            BackingKind::Foreign | BackingKind::Device => {
                let what = "foreign and device memory are not made by a configuration; use Arena::from_raw and Arena::device";
                return Err(Error::new(ErrorKind::Invalid, what));
            }
        };
        if let Backing::Mapped(map) = &backing {
            numa::bind(map, node)?;
        }
        if config.prefault {
            mapped::populate(backing.base(), backing.len())?;
        }
        Ok(backing)
    }

    /// The first byte.
    pub fn base(&self) -> NonNull<u8> {
        match self {
            Backing::Heap(heap) => heap.base(),
            Backing::Mapped(map) => map.base(),
            Backing::Named(named) => named.map().base(),
            Backing::Foreign(foreign) => foreign.base(),
            #[cfg(feature = "cuda")]
            Backing::Pinned(pinned) => pinned.memory().base(),
            #[cfg(feature = "cuda")]
            Backing::Device(device) => device.base(),
        }
    }

    /// How many bytes.
    pub fn len(&self) -> usize {
        match self {
            Backing::Heap(heap) => heap.len(),
            Backing::Mapped(map) => map.len(),
            Backing::Named(named) => named.map().len(),
            Backing::Foreign(foreign) => foreign.len(),
            #[cfg(feature = "cuda")]
            Backing::Pinned(pinned) => pinned.memory().len(),
            #[cfg(feature = "cuda")]
            Backing::Device(device) => device.len(),
        }
    }

    /// What it is.
    pub fn kind(&self) -> BackingKind {
        match self {
            Backing::Heap(_) => BackingKind::Heap,
            Backing::Mapped(map) => map.kind(),
            Backing::Named(_) => BackingKind::Named,
            Backing::Foreign(_) => BackingKind::Foreign,
            #[cfg(feature = "cuda")]
            Backing::Pinned(pinned) => pinned.memory().kind(),
            #[cfg(feature = "cuda")]
            Backing::Device(_) => BackingKind::Device,
        }
    }

    /// The place of its leases.
    pub fn place(&self) -> Place {
        match self {
            Backing::Foreign(foreign) => foreign.place(),
            #[cfg(feature = "cuda")]
            Backing::Pinned(_) => Place::Pinned,
            #[cfg(feature = "cuda")]
            Backing::Device(device) => Place::Device(device.gpu().ordinal()),
            _ if matches!(self.kind(), BackingKind::Memfd | BackingKind::Named) => Place::Shm,
            _ => Place::Heap,
        }
    }

    /// Sets the GPU of a lease of it, if it is on one.
    #[cfg(feature = "cuda")]
    pub fn on_device(&self, mut lease: Lease) -> Lease {
        if let Some(gpu) = self.gpu() {
            lease.set_gpu(gpu.clone());
        }
        lease
    }

    /// The GPU that holds it.
    #[cfg(feature = "cuda")]
    pub fn gpu(&self) -> Option<&crate::cuda::Gpu> {
        match self {
            Backing::Device(device) => Some(device.gpu()),
            Backing::Foreign(foreign) => foreign.gpu(),
            _ => None,
        }
    }

    /// What another process needs to map it.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Backing::Mapped(map) => map.fd(),
            Backing::Named(named) => named.map().fd(),
            _ => None,
        }
    }
}
