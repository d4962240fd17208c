use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use crate::{Error, ErrorKind};

/// The file names of the driver's library, the one that needs no development package
/// first.
const NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

const OUT_OF_MEMORY: c_int = 2;
pub(super) const NOT_READY: c_int = 600;

macro_rules! api {
    ($($field:ident: $symbol:literal = fn($($arg:ty),*),)*) => {
        /// The functions of the driver's library that are used here, and the library, which is never unloaded.
        pub(super) struct Api {
            $(pub $field: unsafe extern "C" fn($($arg),*) -> c_int,)*
        }

        impl Api {
            fn bind(library: &'static libloading::Library) -> Result<Self, Error> {
                Ok(Api {
                    $($field: {
                        // SAFETY: the driver's library declares the function so, in every version that has the symbol.
                        let found = unsafe { library.get::<unsafe extern "C" fn($($arg),*) -> c_int>($symbol.as_bytes()) };
                        *found.map_err(|e| lacking($symbol, &e))?
                    },)*
                })
            }
        }
    };
}

api! {
    init: "cuInit" = fn(c_uint),
    device_count: "cuDeviceGetCount" = fn(*mut c_int),
    device: "cuDeviceGet" = fn(*mut c_int, c_int),
    device_name: "cuDeviceGetName" = fn(*mut c_char, c_int, c_int),
    uuid: "cuDeviceGetUuid" = fn(*mut [u8; 16], c_int),
    retain: "cuDevicePrimaryCtxRetain" = fn(*mut usize, c_int),
    release: "cuDevicePrimaryCtxRelease_v2" = fn(c_int),
    set_current: "cuCtxSetCurrent" = fn(usize),
    current: "cuCtxGetCurrent" = fn(*mut usize),
    capture_mode: "cuThreadExchangeStreamCaptureMode" = fn(*mut c_uint),
    sizes: "cuMemGetInfo_v2" = fn(*mut usize, *mut usize),
    alloc: "cuMemAlloc_v2" = fn(*mut u64, usize),
    free: "cuMemFree_v2" = fn(u64),
    pin: "cuMemHostRegister_v2" = fn(usize, usize, c_uint),
    unpin: "cuMemHostUnregister" = fn(usize),
    attribute: "cuPointerGetAttribute" = fn(*mut c_void, c_int, u64),
    stream: "cuStreamCreate" = fn(*mut usize, c_uint),
    stream_destroy: "cuStreamDestroy_v2" = fn(usize),
    stream_wait: "cuStreamSynchronize" = fn(usize),
    stream_captures: "cuStreamIsCapturing" = fn(usize, *mut c_int),
    stream_query: "cuStreamQuery" = fn(usize),
    stream_wait_event: "cuStreamWaitEvent" = fn(usize, usize, c_uint),
    event: "cuEventCreate" = fn(*mut usize, c_uint),
    event_destroy: "cuEventDestroy_v2" = fn(usize),
    event_record: "cuEventRecord" = fn(usize, usize),
    event_query: "cuEventQuery" = fn(usize),
    to_device: "cuMemcpyHtoDAsync_v2" = fn(u64, usize, usize, usize),
    to_host: "cuMemcpyDtoHAsync_v2" = fn(usize, u64, usize, usize),
    module: "cuModuleLoadData" = fn(*mut usize, *const c_char),
    function: "cuModuleGetFunction" = fn(*mut usize, usize, *const c_char),
    unload: "cuModuleUnload" = fn(usize),
    launch: "cuLaunchKernel" = fn(usize, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, usize, *mut *const c_void, *const c_void),
    error_name: "cuGetErrorName" = fn(c_int, *mut *const c_char),
}

impl Api {
    /// The library, loaded and initialised once; `Unsupported` where there is none or no GPU.
    pub fn get() -> Result<&'static Api, Error> {
        static API: OnceLock<Result<Api, (ErrorKind, String)>> = OnceLock::new();
        let kept = |e: Error| (e.kind(), e.to_string());
        let api = API.get_or_init(|| Api::load().map_err(kept));
        api.as_ref().map_err(|(kind, what)| Error::new(*kind, what.clone()))
    }

    fn load() -> Result<Api, Error> {
        let mut why = Vec::new();
        let mut open = |name: &str| {
            // SAFETY: loading the driver's library runs its initialisers, which it is made for.
            unsafe { libloading::Library::new(name) }
                .map_err(|e| why.push(format!("{name}: {e}")))
                .ok()
        };
        let Some(library) = NAMES.iter().find_map(|name| open(name)) else {
            let what = format!(
                "no NVIDIA driver here ({}); install it, or in a container pass the GPUs in",
                why.join("; ")
            );
            return Err(Error::new(ErrorKind::Unsupported, what));
        };
        let api = Api::bind(Box::leak(Box::new(library)))?;
        // SAFETY: a function without demands.
        let code = unsafe { (api.init)(0) };
        api.check(code, "cuInit").map_err(|e| {
            Error::new(
                ErrorKind::Unsupported,
                format!("the NVIDIA driver finds no GPU it can use: {e}"),
            )
        })?;
        Ok(api)
    }

    /// An error for a code that is not success.
    pub fn check(&self, code: c_int, call: &'static str) -> Result<(), Error> {
        match code {
            0 => Ok(()),
            OUT_OF_MEMORY => {
                let mut free = 0;
                let mut all = 0;
                // SAFETY: both can be written; without a context it fails and they stay 0.
                unsafe { (self.sizes)(&mut free, &mut all) };
                let what = format!(
                    "{call}: no memory left on the GPU, {free} of {all} bytes are free; ask for less"
                );
                Err(Error::new(ErrorKind::Full { free, largest: free }, what))
            }
            _ => Err(Error::new(ErrorKind::Io, format!("{call}: {} ({code})", self.name(code)))),
        }
    }

    fn name(&self, code: c_int) -> String {
        let mut name = std::ptr::null();
        // SAFETY: `name` can be written; what it is set to is a static text.
        unsafe {
            if (self.error_name)(code, &mut name) != 0 || name.is_null() {
                return "an error that this driver has no name for".into();
            }
            CStr::from_ptr(name).to_string_lossy().into_owned()
        }
    }
}

fn lacking(symbol: &str, e: &libloading::Error) -> Error {
    let what = format!("the NVIDIA driver's library has no {symbol} ({e}); update the driver");
    Error::new(ErrorKind::Unsupported, what)
}
