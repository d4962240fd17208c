//! Memory of an arena that another process uses.
//!
//! The protocol: the maker of a shared arena leases and reads as always. To give another process
//! access to bytes, it turns a lease into a [`Lent`], whose bytes cannot be read here, and sends
//! the [`Descriptor`] to the other process. It reclaims the lease when the other process reports
//! that it is done, or is dead. [`Arena::describe`] gives the descriptor of bytes that both
//! processes only read.

use crate::{Arena, Lease};

/// The position of a lease in its arena, to send to another process.
///
/// ```
/// use kvtier_mem::{Arena, ArenaConfig, Attached, Descriptor};
///
/// let arena = Arena::new(ArenaConfig::memfd(1 << 20))?;
/// let mut lease = arena.lease(4096)?;
/// lease.write_at(0, b"from process A")?;
/// let view = lease.freeze();
/// let message = arena.describe(&view).unwrap().to_bytes();
///
/// // Process B received the file descriptor and the message over a Unix socket.
/// let attached = Attached::new(arena.fd().unwrap().try_clone_to_owned()?)?;
/// let mut bytes = [0; 14];
/// // SAFETY: process A keeps the view, so no process writes these bytes.
/// unsafe { attached.read(Descriptor::from_bytes(message), &mut bytes) }?;
/// assert_eq!(&bytes, b"from process A");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Descriptor {
    /// First byte, from the start of the arena's memory.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
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
    pub(crate) fn new(arena: Arena, lease: Lease, descriptor: Descriptor) -> Self {
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

impl Descriptor {
    /// The wire form: offset and length, little-endian.
    pub fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.offset.to_le_bytes());
        bytes[8..].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }

    /// Parses [`to_bytes`](Descriptor::to_bytes). Any bytes are a descriptor; one that reaches
    /// outside the arena is refused where it is used.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        let both = u128::from_le_bytes(bytes);
        Descriptor { offset: both as u64, len: (both >> 64) as u64 }
    }
}
