use std::fmt;
use std::time::Duration;

use super::api::NOT_READY;
use super::pinned_pieces::pieces;
use super::{Gpu, GpuEvent};
use crate::{Error, ErrorKind, Lease, View};

/// Does not wait for what others do on the default stream.
const NON_BLOCKING: u32 = 1;

/// How often a stream is asked whether it is done, where waiting for it failed.
const LOOK_EVERY: Duration = Duration::from_micros(100);

/// A stream of one's own: copies between host and device, each awaited before the call returns.
pub struct GpuStream {
    gpu: Gpu,
    handle: usize,
}

impl Gpu {
    /// A new stream.
    pub fn stream(&self) -> Result<GpuStream, Error> {
        let api = self.api();
        let _entered = self.enter()?;
        let mut handle = 0;
        // SAFETY: `handle` can be written.
        api.check(unsafe { (api.stream)(&mut handle, NON_BLOCKING) }, "cuStreamCreate")?;
        Ok(GpuStream { gpu: self.clone(), handle })
    }
}

impl GpuStream {
    /// The GPU it works on.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// An event after all that it was given.
    pub fn event(&self) -> Result<GpuEvent, Error> {
        // SAFETY: its own handle, alive as long as `self`.
        unsafe { self.gpu.event_after(self.handle) }
    }

    /// Work that is given to it from now on waits for `event`.
    pub fn wait_for(&self, event: &GpuEvent) -> Result<(), Error> {
        let api = self.gpu.api();
        let _entered = self.gpu.enter()?;
        // SAFETY: both are alive; the driver keeps what it needs of the event.
        api.check(
            unsafe { (api.stream_wait_event)(self.handle, event.handle(), 0) },
            "cuStreamWaitEvent",
        )
    }

    /// Copies `bytes` to `at` of device memory, and runs `meanwhile` while the copy is under way.
    /// `Invalid` when they do not fit. Best from pinned memory. Does not mark the lease as
    /// filled.
    pub fn upload<T>(
        &self,
        bytes: &[u8],
        into: &mut Lease,
        at: usize,
        meanwhile: impl FnOnce() -> T,
    ) -> Result<T, Error> {
        let to = self.range(
            into.gpu(),
            DeviceRange { addr: into.addr(), len: into.len() },
            at,
            bytes.len(),
        )?;
        let api = self.gpu.api();
        let from = bytes.as_ptr().addr();
        self.copy(from, bytes.len(), meanwhile, |host, len| {
            // SAFETY: the source is borrowed and the target, in bounds, exclusively so, until the
            // stream was waited for in `copy`.
            let code =
                unsafe { (api.to_device)((to + (host - from)) as u64, host, len, self.handle) };
            api.check(code, "cuMemcpyHtoDAsync")
        })
    }

    /// Copies bytes of device memory from `at` on into `into`, all of it. `Invalid` when there are
    /// not as many. Best into pinned memory.
    pub fn download(&self, from: &View, at: usize, into: &mut [u8]) -> Result<(), Error> {
        self.download_raw(from.gpu(), DeviceRange { addr: from.addr(), len: from.len() }, at, into)
    }

    /// The same from a lease, whatever of it counts as filled.
    pub fn download_lease(&self, from: &Lease, at: usize, into: &mut [u8]) -> Result<(), Error> {
        self.download_raw(from.gpu(), DeviceRange { addr: from.addr(), len: from.len() }, at, into)
    }

    fn download_raw(
        &self,
        gpu: Option<&Gpu>,
        whole: DeviceRange,
        at: usize,
        into: &mut [u8],
    ) -> Result<(), Error> {
        let from = self.range(gpu, whole, at, into.len())?;
        let api = self.gpu.api();
        let to = into.as_mut_ptr().addr();
        self.copy(
            to,
            into.len(),
            || (),
            |host, len| {
                // SAFETY: the source, in bounds, and the target, exclusively, are borrowed until
                // the stream was waited for in `copy`.
                let code =
                    unsafe { (api.to_host)(host, (from + (host - to)) as u64, len, self.handle) };
                api.check(code, "cuMemcpyDtoHAsync")
            },
        )
    }

    /// The address of `len` bytes at `at` in device memory of this stream's GPU.
    fn range(
        &self,
        gpu: Option<&Gpu>,
        memory: DeviceRange,
        at: usize,
        len: usize,
    ) -> Result<usize, Error> {
        if gpu != Some(&self.gpu) {
            let what = format!(
                "the memory is not of GPU {}, whose stream was to copy it",
                self.gpu.ordinal()
            );
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        if at.checked_add(len).is_none_or(|end| end > memory.len) {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("{len} bytes at {at} outside device memory of {}", memory.len),
            ));
        }
        Ok(memory.addr + at)
    }

    /// Starts copies over a host range, piece by piece, does something else, and waits, whatever
    /// became of either.
    fn copy<T>(
        &self,
        host: usize,
        len: usize,
        meanwhile: impl FnOnce() -> T,
        mut start: impl FnMut(usize, usize) -> Result<(), Error>,
    ) -> Result<T, Error> {
        let _entered = self.gpu.enter()?;
        let waits = Waits(self);
        let started = pieces(host, len).try_for_each(|(at, len)| start(at, len));
        let other = meanwhile();
        let waited = waits.now();
        started.and(waited).map(|()| other)
    }

    /// Gives the stream work, by its handle, and waits for it, whatever became of it.
    pub(super) fn and_wait(
        &self,
        start: impl FnOnce(usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let _entered = self.gpu.enter()?;
        let waits = Waits(self);
        let started = start(self.handle);
        let waited = waits.now();
        started.and(waited)
    }

    /// Returns only when nothing of the stream's is under way, error or not.
    fn wait(&self) -> Result<(), Error> {
        let api = self.gpu.api();
        // SAFETY: its own handle; the caller entered the context.
        let waited = api.check(unsafe { (api.stream_wait)(self.handle) }, "cuStreamSynchronize");
        // It may fail for what other work did, and before this stream's is done. A context that is
        // lost answers something else than this. SAFETY: as above.
        while waited.is_err() && unsafe { (api.stream_query)(self.handle) } == NOT_READY {
            std::thread::sleep(LOOK_EVERY);
        }
        waited
    }
}

/// Device memory of one lease or view.
struct DeviceRange {
    addr: usize,
    len: usize,
}

/// Waits for the stream before the memory of its copies is released, also in a panic.
struct Waits<'a>(&'a GpuStream);

impl Waits<'_> {
    fn now(self) -> Result<(), Error> {
        let waited = self.0.wait();
        std::mem::forget(self);
        waited
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        let _ = self.0.wait();
    }
}

impl Drop for GpuStream {
    fn drop(&mut self) {
        let _entered = self.gpu.enter();
        // SAFETY: made in `Gpu::stream`, and idle: every copy was awaited.
        unsafe { (self.gpu.api().stream_destroy)(self.handle) };
    }
}

impl fmt::Debug for GpuStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({:?})", self.gpu)
    }
}
