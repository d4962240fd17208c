//! Memory of an arena from the global allocator.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use crate::alloc::PAGE;
use crate::{Error, ErrorKind};

/// Memory from the global allocator, aligned to pages.
#[derive(Debug)]
pub(crate) struct Heap {
    /// The first whole page of the block.
    base: NonNull<u8>,
    len: usize,
    block: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it owns its memory and gives no access; users of the address are `unsafe`.
unsafe impl Send for Heap {}
// SAFETY: as above.
unsafe impl Sync for Heap {}

impl Heap {
    /// `len` bytes (at least 1), zeroed.
    ///
    /// The block is a page longer and aligned by us: for an alignment of its own `alloc_zeroed`
    /// clears the memory byte by byte, where the kernel has zeroed pages once they are used.
    pub fn new(len: usize) -> Result<Self, Error> {
        let len = len.max(1);
        let layout = len.checked_add(PAGE).and_then(|all| Layout::array::<u8>(all).ok());
        let layout = layout.ok_or_else(|| {
            Error::new(ErrorKind::Invalid, format!("an arena of {len} bytes is too large"))
        })?;
        // SAFETY: the layout has a non-zero size.
        let block = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(|| {
            Error::new(
                ErrorKind::Full { free: 0, largest: 0 },
                format!("no memory for an arena of {len} bytes"),
            )
        })?;
        let skipped = block.addr().get().next_multiple_of(PAGE) - block.addr().get();
        // SAFETY: less than a page is skipped, and the block is a page longer than `len`.
        let base = unsafe { block.add(skipped) };
        Ok(Heap { base, len, block, layout })
    }

    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: allocated with this very layout, and dropped once.
        unsafe { dealloc(self.block.as_ptr(), self.layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backing::mapped::populate;

    const PAGES: usize = 16_384;

    /// How many pages are in memory.
    fn resident(heap: &Heap) -> usize {
        let mut pages = vec![0u8; PAGES];
        // SAFETY: the range is our own whole pages, and the vector has a byte for each.
        let got =
            unsafe { libc::mincore(heap.base().as_ptr().cast(), heap.len(), pages.as_mut_ptr()) };
        assert_eq!(got, 0);
        pages.iter().filter(|page| *page & 1 == 1).count()
    }

    #[test]
    fn pages_are_taken_when_they_are_used_or_from_the_start_if_asked_for() {
        let heap = Heap::new(PAGES * PAGE).unwrap();
        assert_eq!((heap.base().addr().get() % PAGE, heap.len()), (0, PAGES * PAGE));
        assert_eq!(resident(&heap), 0);
        populate(heap.base(), heap.len()).unwrap();
        assert_eq!(resident(&heap), PAGES);
        // SAFETY: the range is our own, and nothing writes to it.
        let bytes = unsafe { std::slice::from_raw_parts(heap.base().as_ptr(), heap.len()) };
        assert!(bytes.chunks(PAGE).all(|page| page[0] == 0 && page[PAGE - 1] == 0));
    }
}
