//! The native half of the Python package `kvtier`.
//!
//! `Connector` is what LMCache's `native_plugin` loads: batches of saves, loads, lookups and
//! removes that are submitted without waiting and whose ends are told through an event descriptor.
//! `Tiers` is what the package's own Python classes stand on. Memory comes and goes through
//! Python's buffer protocol, without a copy.

mod buffer;
mod config;
mod connector;
mod desk;
mod device;
mod end;
mod handle;
mod holds;
mod inbox;
mod listing;
mod loan;
mod log;
mod name;
mod shape;
mod store;
mod tiers;
mod unlocked;
mod wait;
mod work;

use pyo3::prelude::*;

/// Tiers below the GPU's memory, for LMCache and for Python programs.
#[pymodule]
#[pyo3(name = "_native")]
fn native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module
        .py()
        .import("atexit")?
        .call_method1("register", (wrap_pyfunction!(unlocked::ending, module)?,))?;
    module.add_class::<connector::Connector>()?;
    module.add_class::<tiers::Tiers>()?;
    module.add_class::<tiers::Queue>()?;
    module.add_function(wrap_pyfunction!(device::is_on_gpu, module)?)?;
    #[cfg(feature = "lock-clock")]
    module.add_function(wrap_pyfunction!(unlocked::seconds_unlocked, module)?)?;
    module.add_class::<listing::Listing>()
}
