use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use crate::{Lease, Place, RegionId};

/// A frozen lease, shared: cheap to clone and to slice, never changed. The memory returns when the
/// last clone drops.
///
/// ```
/// use kvtier_mem::View;
///
/// let view = View::from_owner(vec![1u8, 2, 3, 4]); // or a `Bytes`, a `&'static [u8]`, ...
/// let tail = view.slice(2..4);
/// drop(view);
/// assert_eq!(tail.as_ref(), [3, 4], "the owner lives as long as its last view");
/// ```
#[derive(Clone)]
pub struct View {
    frozen: Arc<Frozen>,
    start: usize,
    len: usize,
}

struct Frozen {
    lease: Lease,
    /// Whether the lease may be taken out again: not for bytes that were never ours to write.
    thaws: bool,
    memo: OnceLock<(Range<usize>, Box<dyn Any + Send + Sync>)>,
}

impl View {
    pub(crate) fn new(lease: Lease) -> Self {
        Self::frozen(lease, true)
    }

    /// A view that never returns its lease.
    pub(crate) fn read_only(lease: Lease) -> Self {
        Self::frozen(lease, false)
    }

    fn frozen(lease: Lease, thaws: bool) -> Self {
        let len = lease.init_len();
        View { frozen: Arc::new(Frozen { lease, thaws, memo: OnceLock::new() }), start: 0, len }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The kind of memory.
    pub fn place(&self) -> Place {
        self.frozen.lease.place()
    }

    /// The registered region that contains it, if any.
    pub fn region(&self) -> Option<RegionId> {
        self.frozen.lease.region()
    }

    /// The GPU that holds the memory.
    #[cfg(feature = "cuda")]
    pub fn gpu(&self) -> Option<&crate::cuda::Gpu> {
        self.frozen.lease.gpu()
    }

    /// The event that must pass before the bytes are there.
    #[cfg(feature = "cuda")]
    pub fn after(&self) -> Option<&crate::cuda::GpuEvent> {
        self.frozen.lease.after()
    }

    /// Its first address, for handing to the kernel or a driver; valid while this view (or a clone)
    /// lives.
    pub fn addr(&self) -> usize {
        self.frozen.lease.addr() + self.start
    }

    /// The bytes; `None` for a place the CPU cannot reach.
    pub fn as_host(&self) -> Option<&[u8]> {
        self.frozen.lease.as_host().map(|all| &all[self.start..self.start + self.len])
    }

    /// The part `range` of it, clipped to its length; shares the memory.
    pub fn slice(&self, range: Range<usize>) -> View {
        let end = range.end.min(self.len);
        let start = range.start.min(end);
        View { frozen: Arc::clone(&self.frozen), start: self.start + start, len: end - start }
    }

    /// A value derived from exactly these bytes, their checksums say, computed at most once for the
    /// first range of this memory. `None` if a value of another range or type is stored.
    pub fn memo<T: Any + Send + Sync>(&self, compute: impl FnOnce() -> T) -> Option<&T> {
        let range = self.start..self.start + self.len;
        // The range is stored with the value. Another slice of the same memory has other checksums,
        // and must not get these.
        let (of, memo) = self.frozen.memo.get_or_init(|| (range.clone(), Box::new(compute())));
        (*of == range).then(|| memo.downcast_ref()).flatten()
    }

    /// The whole writable lease, if this is its only view and the memory is writable; otherwise the
    /// view itself.
    pub fn into_lease(self) -> Result<Lease, View> {
        if !self.frozen.thaws {
            return Err(self);
        }
        let View { frozen, start, len } = self;
        // The only reference, so no other view can read while the lease is written. A clone that is
        // made at the same time on another thread needs a reference of its own, which then counts.
        match Arc::try_unwrap(frozen) {
            Ok(frozen) => Ok(frozen.lease),
            Err(frozen) => Err(View { frozen, start, len }),
        }
    }
}

impl Lease {
    /// Makes the initialised bytes shared and immutable.
    pub fn freeze(self) -> View {
        View::new(self)
    }
}

impl AsRef<[u8]> for View {
    /// The bytes; empty for a place the CPU cannot reach.
    fn as_ref(&self) -> &[u8] {
        self.as_host().unwrap_or_default()
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "View({} bytes, {:?})", self.len, self.place())
    }
}
