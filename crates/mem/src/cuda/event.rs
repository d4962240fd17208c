use std::fmt;
use std::sync::Arc;

use super::Gpu;
use super::api::NOT_READY;
use crate::{Error, ErrorKind};

/// Measures no time, which makes an event cheap.
const NO_TIMING: u32 = 2;

/// A point in a stream's work. Clones are the same one.
#[derive(Clone)]
pub struct GpuEvent(Arc<Recorded>);

struct Recorded {
    gpu: Gpu,
    handle: usize,
}

impl Gpu {
    /// An event that passes when all that `stream` was given so far is done: the producer of memory on
    /// that stream hands it over with the event. `Invalid` for a stream that is being captured into a
    /// graph: what it is given is not done at all.
    ///
    /// # Safety
    /// `stream` is the driver's handle of a live stream of this GPU's primary context (0 is the
    /// default stream).
    pub unsafe fn event_after(&self, stream: usize) -> Result<GpuEvent, Error> {
        let api = self.api();
        let _entered = self.enter()?;
        let mut handle = 0;
        let mut captures = 0;
        // SAFETY: the stream is live by the caller's promise, and the result fits.
        api.check(unsafe { (api.stream_captures)(stream, &mut captures) }, "cuStreamIsCapturing")?;
        if captures != 0 {
            let what =
                "the stream is being captured into a graph; hand memory over before or after that";
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        // SAFETY: `handle` can be written.
        api.check(unsafe { (api.event)(&mut handle, NO_TIMING) }, "cuEventCreate")?;
        let event = GpuEvent(Arc::new(Recorded { gpu: self.clone(), handle }));
        // SAFETY: the event is new, the stream live by the caller's promise.
        api.check(unsafe { (api.event_record)(handle, stream) }, "cuEventRecord")?;
        Ok(event)
    }
}

impl GpuEvent {
    /// Whether the work before it is done.
    pub fn has_passed(&self) -> Result<bool, Error> {
        let Recorded { gpu, handle } = &*self.0;
        let _entered = gpu.enter()?;
        // SAFETY: the event is alive as long as this.
        match unsafe { (gpu.api().event_query)(*handle) } {
            NOT_READY => Ok(false),
            code => gpu.api().check(code, "cuEventQuery").map(|()| true),
        }
    }

    /// The driver's handle, which is valid as long as this.
    pub(super) fn handle(&self) -> usize {
        self.0.handle
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        let _entered = self.gpu.enter();
        // SAFETY: made in `event_after`; the driver keeps what streams still wait for.
        unsafe { (self.gpu.api().event_destroy)(self.handle) };
    }
}

impl fmt::Debug for GpuEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Event({:?})", self.0.gpu)
    }
}
