//! NVIDIA's cuFile: transfers between files and GPU memory without host memory.
//!
//! A small binding of the library. Errors name a remedy for the operator. Before the first call the
//! known causes of a hang are checked, because a call that hangs blocks a thread for ever.

mod api;
mod availability;
mod buffers;
mod driver;
mod error;
mod file;
mod probe;
mod storage;

pub use availability::{check_direct, check_file_system, check_machine, check_prerequisites};
pub use buffers::BufferRegistry;
pub use driver::{Driver, with_timeout};
pub use error::CufileError;
pub use file::{FileCache, RegisteredFile};
pub use probe::probe;
pub use storage::storage_of;
