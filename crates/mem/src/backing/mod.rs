//! Where an arena's memory comes from. Each kind is a range of bytes that stays where it is until it is dropped.

mod heap;
mod mapped;
mod named;
mod numa;

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

pub(crate) use heap::Heap;
pub(crate) use mapped::Mapped;
pub(crate) use named::Named;
pub use named::{Swept, sweep};
pub(crate) use numa::bind;

use crate::foreign::Foreign;
use crate::{Error, Place};

/// What kind of memory an arena has, and got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum BackingKind {
    /// Pages of 4 KiB from the allocator.
    Heap,
    /// Huge pages that the kernel had set aside (`vm.nr_hugepages`).
    HugeTlb,
    /// Memory for which huge pages were asked; the kernel gives them as it can.
    TransparentHuge,
    /// Pages of 4 KiB, because this kernel knows no huge ones.
    Mapped,
    /// Memory that other processes can map: a memfd.
    Memfd,
    /// Memory that other processes can map by name, in `/dev/shm`.
    Named,
    /// Somebody else's.
    Foreign,
}

/// The memory of one arena.
#[derive(Debug)]
pub(crate) enum Backing {
    Heap(Heap),
    Mapped(Mapped),
    Named(Named),
    Foreign(Foreign),
}

impl Backing {
    /// The first byte.
    pub fn base(&self) -> NonNull<u8> {
        match self {
            Backing::Heap(heap) => heap.base(),
            Backing::Mapped(map) => map.base(),
            Backing::Named(named) => named.map().base(),
            Backing::Foreign(foreign) => foreign.base(),
        }
    }

    /// How many bytes.
    pub fn len(&self) -> usize {
        match self {
            Backing::Heap(heap) => heap.len(),
            Backing::Mapped(map) => map.len(),
            Backing::Named(named) => named.map().len(),
            Backing::Foreign(foreign) => foreign.len(),
        }
    }

    /// What it is.
    pub fn kind(&self) -> BackingKind {
        match self {
            Backing::Heap(_) => BackingKind::Heap,
            Backing::Mapped(map) => map.kind(),
            Backing::Named(_) => BackingKind::Named,
            Backing::Foreign(_) => BackingKind::Foreign,
        }
    }

    /// Where leases of it lie.
    pub fn place(&self) -> Place {
        match self {
            Backing::Foreign(foreign) => foreign.place(),
            _ if matches!(self.kind(), BackingKind::Memfd | BackingKind::Named) => Place::Shm,
            _ => Place::Heap,
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

    /// Makes every page be there now.
    pub fn prefault(&self) -> Result<(), Error> {
        mapped::populate(self.base(), self.len())
    }
}
