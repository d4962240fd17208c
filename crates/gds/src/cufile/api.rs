use std::ffi::{c_int, c_uint, c_void};
use std::path::Path;

use super::CufileError;

/// The names of the library in packages and Python wheels. If another library of this process has
/// loaded it already, the first name finds that instance.
const NAMES: [&str; 5] = [
    "libcufile.so.0",
    "libcufile.so.1",
    "libcufile.so",
    "/usr/local/cuda/lib64/libcufile.so.0",
    "/usr/local/cuda/lib64/libcufile.so",
];

/// `CUfileError_t`, the return value of most functions.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CufileStatus {
    code: c_int,
    cuda: c_int,
}

/// `CUfileDescr_t`: a file to register.
#[repr(C)]
pub struct Descr {
    kind: c_int,
    file: DescrFile,
    ops: *const c_void,
}

#[repr(C)]
union DescrFile {
    fd: c_int,
    handle: *mut c_void,
}

/// `CU_FILE_HANDLE_TYPE_OPAQUE_FD`: a Linux file descriptor.
const KIND_FD: c_int = 1;

impl Descr {
    pub fn from_fd(fd: c_int) -> Self {
        let mut file = DescrFile { handle: std::ptr::null_mut() };
        file.fd = fd;
        Descr { kind: KIND_FD, file, ops: std::ptr::null() }
    }
}

/// `CUfileDrvProps_t`. Fields of newer versions go into `rest`.
#[repr(C)]
pub struct Properties {
    pub major: c_uint,
    pub minor: c_uint,
    poll_threshold_kib: usize,
    pub direct_io_max_kib: usize,
    /// The kinds of storage with direct transfers, one bit each; 0 in compatibility mode.
    pub targets: c_uint,
    rest: [c_uint; 64],
}

impl Default for Properties {
    fn default() -> Self {
        Properties {
            major: 0,
            minor: 0,
            poll_threshold_kib: 0,
            direct_io_max_kib: 0,
            targets: 0,
            rest: [0; 64],
        }
    }
}

macro_rules! functions {
    ($(#[$doc:meta])* $Set:ident { $($field:ident: $symbol:literal = fn($($arg:ty),*) $(-> $out:ty)?,)* }) => {
        $(#[$doc])*
        pub struct $Set {
            $(pub $field: unsafe extern "C" fn($($arg),*) $(-> $out)?,)*
        }

        impl $Set {
            fn bind(library: &'static libloading::Library, name: &str) -> Result<Self, String> {
                Ok($Set {
                    $($field: {
                        // SAFETY: cufile.h declares the function so, in every version that has the symbol.
                        let found = unsafe {
                            library.get::<unsafe extern "C" fn($($arg),*) $(-> $out)?>($symbol.as_bytes())
                        };
                        *found.map_err(|e| format!("{name} has no {} ({e}); update it", $symbol))?
                    },)*
                })
            }
        }
    };
}

functions! {
    /// The functions that every version has.
    Api {
        version: "cuFileGetVersion" = fn(*mut c_int) -> CufileStatus,
        driver_open: "cuFileDriverOpen" = fn() -> CufileStatus,
        properties: "cuFileDriverGetProperties" = fn(*mut Properties) -> CufileStatus,
        handle_register: "cuFileHandleRegister" = fn(*mut usize, *mut Descr) -> CufileStatus,
        handle_deregister: "cuFileHandleDeregister" = fn(usize),
        buf_register: "cuFileBufRegister" = fn(usize, usize, c_int) -> CufileStatus,
        buf_deregister: "cuFileBufDeregister" = fn(usize) -> CufileStatus,
        read: "cuFileRead" = fn(usize, usize, usize, i64, i64) -> isize,
        write: "cuFileWrite" = fn(usize, usize, usize, i64, i64) -> isize,
    }
}

/// The library, which is never unloaded.
pub struct Loaded {
    pub api: Api,
    /// The name by which it was loaded.
    pub name: String,
}

impl Loaded {
    /// Loads the library at `path`, or without a path by its usual names.
    pub fn load(path: Option<&Path>) -> Result<Self, String> {
        let names = match path {
            Some(path) => vec![path.display().to_string()],
            None => NAMES.map(String::from).to_vec(),
        };
        let mut why = Vec::new();
        for name in &names {
            // SAFETY: loading the library runs its initialisers, which any process may run.
            match unsafe { libloading::Library::new(name) } {
                Ok(library) => {
                    // Never unloaded: its threads and exit handlers run code of it until the
                    // process ends.
                    let library = Box::leak(Box::new(library));
                    return Ok(Loaded { api: Api::bind(library, name)?, name: name.clone() });
                }
                Err(e) => why.push(format!("{name}: {e}")),
            }
        }
        Err(format!(
            "no libcufile ({}); install the package libcufile or the wheel nvidia-cufile, or configure its path",
            why.join("; ")
        ))
    }
}

impl CufileStatus {
    pub fn check(self, call: &'static str) -> Result<(), CufileError> {
        let CufileStatus { code, cuda } = self;
        if code == 0 { Ok(()) } else { Err(CufileError { call, code, cuda }) }
    }
}
