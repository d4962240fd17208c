use std::sync::atomic::{AtomicU64, Ordering};

/// Identifies a contiguous range of memory that may be registered with a ring or a driver. Unique
/// in the process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct RegionId(pub u64);

impl RegionId {
    /// A new one.
    pub(crate) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        RegionId(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// A contiguous range of memory that lives as long as its arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// Its identifier.
    pub id: RegionId,
    /// First address.
    pub addr: usize,
    /// Length in bytes.
    pub len: usize,
}
