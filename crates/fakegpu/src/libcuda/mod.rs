//! The functions of `libcuda.so.1`, by topic. What they act on is in the modules beside this folder.

pub mod capture;
mod device;
mod events;
mod memory;
mod modules;
pub mod only_for_cufile;
mod streams;
