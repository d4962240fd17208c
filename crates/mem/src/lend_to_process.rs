//! Memory of an arena that another process uses.
//!
//! The protocol: the maker of a shared arena leases and reads as always. To give another process
//! access to bytes, it turns a lease into a [`Lent`], whose bytes cannot be read here, and sends
//! the [`Descriptor`] to the other process. It reclaims the lease when the other process reports
//! that it is done, or is dead. [`Arena::describe`] gives the descriptor of bytes that both
//! processes only read.

use crate::{Arena, Descriptor, Lease, Region, RegionId, View};

impl Arena {
    /// Hands a lease of this arena to another process. Returns the lease if it is not of this
    /// arena, or the arena is not shared.
    pub fn lend(&self, lease: Lease) -> Result<Lent, Lease> {
        match self.descriptor(lease.region(), lease.addr(), lease.len()) {
            Some(descriptor) => Ok(Lent::new(self.clone(), lease, descriptor)),
            None => Err(lease),
        }
    }

    /// The position of a view in this arena, so that another process can read it too. Keep the view
    /// until the other process is done. `None` if the view is not of this arena, or the arena is
    /// not shared.
    pub fn describe(&self, view: &View) -> Option<Descriptor> {
        self.descriptor(view.region(), view.addr(), view.len())
    }

    fn descriptor(&self, of: Option<RegionId>, addr: usize, len: usize) -> Option<Descriptor> {
        let Region { addr: base, id, .. } = self.region();
        (of == Some(id) && self.fd().is_some())
            .then(|| Descriptor { offset: (addr - base) as u64, len: len as u64 })
    }
}

/// A lease that another process reads or writes now. This process cannot access the bytes until
/// [`reclaim`](Lent::reclaim): Rust's aliasing rules do not reach across processes.
///
/// If it is dropped, the memory never returns to the arena, because the other process may use it
/// for ever. It counts as [`leaked`](crate::ArenaStats::leaked).
#[derive(Debug)]
#[must_use = "only reclaim gives the memory back"]
pub struct Lent {
    arena: Arena,
    /// `None` once it is reclaimed.
    lease: Option<Lease>,
    descriptor: Descriptor,
}

impl Lent {
    fn new(arena: Arena, lease: Lease, descriptor: Descriptor) -> Self {
        Lent { arena, lease: Some(lease), descriptor }
    }

    /// The descriptor to send to the other process.
    pub fn descriptor(&self) -> Descriptor {
        self.descriptor
    }

    /// The other process reported that it is done and filled the first `filled` bytes; or it is
    /// dead.
    pub fn reclaim(mut self, filled: usize) -> Lease {
        let mut lease = self.lease.take().expect("only reclaim, which ends it, takes the lease");
        lease.assume_filled(filled);
        lease
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.lease.take().into_iter().for_each(|lease| self.arena.leak(lease));
    }
}
