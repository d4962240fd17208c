//! Stand-ins for `libcuda.so.1` and `libcufile.so.0` over host memory, to test GPU code without a
//! GPU.
//!
//! Cargo builds one shared library from this crate. [`Fakes`] links it under both names for a child
//! process that runs a test's body, because a process loads such a library only once. Device memory
//! is mapped without access: the CPU or a read of the kernel that accesses it fails, as with a real
//! GPU. Streams run on threads of their own, so that data used without a wait is wrong.
//! [`Fakes::fail`] makes calls fail. [`Report`] counts calls and leaks.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod child;
mod contexts;
mod cuda_error;
mod cufile_state;
mod events;
mod faults;
mod held_streams;
mod libcuda;
mod libcufile;
mod loaded_kernels;
mod memory;
mod ptx_interpreter;
mod report;
mod report_path;
mod streams;

pub use child::{Fakes, Report};
pub use held_streams::HeldStreams;

/// The most devices.
const DEVICES_MAX: usize = 16;
