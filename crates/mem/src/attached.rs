use std::fs::File;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};

use crate::backing::{self, Mapped};
use crate::{Descriptor, Error, ErrorKind, Lease, Place, Region, RegionId};

/// The arena of another process, mapped here. Bytes are copied in and out, or used in place through
/// a [lease](Attached::lease). The protocol between the two processes must say which one may access
/// which bytes when; nothing else does. Clones share the mapping.
#[derive(Clone, Debug)]
pub struct Attached(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    map: Mapped,
    region: Region,
}

impl Attached {
    /// Maps an arena by the descriptor that its process passed on: inherited, or
    /// [received](Attached::receive) over a Unix socket.
    ///
    /// # Errors
    ///
    /// `Invalid` when the size of the memory is not sealed, as it is for every
    /// [memfd](crate::ArenaConfig::memfd) arena. Memory that shrinks while it is mapped kills the
    /// process that accesses it. `Io` where the kernel refuses.
    pub fn new(fd: OwnedFd) -> Result<Self, Error> {
        let file = File::from(fd);
        // An error for what can have no seals: no file in memory.
        let seals = fcntl(&file, FcntlArg::F_GET_SEALS)
            .map_or(SealFlag::empty(), SealFlag::from_bits_truncate);
        if !seals.contains(SealFlag::F_SEAL_SHRINK) {
            let what = "the size of this memory is not sealed; pass on a memfd arena, or open a named one by its name";
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        Self::of_file(file)
    }

    /// Maps memory by its name in `/dev/shm`: a [named](crate::ArenaConfig::named) arena, or
    /// another program's segment.
    ///
    /// # Safety
    /// No process may shrink the segment while it is mapped here: access beyond its end ends the
    /// process (SIGBUS).
    pub unsafe fn open(name: &str) -> Result<Self, Error> {
        Self::of_file(backing::open(name)?)
    }

    fn of_file(file: File) -> Result<Self, Error> {
        let failed = |e| {
            Error::new(ErrorKind::Io, "cannot use the descriptor of a shared arena").with_source(e)
        };
        let meta = file.metadata().map_err(failed)?;
        let len = usize::try_from(meta.len()).unwrap_or(usize::MAX);
        if !meta.is_file() || len == 0 {
            let what =
                "an arena is a file in memory that is not empty; pass on what Arena::fd gives";
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        let map = Mapped::of_file(file, len)?;
        let region = Region { id: RegionId::next(), addr: map.base().addr().get(), len };
        Ok(Attached(Arc::new(Inner { map, region })))
    }

    /// How many bytes are mapped.
    pub fn len(&self) -> usize {
        self.0.map.len()
    }

    /// Whether nothing is mapped; never.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The range to register with a ring or a driver.
    pub fn region(&self) -> Region {
        self.0.region
    }

    /// Copies the first bytes of the descriptor's range to `to`.
    ///
    /// # Safety
    /// No process may write these bytes meanwhile: the maker lent them to us, or keeps a view of
    /// them.
    pub unsafe fn read(&self, from: Descriptor, to: &mut [u8]) -> Result<(), Error> {
        let at = self.range(from, to.len())?;
        // SAFETY: inside our mapping, whose size is sealed, or kept by the promise made to `open`;
        // `to` is ours and elsewhere; no process writes, by the caller's promise.
        unsafe { at.copy_to_nonoverlapping(NonNull::from(&mut *to).cast(), to.len()) };
        Ok(())
    }

    /// Copies `from` to the start of the descriptor's range.
    ///
    /// # Safety
    /// The maker holds a [`Lent`](crate::Lent) of exactly this descriptor, or of a range around it,
    /// and no process may use these bytes otherwise meanwhile: views promise that their bytes never
    /// change.
    pub unsafe fn write(&self, to: Descriptor, from: &[u8]) -> Result<(), Error> {
        let at = self.range(to, from.len())?;
        // SAFETY: inside our mapping, as for `read`; nothing else uses these bytes, by the caller's
        // promise.
        unsafe { at.copy_from_nonoverlapping(NonNull::from(from).cast(), from.len()) };
        Ok(())
    }

    /// The descriptor's range as a lease, without a copy. Dropping it does not inform the maker:
    /// report to it that the bytes are no longer used. To read what the maker wrote, declare it
    /// [filled](Lease::assume_filled).
    ///
    /// # Safety
    /// The maker holds a [`Lent`](crate::Lent) of exactly this descriptor, or of a range around it,
    /// until the lease and all its views are dropped, and no process may use these bytes otherwise
    /// meanwhile.
    pub unsafe fn lease(&self, of: Descriptor) -> Result<Lease, Error> {
        let at = self.range(of, 0)?;
        let owner = Arc::clone(&self.0) as Arc<dyn std::any::Any + Send + Sync>;
        // SAFETY: inside our mapping, which `owner` keeps, and the kernel zeroed when it was made;
        // exclusive by the caller's promise. The length fits, because the range is inside
        // the mapping.
        Ok(unsafe {
            Lease::from_raw(at, of.len as usize, Place::Shm, Some(self.0.region.id), owner)
        })
    }

    /// The first byte of `n` bytes inside the descriptor's range and inside the mapping.
    fn range(&self, descriptor: Descriptor, n: usize) -> Result<NonNull<u8>, Error> {
        let end =
            descriptor.offset.checked_add(descriptor.len).filter(|end| *end <= self.len() as u64);
        if end.is_none() || n as u64 > descriptor.len {
            let what = format!(
                "{n} bytes of {descriptor:?} reach outside an arena of {} bytes",
                self.len()
            );
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        // SAFETY: the offset is at most the length of the mapping.
        Ok(unsafe { self.0.map.base().add(descriptor.offset as usize) })
    }
}
