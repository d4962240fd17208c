//! Allocates the pages of an arena. The bookkeeping is outside the memory, so that it works for
//! memory no CPU can reach.

mod slot_allocator;
mod tlsf;

use slot_allocator::SlotAllocator;
use tlsf::Tlsf;

use crate::sync::{Mutex, lock};

/// The unit of allocation in bytes: direct I/O wants it, and GPUs do not mind.
pub(crate) const PAGE: usize = 4096;

/// Which pages are free. Every call takes the same few steps however many leases there are.
#[derive(Debug)]
pub(crate) enum Allocator {
    /// Leases of any size.
    General(Mutex<Tlsf>),
    /// Slots of one size.
    Slots(SlotAllocator),
}

/// A run of pages that is taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    /// The first page.
    pub page: u32,
    /// The handle by which the allocator frees it.
    handle: u32,
}

/// How many pages are free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Free {
    pub pages: u32,
    /// The most that one lease can have now.
    pub largest: u32,
}

impl Allocator {
    /// For `pages` pages.
    pub fn general(pages: u32) -> Self {
        Allocator::General(Mutex::new(Tlsf::new(pages)))
    }

    /// For as many slots of `slot` pages as `pages` pages hold.
    pub fn slots(pages: u32, slot: u32) -> Self {
        Allocator::Slots(SlotAllocator::new(pages / slot, slot))
    }

    /// Takes `pages` pages in a row; `None` when there is no such run.
    pub fn take(&self, pages: u32) -> Option<Run> {
        match self {
            Allocator::General(tlsf) => {
                lock(tlsf).take(pages).map(|(page, handle)| Run { page, handle })
            }
            // A shorter lease takes a whole slot: slots are for chunks that are all alike, where
            // this loses nothing.
            Allocator::Slots(slots) if pages > slots.slot() => None,
            Allocator::Slots(slots) => {
                slots.take().map(|n| Run { page: n * slots.slot(), handle: n })
            }
        }
    }

    /// Gives a run back.
    pub fn give(&self, run: Run) {
        match self {
            Allocator::General(tlsf) => lock(tlsf).give(run.handle),
            Allocator::Slots(slots) => slots.give(run.handle),
        }
    }

    /// How much is free.
    pub fn free(&self) -> Free {
        match self {
            Allocator::General(tlsf) => lock(tlsf).free(),
            Allocator::Slots(slots) => {
                let free = slots.free();
                Free {
                    pages: free * slots.slot(),
                    largest: if free > 0 { slots.slot() } else { 0 },
                }
            }
        }
    }

    /// The most pages that one lease can ever have.
    pub fn largest_ever(&self) -> u32 {
        match self {
            Allocator::General(tlsf) => lock(tlsf).pages(),
            Allocator::Slots(slots) => slots.slot(),
        }
    }
}
