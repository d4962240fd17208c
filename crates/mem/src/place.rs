use std::sync::atomic::{AtomicU64, Ordering};

/// The kind of memory, which decides what can access it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Place {
    /// Ordinary host memory (4 KiB or huge pages).
    Heap,
    /// Host memory shared with other processes.
    Shm,
    /// Host memory pinned for a GPU.
    Pinned,
    /// Memory of GPU number n.
    Device(u32),
}

impl Place {
    /// Whether the CPU can read and write it.
    pub fn is_host(self) -> bool {
        !matches!(self, Place::Device(_))
    }
}

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
