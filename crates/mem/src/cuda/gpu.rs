use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use super::api::Api;
use crate::{Error, ErrorKind};

/// A GPU: its primary context, which PyTorch and the CUDA runtime use too, kept alive. Clones share
/// it.
#[derive(Clone)]
pub struct Gpu(Arc<Context>);

struct Context {
    api: &'static Api,
    ordinal: u32,
    handle: usize,
}

/// Attributes of a pointer.
const CONTEXT: i32 = 1;
const KIND: i32 = 2;
const ORDINAL: i32 = 9;
const START: i32 = 11;
const SIZE: i32 = 12;
/// The kind of memory that is on a device.
const ON_DEVICE: u32 = 2;
/// The mode of a thread whose calls are no part of any graph that is being captured.
const RELAXED: u32 = 2;

impl Gpu {
    /// GPU number `ordinal`. `Unsupported` without a driver, `Invalid` for a number that there is
    /// not.
    pub fn open(ordinal: u32) -> Result<Self, Error> {
        let api = Api::get()?;
        let count = Self::count()?;
        if ordinal >= count {
            let what =
                format!("no GPU {ordinal}: this process sees {count}; see CUDA_VISIBLE_DEVICES");
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        let mut device = 0;
        let mut handle = 0;
        // SAFETY: both can be written.
        unsafe {
            api.check((api.device)(&mut device, ordinal as i32), "cuDeviceGet")?;
            api.check((api.retain)(&mut handle, device), "cuDevicePrimaryCtxRetain")?;
        }
        Ok(Gpu(Arc::new(Context { api, ordinal, handle })))
    }

    /// How many GPUs this process sees. `Unsupported` without a driver.
    pub fn count() -> Result<u32, Error> {
        let api = Api::get()?;
        let mut count = 0;
        // SAFETY: `count` can be written.
        api.check(unsafe { (api.device_count)(&mut count) }, "cuDeviceGetCount")?;
        Ok(count.max(0) as u32)
    }

    /// Its number in this process.
    pub fn ordinal(&self) -> u32 {
        self.0.ordinal
    }

    /// What its maker calls it.
    pub fn name(&self) -> Result<String, Error> {
        let mut name = [0_u8; 256];
        let len = name.len() as i32;
        // SAFETY: `len` bytes can be written.
        let code = unsafe {
            (self.api().device_name)(name.as_mut_ptr().cast(), len, self.0.ordinal as i32)
        };
        self.api().check(code, "cuDeviceGetName")?;
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        Ok(String::from_utf8_lossy(&name[..end]).into_owned())
    }

    /// Its UUID.
    pub fn uuid(&self) -> Result<[u8; 16], Error> {
        let mut uuid = [0; 16];
        // SAFETY: 16 bytes can be written.
        let code = unsafe { (self.api().uuid)(&mut uuid, self.0.ordinal as i32) };
        self.api().check(code, "cuDeviceGetUuid").map(|()| uuid)
    }

    /// Makes its context the calling thread's, until the guard drops. A graph that is
    /// captured meanwhile, on any thread, is not disturbed: what is done here is no part
    /// of it.
    pub fn enter(&self) -> Result<Entered<'_>, Error> {
        let api = self.api();
        let mut before = 0;
        let mut mode = RELAXED;
        // SAFETY: `before` and `mode` can be written; the context is kept by `self`, which the
        // guard borrows.
        unsafe {
            api.check((api.current)(&mut before), "cuCtxGetCurrent")?;
            if before != self.0.handle {
                api.check((api.set_current)(self.0.handle), "cuCtxSetCurrent")?;
            }
            let exchanged = (api.capture_mode)(&mut mode);
            // Made now, so that the context goes back whatever comes of it.
            let entered = Entered { gpu: self, before, mode, own_thread: PhantomData };
            api.check(exchanged, "cuThreadExchangeStreamCaptureMode").map(|()| entered)
        }
    }

    /// Whether memory at `addr` is on a GPU. `false` where there is no driver, too: then no memory
    /// is.
    pub fn has_memory_at(addr: usize) -> bool {
        attribute::<u32>(KIND, addr).is_ok_and(|kind| kind == ON_DEVICE)
    }

    /// Checks that `addr..addr + len` is in one allocation on a device, and gives that device.
    pub(crate) fn of(addr: usize, len: usize) -> Result<Self, Error> {
        let invalid = |what: String| Error::new(ErrorKind::Invalid, what);
        let kind: u32 = attribute(KIND, addr)?;
        let ordinal: i32 = attribute(ORDINAL, addr)?;
        if kind != ON_DEVICE {
            return Err(invalid(format!("{addr:#x} is no memory of a GPU's")));
        }
        let gpu = Gpu::open(ordinal.max(0) as u32)?;
        let start: usize = attribute(START, addr)?;
        let size: usize = attribute(SIZE, addr)?;
        if addr.checked_add(len).is_none_or(|end| end > start.saturating_add(size)) {
            return Err(invalid(format!(
                "{len} bytes at {addr:#x} reach past their allocation of {size} at {start:#x}"
            )));
        }
        // Memory that was mapped by hand, as PyTorch's expandable segments are, belongs to no
        // context.
        let context: usize = attribute(CONTEXT, addr)?;
        if context != 0 && context != gpu.0.handle {
            let what = "memory of a context of its own; allocate it in the GPU's primary context, as PyTorch does";
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        Ok(gpu)
    }

    pub(super) fn api(&self) -> &'static Api {
        self.0.api
    }
}

fn attribute<T: Default>(which: i32, addr: usize) -> Result<T, Error> {
    let api = Api::get()?;
    let mut value = T::default();
    // SAFETY: callers ask for the type that the attribute has, so it fits; the address
    // is only looked up.
    let code = unsafe { (api.attribute)((&raw mut value).cast(), which, addr as u64) };
    api.check(code, "cuPointerGetAttribute").map_err(|e| {
        Error::new(ErrorKind::Invalid, format!("{addr:#x} is not memory of the NVIDIA driver: {e}"))
    })?;
    Ok(value)
}

impl PartialEq for Gpu {
    fn eq(&self, other: &Gpu) -> bool {
        self.0.handle == other.0.handle
    }
}

impl Eq for Gpu {}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once when this was made, and the context is not used through it any
        // more.
        unsafe { (self.api.release)(self.ordinal as i32) };
    }
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gpu({})", self.0.ordinal)
    }
}

/// A GPU's context is the current thread's while this lives; then the one before it is again.
#[derive(Debug)]
#[must_use]
pub struct Entered<'a> {
    gpu: &'a Gpu,
    before: usize,
    mode: u32,
    /// Of the thread it was made on.
    own_thread: PhantomData<*const ()>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        // SAFETY: the mode that the thread had, or, where it could not be exchanged, the one that
        // it was to get.
        unsafe { (self.gpu.api().capture_mode)(&mut self.mode) };
        if self.before != self.gpu.0.handle {
            // SAFETY: the context was current before, and its user keeps it.
            unsafe { (self.gpu.api().set_current)(self.before) };
        }
    }
}
