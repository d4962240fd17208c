//! Memory of an arena in the hands of another process.

use std::os::fd::OwnedFd;

use crate::alloc::PAGE;
use crate::backing::Mapped;
use crate::{Error, ErrorKind, Lease};

/// Where a lease lies in its arena, for telling another process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Descriptor {
    /// First byte, from the start of the arena's memory.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

/// A lease whose bytes another process reads or writes now. Nobody here can look at them until [`reclaim`](Lent::reclaim): Rust's rules on
/// shared bytes reach no further than the process.
#[derive(Debug)]
#[must_use = "dropped, it gives memory that another process still uses back to the arena"]
pub struct Lent {
    lease: Lease,
    descriptor: Descriptor,
}

impl Lent {
    pub(crate) fn new(lease: Lease, descriptor: Descriptor) -> Self {
        Lent { lease, descriptor }
    }

    /// What to tell the other process.
    pub fn descriptor(&self) -> Descriptor {
        self.descriptor
    }

    /// The other process said that it is done, and that it filled the first `filled` bytes; or it is dead.
    pub fn reclaim(mut self, filled: usize) -> Lease {
        self.lease.assume_filled(filled);
        self.lease
    }
}

/// Another process's arena, mapped here. Bytes are copied in and out: only the protocol between the two says who may touch what when.
#[derive(Debug)]
pub struct Attached(Mapped);

impl Attached {
    /// Maps an arena's memory by the descriptor that its process passed on (inherited, or over a Unix socket).
    pub fn new(fd: OwnedFd) -> Result<Self, Error> {
        let failed = |e| Error::new(ErrorKind::Io, "cannot use the descriptor of a shared arena").with_source(e);
        let file = std::fs::File::from(fd);
        let len = file.metadata().map_err(failed)?.len() as usize;
        if len == 0 || !len.is_multiple_of(PAGE) {
            return Err(Error::new(ErrorKind::Invalid, format!("a file of {len} bytes is no arena")));
        }
        Ok(Attached(Mapped::of_file(file.into(), len)?))
    }

    /// How many bytes are mapped.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether nothing is mapped.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies the first bytes of what the descriptor says out to `to`.
    pub fn read(&self, from: Descriptor, to: &mut [u8]) -> Result<(), Error> {
        let at = self.range(from, to.len())?;
        // SAFETY: inside our mapping, whose size is sealed or held by its maker; `to` is ours and elsewhere. The other process may write at
        // the same time if it breaks the protocol: then the copy has any bytes, which checksums find.
        unsafe { self.0.base().add(at).copy_to_nonoverlapping(std::ptr::NonNull::from(&mut *to).cast(), to.len()) };
        Ok(())
    }

    /// Copies `from` to the first bytes of what the descriptor says.
    pub fn write(&self, to: Descriptor, from: &[u8]) -> Result<(), Error> {
        let at = self.range(to, from.len())?;
        // SAFETY: as for `read`; the other process holds a `Lent`, so nothing there refers to these bytes.
        unsafe { self.0.base().add(at).copy_from_nonoverlapping(std::ptr::NonNull::from(from).cast(), from.len()) };
        Ok(())
    }

    /// The first byte of `n` bytes inside the descriptor's range and inside the mapping.
    fn range(&self, descriptor: Descriptor, n: usize) -> Result<usize, Error> {
        let end = descriptor.offset.checked_add(descriptor.len).filter(|end| *end <= self.len() as u64);
        if end.is_none() || n as u64 > descriptor.len {
            let what = format!("{n} bytes of {descriptor:?} reach outside an arena of {} bytes", self.len());
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        Ok(descriptor.offset as usize)
    }
}
