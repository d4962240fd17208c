use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use crate::alloc::PAGE;
use crate::{Error, ErrorKind};

/// Memory from the global allocator, aligned to pages.
#[derive(Debug)]
pub(crate) struct Heap {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it owns its memory and gives no access; users of the address are `unsafe`.
unsafe impl Send for Heap {}
// SAFETY: as above.
unsafe impl Sync for Heap {}

impl Heap {
    /// `len` bytes (at least 1), zeroed.
    pub fn new(len: usize) -> Result<Self, Error> {
        let layout = Layout::from_size_align(len.max(1), PAGE).map_err(|_| {
            Error::new(ErrorKind::Invalid, format!("an arena of {len} bytes is too large"))
        })?;
        // SAFETY: the layout has a non-zero size.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(|| {
            Error::new(
                ErrorKind::Full { free: 0, largest: 0 },
                format!("no memory for an arena of {len} bytes"),
            )
        })?;
        Ok(Heap { base, layout })
    }

    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub fn len(&self) -> usize {
        self.layout.size()
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: allocated with this very layout, and dropped once.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}
