//! Stand-ins for `libcuda.so.1` and `libcufile.so.0` over host memory, so that code for GPUs is
//! tested where there is none.
//!
//! Cargo builds one shared library out of this crate; [`Fakes`] shows it under both names to a
//! child process, where a test's body runs, because a process loads such a library once. Device
//! memory is mapped without access: the CPU that touches it, or the kernel that is told
//! to read into it, fails as with a real GPU. Streams run on threads of their own, so that what is
//! used before it was waited for is wrong. [`Fakes::fail`] makes calls fail, and [`Report`] says
//! what was called and what was never given back.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod capture;
mod child;
mod cuda;
mod cufile;
mod events;
mod faults;
mod hold;
mod kernels;
mod memory;
mod more;
mod ptx;
mod report;
mod streams;

pub use child::{Fakes, Report};
pub use hold::Hold;
