//! Memory of an arena in the hands of another process.
//!
//! The protocol: the maker of a shared arena leases as ever, and looks at its leases as ever. To
//! let another process at the bytes, it turns a lease into a [`Lent`], which cannot be looked at,
//! tells the other process the [`Descriptor`], and reclaims the lease when the other says that it
//! is done, or is dead. Bytes that both only read are told by [`Arena::describe`].

use crate::{Arena, Lease};

/// Where a lease lies in its arena, for telling another process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Descriptor {
    /// First byte, from the start of the arena's memory.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

/// A lease whose bytes another process reads or writes now. Nobody here can look at them until
/// [`reclaim`](Lent::reclaim): Rust's rules on shared bytes reach no further than the process.
///
/// Dropped, the memory never goes back to the arena, because nobody could say any more when the
/// other process is done with it; it counts as [`leaked`](crate::ArenaStats::leaked).
#[derive(Debug)]
#[must_use = "only reclaim gives the memory back"]
pub struct Lent {
    arena: Arena,
    /// `None` once it is reclaimed.
    lease: Option<Lease>,
    descriptor: Descriptor,
}

impl Lent {
    pub(crate) fn new(arena: Arena, lease: Lease, descriptor: Descriptor) -> Self {
        Lent { arena, lease: Some(lease), descriptor }
    }

    /// What to tell the other process.
    pub fn descriptor(&self) -> Descriptor {
        self.descriptor
    }

    /// The other process said that it is done, and that it filled the first `filled` bytes; or it
    /// is dead.
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

impl Descriptor {
    /// Its form on a wire: offset and length, little-endian.
    pub fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.offset.to_le_bytes());
        bytes[8..].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }

    /// What [`to_bytes`](Descriptor::to_bytes) wrote. Any bytes are a descriptor; one that reaches
    /// outside the arena is refused where it is used.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        let both = u128::from_le_bytes(bytes);
        Descriptor { offset: both as u64, len: (both >> 64) as u64 }
    }
}
