/// The kind of memory of an arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum BackingKind {
    /// Pages of 4 KiB from the allocator.
    Heap,
    /// Huge pages that the kernel had reserved (`vm.nr_hugepages`). All are there from the start.
    HugeTlb,
    /// Memory for which huge pages were asked; the kernel gives them as it can.
    TransparentHuge,
    /// Pages of 4 KiB from the kernel, which come as they are touched.
    Mapped,
    /// Memory that other processes can map: a memfd.
    Memfd,
    /// Memory that other processes can map by name, in `/dev/shm`. All of it is reserved from the
    /// start.
    Named,
    /// Foreign memory.
    Foreign,
    /// A GPU's.
    Device,
}
