use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

#[cfg(feature = "cuda")]
use crate::cuda::{Gpu, GpuEvent};
use crate::owner::Owner;
use crate::{Error, ErrorKind, Place, RegionId};

/// An exclusive, writable piece of memory. Bytes from the start up to [`Lease::init_len`] count as
/// initialised; only those can be read. Dropping it returns the memory.
///
/// Memory of your own becomes a lease without a copy; the owner is dropped after the last use:
///
/// ```
/// use kvtier_mem::{Lease, View};
///
/// let mut lease = Lease::from(vec![0u8; 4096]); // or Lease::from_owner(any AsMut<[u8]>)
/// lease.as_host_mut().unwrap()[..5].copy_from_slice(b"bytes");
/// let view: View = lease.freeze();
/// assert_eq!(&view.as_host().unwrap()[..5], b"bytes");
/// ```
pub struct Lease {
    ptr: NonNull<u8>,
    len: usize,
    init: usize,
    place: Place,
    region: Option<RegionId>,
    #[cfg(feature = "cuda")]
    device: Option<Box<OnDevice>>,
    owner: Owner,
}

/// What is known about memory on a GPU.
#[cfg(feature = "cuda")]
#[derive(Clone)]
struct OnDevice {
    gpu: Gpu,
    after: Option<GpuEvent>,
    /// The owner of the lease, which must live until the event has passed.
    owner: Owner,
}

#[cfg(feature = "cuda")]
impl Drop for OnDevice {
    fn drop(&mut self) {
        if let Some(event) = self.after.take() {
            crate::cuda::keep(event, Arc::clone(&self.owner));
        }
    }
}

// SAFETY: a lease is the only access to its memory (constructors demand it, `split_at` divides it
// without overlap), and its owner is Send + Sync, so moving it to another thread moves exclusive
// access.
unsafe impl Send for Lease {}
// SAFETY: `&Lease` gives only shared reads of the initialised prefix.
unsafe impl Sync for Lease {}

impl Lease {
    /// A lease of memory that `owner` keeps alive and takes back when dropped.
    ///
    /// # Safety
    /// `ptr..ptr + len` must be valid for reads and writes until `owner` is dropped, and nothing
    /// else may access it meanwhile. For host places every byte must be initialised for the
    /// language: zeroed or written once.
    pub unsafe fn from_raw(
        ptr: NonNull<u8>,
        len: usize,
        place: Place,
        region: Option<RegionId>,
        owner: Owner,
    ) -> Self {
        Lease {
            ptr,
            len,
            init: 0,
            place,
            region,
            #[cfg(feature = "cuda")]
            device: None,
            owner,
        }
    }

    /// Length in bytes, initialised or not.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes at all.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number of bytes from the start that hold data.
    pub fn init_len(&self) -> usize {
        self.init
    }

    /// The kind of memory.
    pub fn place(&self) -> Place {
        self.place
    }

    /// The registered region that contains it, if any.
    pub fn region(&self) -> Option<RegionId> {
        self.region
    }

    /// Its first address.
    pub fn addr(&self) -> usize {
        self.ptr.as_ptr() as usize
    }

    /// Its first byte, for handing to the kernel or a driver. Writing through it is exclusive while
    /// the lease is owned.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// The initialised bytes; `None` for a place the CPU cannot reach.
    pub fn as_host(&self) -> Option<&[u8]> {
        // SAFETY: host memory, valid for `len` while we own it (from_raw), and `init <= len`.
        self.place
            .is_host()
            .then(|| unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.init) })
    }

    /// All bytes for writing; those past [`Lease::init_len`] hold leftovers. Call
    /// [`Lease::assume_filled`] after writing. `None` for a place the CPU cannot reach.
    pub fn as_host_mut(&mut self) -> Option<&mut [u8]> {
        // SAFETY: host memory, exclusively ours, valid for `len`, initialised in the language's
        // sense (from_raw).
        self.place
            .is_host()
            .then(|| unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) })
    }

    /// Declares that the first `len` bytes (at most all) now hold data.
    pub fn assume_filled(&mut self, len: usize) {
        self.init = len.min(self.len);
    }

    /// Copies `bytes` to `offset` and extends the initialised prefix. Errors with `Invalid` when it
    /// does not fit, would leave a hole before `offset`, or the place is not the host's.
    pub fn write_at(&mut self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        let end =
            offset.checked_add(bytes.len()).filter(|end| *end <= self.len && offset <= self.init);
        // A write behind the initialised prefix would leave a hole, and `init` can describe only a
        // prefix: the hole would count as data.
        let (Some(end), init) = (end, self.init) else {
            let what = format!(
                "write of {} bytes at {offset} outside a lease of {} bytes ({} initialised)",
                bytes.len(),
                self.len,
                self.init
            );
            return Err(Error::new(ErrorKind::Invalid, what));
        };
        let Some(host) = self.as_host_mut() else {
            return Err(Error::new(
                ErrorKind::Invalid,
                "the CPU cannot write a lease of device memory",
            ));
        };
        host[offset..end].copy_from_slice(bytes);
        self.init = init.max(end);
        Ok(())
    }

    /// Cuts it in two at `at` (at most its length); both parts keep the owner alive.
    pub fn split_at(self, at: usize) -> (Lease, Lease) {
        let at = at.min(self.len);
        // SAFETY: `at <= len`, so the pointer stays inside or one past the end of the same
        // allocation.
        let tail = unsafe { self.ptr.add(at) };
        let tail = Lease {
            ptr: tail,
            len: self.len - at,
            init: self.init.saturating_sub(at),
            place: self.place,
            region: self.region,
            #[cfg(feature = "cuda")]
            device: self.device.clone(),
            owner: Arc::clone(&self.owner),
        };
        // The two halves cover the lease without overlap, so each is exclusive. The memory returns
        // when both are gone, because both hold the owner.
        let head = Lease { len: at, init: self.init.min(at), ..self };
        (head, tail)
    }

    /// The GPU that holds the memory.
    #[cfg(feature = "cuda")]
    pub fn gpu(&self) -> Option<&Gpu> {
        self.device.as_ref().map(|device| &device.gpu)
    }

    /// The event that must pass before the memory is accessed.
    #[cfg(feature = "cuda")]
    pub fn after(&self) -> Option<&GpuEvent> {
        self.device.as_ref()?.after.as_ref()
    }

    /// Sets the event that must pass before memory on a GPU is accessed: work in a stream that
    /// still uses or fills it. A lease that is dropped earlier returns its memory only after the
    /// event.
    #[cfg(feature = "cuda")]
    pub fn set_after(&mut self, event: Option<GpuEvent>) {
        if let Some(device) = &mut self.device {
            device.after = event;
        }
    }

    #[cfg(feature = "cuda")]
    pub(crate) fn set_gpu(&mut self, gpu: Gpu) {
        self.device = Some(Box::new(OnDevice { gpu, after: None, owner: Arc::clone(&self.owner) }));
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({} of {} bytes, {:?})", self.init, self.len, self.place)
    }
}
