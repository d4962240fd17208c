use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use super::heap::Heap;
use super::mapped::{self, Mapped};
use super::named::Named;
use super::{BackingKind, numa};
use crate::{ArenaConfig, Error, ErrorKind};

/// Host memory that this process allocated for an arena.
#[derive(Debug)]
pub(crate) enum HostMemory {
    Heap(Heap),
    Mapped(Mapped),
    Named(Named),
}

impl HostMemory {
    /// What the configuration asks for, zeroed.
    pub fn new(config: &ArenaConfig) -> Result<Self, Error> {
        let len = config.len()?;
        let node = config.numa_node;
        let memory = match config.kind {
            BackingKind::Heap if node.is_none() => HostMemory::Heap(Heap::new(len)?),
            BackingKind::Heap | BackingKind::Mapped => HostMemory::Mapped(Mapped::plain(len)?),
            BackingKind::HugeTlb => HostMemory::Mapped(Mapped::huge(len, node)?),
            BackingKind::TransparentHuge => HostMemory::Mapped(Mapped::transparent(len)?),
            BackingKind::Memfd => HostMemory::Mapped(Mapped::memfd(len)?),
            BackingKind::Named => HostMemory::Named(Named::new(&config.prefix, len, node)?),
            BackingKind::Foreign | BackingKind::Device => {
                let what = "foreign and device memory are not made by a configuration; use Arena::from_raw and Arena::device";
                return Err(Error::new(ErrorKind::Invalid, what));
            }
        };
        if let HostMemory::Mapped(map) = &memory {
            // SAFETY: the range is our own mapping.
            unsafe { numa::bind(map.base(), map.len(), node) }?;
        }
        if config.prefault {
            mapped::populate(memory.base(), memory.len())?;
        }
        Ok(memory)
    }

    /// The first byte.
    pub fn base(&self) -> NonNull<u8> {
        match self {
            HostMemory::Heap(heap) => heap.base(),
            HostMemory::Mapped(map) => map.base(),
            HostMemory::Named(named) => named.map().base(),
        }
    }

    /// How many bytes.
    pub fn len(&self) -> usize {
        match self {
            HostMemory::Heap(heap) => heap.len(),
            HostMemory::Mapped(map) => map.len(),
            HostMemory::Named(named) => named.map().len(),
        }
    }

    /// What it is.
    pub fn kind(&self) -> BackingKind {
        match self {
            HostMemory::Heap(_) => BackingKind::Heap,
            HostMemory::Mapped(map) => map.kind(),
            HostMemory::Named(_) => BackingKind::Named,
        }
    }

    /// What another process needs to map it.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            HostMemory::Heap(_) => None,
            HostMemory::Mapped(map) => map.fd(),
            HostMemory::Named(named) => named.map().fd(),
        }
    }
}
