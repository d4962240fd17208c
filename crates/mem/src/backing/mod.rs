//! The memory of an arena. Each kind is a range of bytes that stays in place until
//! it is dropped.

mod backing_kind;
mod heap;
mod host_memory;
mod mapped;
mod named;
mod numa;
mod stale_segments;
mod transparent_huge_pages;

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

pub use backing_kind::BackingKind;
pub(crate) use host_memory::HostMemory;
pub(crate) use mapped::Mapped;
pub(crate) use named::open;
pub use stale_segments::{Swept, sweep};

#[cfg(feature = "cuda")]
use crate::Lease;
#[cfg(feature = "cuda")]
use crate::cuda::{DeviceMemory, Pinned};
use crate::foreign::ForeignMemory;
use crate::{ArenaConfig, Error, Place};

/// The memory of one arena.
#[derive(Debug)]
pub(crate) enum Backing {
    Host(HostMemory),
    Foreign(ForeignMemory),
    #[cfg(feature = "cuda")]
    Pinned(Pinned),
    #[cfg(feature = "cuda")]
    Device(DeviceMemory),
}

impl Backing {
    /// What the configuration asks for, zeroed.
    pub fn new(config: &ArenaConfig) -> Result<Self, Error> {
        HostMemory::new(config).map(Backing::Host)
    }

    /// The first byte.
    pub fn base(&self) -> NonNull<u8> {
        match self {
            Backing::Host(host) => host.base(),
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
            Backing::Host(host) => host.len(),
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
            Backing::Host(host) => host.kind(),
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
        if let Backing::Host(host) = self { host.fd() } else { None }
    }

    /// The name in `/dev/shm`, for named memory.
    pub fn name(&self) -> Option<String> {
        if let Backing::Host(HostMemory::Named(named)) = self { Some(named.name()) } else { None }
    }
}
