//! NVIDIA's cuFile: reads between files and GPU memory without the host's, where the machine can.
//!
//! The binding is ours and small. What is refused says so in words that an operator can act on, and
//! before the first call whatever is known to make that call hang is looked for.

mod api;
mod buffers;
mod code;
mod driver;
mod file;
mod preflight;
mod probe;
mod storage;

pub use buffers::Buffers;
pub use code::Failure;
pub use driver::{Driver, watched};
pub use file::{File, Files};
pub use preflight::{file_system, machine, preflight};
pub use probe::probe;
pub use storage::reach;
