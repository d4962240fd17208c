use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::{Lease, Place, View};

/// Somebody else's memory, as an arena's backing.
pub(crate) struct Foreign {
    base: NonNull<u8>,
    len: usize,
    place: Place,
    _owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: whoever made it promised that the memory is ours alone until the owner drops; the owner is Send + Sync.
unsafe impl Send for Foreign {}
// SAFETY: as above.
unsafe impl Sync for Foreign {}

impl Foreign {
    /// The range `base..base + len`, kept by `owner`.
    ///
    /// # Safety
    /// As for [`Lease::from_raw`].
    pub unsafe fn new(base: NonNull<u8>, len: usize, place: Place, owner: Arc<dyn Any + Send + Sync>) -> Self {
        Foreign { base, len, place, _owner: owner }
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

impl std::fmt::Debug for Foreign {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Foreign({} bytes, {:?})", self.len, self.place)
    }
}

/// A vector that only its raw memory is used of until it is dropped.
struct Kept(#[expect(dead_code, reason = "dropped, not read")] Vec<u8>);

impl From<Vec<u8>> for Lease {
    /// The vector's bytes, all initialised, without a copy. They need not be aligned to pages.
    fn from(mut bytes: Vec<u8>) -> Lease {
        let (base, len) = (NonNull::from(bytes.as_mut_slice()).cast(), bytes.len());
        // SAFETY: the vector's buffer stays where it is while the vector, which nobody else can reach any more, is kept; all `len` bytes
        // are initialised.
        let mut lease = unsafe { Lease::from_raw(base, len, Place::Heap, None, Arc::new(Kept(bytes))) };
        lease.assume_filled(len);
        lease
    }
}

impl From<Vec<u8>> for View {
    /// The vector's bytes, without a copy.
    fn from(bytes: Vec<u8>) -> View {
        Lease::from(bytes).freeze()
    }
}
