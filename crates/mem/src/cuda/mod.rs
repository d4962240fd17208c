//! GPUs through the driver's own library, which is loaded on first use.
//!
//! The binding is small: result codes stay numbers, so an unknown code of a newer driver is an
//! ordinary error. A machine without the library, or with one that lacks a function, gets an error
//! and no panic.

mod api;
mod deferred_free;
mod event;
mod gpu;
mod launch;
mod memory;
mod pinned_pieces;
mod stream;

pub(crate) use deferred_free::keep;
pub use event::GpuEvent;
pub use gpu::Gpu;
pub use launch::GpuKernel;
pub(crate) use memory::{DeviceMemory, Pinned};
pub use stream::GpuStream;
