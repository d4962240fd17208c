//! Foreign memory: kept alive by its owner until the last use.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::alloc::PAGE;
use crate::{Error, ErrorKind, Lease, Place, View};

/// Foreign memory as the backing of an arena.
pub(crate) struct ForeignMemory {
    base: NonNull<u8>,
    len: usize,
    place: Place,
    #[cfg(feature = "cuda")]
    gpu: Option<crate::cuda::Gpu>,
    _owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the constructor's caller promised that the memory is exclusively ours until the owner
// drops; the owner is Send + Sync.
unsafe impl Send for ForeignMemory {}
// SAFETY: as above.
unsafe impl Sync for ForeignMemory {}

impl ForeignMemory {
    /// The range `base..base + len`, kept by `owner`.
    ///
    /// # Errors
    ///
    /// `Invalid` for memory without an aligned page.
    ///
    /// # Safety
    /// As for [`Lease::from_raw`].
    pub unsafe fn new(
        base: NonNull<u8>,
        len: usize,
        place: Place,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<Self, Error> {
        check_aligned(base.addr().get(), len)?;
        Ok(ForeignMemory {
            base,
            len,
            place,
            #[cfg(feature = "cuda")]
            gpu: None,
            _owner: owner,
        })
    }

    /// Like [`new`](ForeignMemory::new) for memory on a GPU, at `addr`.
    ///
    /// # Errors
    ///
    /// `Invalid` for memory without an aligned page, for addresses that are not on a GPU, and for a
    /// range that reaches past an allocation.
    ///
    /// # Safety
    /// As for [`Lease::from_device`].
    #[cfg(feature = "cuda")]
    pub unsafe fn on_gpu(
        addr: usize,
        len: usize,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<Self, Error> {
        check_aligned(addr, len)?;
        let base = NonNull::new(addr as *mut u8).ok_or_else(|| unaligned(addr, len))?;
        let gpu = crate::cuda::Gpu::of(addr, len)?;
        let place = Place::Device(gpu.ordinal());
        Ok(ForeignMemory { base, len, place, gpu: Some(gpu), _owner: owner })
    }

    /// The GPU that holds it.
    #[cfg(feature = "cuda")]
    pub fn gpu(&self) -> Option<&crate::cuda::Gpu> {
        self.gpu.as_ref()
    }

    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn place(&self) -> Place {
        self.place
    }
}

/// An arena allocates whole pages, aligned to a page.
fn check_aligned(addr: usize, len: usize) -> Result<(), Error> {
    if addr.is_multiple_of(PAGE) && len >= PAGE { Ok(()) } else { Err(unaligned(addr, len)) }
}

fn unaligned(addr: usize, len: usize) -> Error {
    let what =
        format!("{len} bytes at {addr:#x} hold no aligned page of {PAGE} bytes; align the memory");
    Error::new(ErrorKind::Invalid, what)
}

impl std::fmt::Debug for ForeignMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ForeignMemory({} bytes, {:?})", self.len, self.place)
    }
}

impl Lease {
    /// The owner's bytes, all of them data, without a copy. The owner is dropped with the last part
    /// of the lease. The bytes need not be page-aligned.
    pub fn from_owner(owner: impl AsMut<[u8]> + Send + Sync + 'static) -> Lease {
        let mut owner = Arc::new(owner);
        // The owner has its final address by now, so that bytes inside it have theirs.
        let bytes = Arc::get_mut(&mut owner).expect("the Arc is new").as_mut();
        let base = NonNull::from(&mut *bytes).cast();
        let len = bytes.len();
        // SAFETY: borrowed exclusively from the owner, who is not touched again until it is
        // dropped, after the last use; a slice is initialised.
        let mut lease = unsafe { Lease::from_raw(base, len, Place::Heap, None, owner) };
        lease.assume_filled(len);
        lease
    }
}

impl View {
    /// The owner's bytes, without a copy. The owner is dropped with the last view. They are
    /// borrowed for reading, so [`into_lease`](View::into_lease) never returns a lease of them.
    pub fn from_owner(owner: impl AsRef<[u8]> + Send + Sync + 'static) -> View {
        let owner = Arc::new(owner);
        let bytes = (*owner).as_ref();
        let base = NonNull::from(bytes).cast();
        let len = bytes.len();
        // SAFETY: borrowed from the owner, who is not touched again until it is dropped, after the
        // last use; a slice is initialised. A lease promises more, that the bytes may be
        // written: this one goes into a read-only view, which only reads through it and never lets
        // it out.
        let mut lease = unsafe { Lease::from_raw(base, len, Place::Heap, None, owner) };
        lease.assume_filled(len);
        View::read_only(lease)
    }
}

impl From<Vec<u8>> for Lease {
    /// The vector's bytes, all initialised, without a copy. They need not be aligned to pages.
    fn from(bytes: Vec<u8>) -> Lease {
        Lease::from_owner(bytes)
    }
}

impl From<Vec<u8>> for View {
    /// The vector's bytes, without a copy.
    fn from(bytes: Vec<u8>) -> View {
        Lease::from(bytes).freeze()
    }
}
