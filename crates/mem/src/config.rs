use crate::alloc::PAGE;
use crate::{BackingKind, Error, ErrorKind};

/// The most bytes of an arena: what its page numbers reach, less one huge page to round up to.
const BYTES_MAX: usize = (u32::MAX as usize - 1024) * PAGE;

/// How to make an arena.
///
/// ```
/// use kvtier_mem::{Arena, ArenaConfig};
///
/// // Slots of one size suit chunks of one size: nothing fragments.
/// let arena = Arena::new(ArenaConfig::huge(8 << 20).with_slots(1 << 20))?;
/// let leases: Vec<_> = (0..8).map(|_| arena.lease(1 << 20)).collect::<Result<_, _>>()?;
/// assert!(arena.lease(1).is_err(), "all slots are taken");
/// drop(leases);
/// println!("backed by {:?}", arena.backing());
/// # Ok::<(), kvtier_mem::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ArenaConfig {
    /// Size in bytes (below 16 TiB), rounded up to whole pages.
    pub bytes: usize,
    /// What kind of memory to ask for: any but `Foreign`. Huge pages fall back to lesser ones;
    /// [`Arena::backing`](crate::Arena::backing) says what it got. `Heap` on a chosen NUMA
    /// node is `Mapped`, because the allocator's pages have been touched before.
    pub kind: BackingKind,
    /// For `Named`: what the name begins with.
    pub prefix: String,
    /// Cut the arena into slots of this size in bytes, rounded up to pages: for chunks that are
    /// all alike.
    pub slot_bytes: Option<usize>,
    /// Take the pages from this NUMA node.
    pub numa_node: Option<u32>,
    /// Make all pages be there from the start.
    pub prefault: bool,
}

impl ArenaConfig {
    /// An arena of `bytes` bytes of ordinary host memory.
    pub fn heap(bytes: usize) -> Self {
        ArenaConfig {
            bytes,
            kind: BackingKind::Heap,
            prefix: String::new(),
            slot_bytes: None,
            numa_node: None,
            prefault: false,
        }
    }

    /// An arena in huge pages of 2 MiB, as far as the kernel gives them;
    /// [`Arena::backing`](crate::Arena::backing) says what it got.
    pub fn huge(bytes: usize) -> Self {
        ArenaConfig { kind: BackingKind::HugeTlb, ..Self::heap(bytes) }
    }

    /// An arena that other processes can map, given its descriptor. Nothing to clean up, whatever
    /// dies.
    pub fn memfd(bytes: usize) -> Self {
        ArenaConfig { kind: BackingKind::Memfd, ..Self::heap(bytes) }
    }

    /// An arena that other processes can map by the name in `/dev/shm`, which begins with `prefix`;
    /// see [`sweep`](crate::sweep).
    pub fn named(prefix: &str, bytes: usize) -> Self {
        ArenaConfig { kind: BackingKind::Named, prefix: prefix.to_owned(), ..Self::heap(bytes) }
    }

    /// Cuts the arena into slots of `slot_bytes`: for chunks that are all alike.
    pub fn with_slots(mut self, slot_bytes: usize) -> Self {
        self.slot_bytes = Some(slot_bytes);
        self
    }

    /// Takes the pages from a NUMA node.
    pub fn with_numa_node(mut self, node: u32) -> Self {
        self.numa_node = Some(node);
        self
    }

    /// Makes all pages be there from the start: the first use of each is then as fast as any.
    pub fn with_prefault(mut self) -> Self {
        self.prefault = true;
        self
    }

    /// Whole pages, at least one.
    pub(crate) fn len(&self) -> Result<usize, Error> {
        if self.bytes > BYTES_MAX {
            let what = format!(
                "an arena of {} bytes is larger than the most, {BYTES_MAX}; make several",
                self.bytes
            );
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        Ok(self.bytes.max(1).next_multiple_of(PAGE))
    }
}
