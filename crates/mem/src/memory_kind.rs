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
