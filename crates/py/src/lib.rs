//! The native half of the Python package `kvtier`.
//!
//! `Connector` is the client that LMCache's `native_plugin` loads. `Tiers` and `Queue` are the base
//! of the package's own Python classes. Batches of saves, loads, lookups and removes go through a
//! queue without waiting (`submission_queue`, `completion_queue`), or through a call that waits (`wait`). Memory
//! is exchanged by Python's buffer protocol, without a copy (`buffer`, `device`, `borrow`), or
//! registered once and named by ranges (`region`). `EngineTiers` is the base of the adapters that
//! run inside an inference engine (`engine`). `CacheGen` reads the containers of LMCache's lossy
//! encoding (`cachegen`).

mod borrow;
mod buffer;
mod cachegen;
mod catch_panic;
mod completion_queue;
mod device;
mod engine;
mod gil;
mod holds;
mod key_name;
mod listing;
mod lmcache_native_plugin;
mod log;
mod open;
mod open_store;
mod ops;
mod py_queue;
mod py_tiers;
mod region;
mod release_later;
mod result;
mod shape;
mod store_handle;
mod submission_queue;
mod wait;

use pyo3::prelude::*;

/// Storage tiers for the KV cache, for vLLM, SGLang, LMCache and Python programs.
#[pymodule]
#[pyo3(name = "_native")]
fn native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module
        .py()
        .import("atexit")?
        .call_method1("register", (wrap_pyfunction!(gil::finalizing, module)?,))?;
    module.add_class::<lmcache_native_plugin::Connector>()?;
    module.add_class::<py_tiers::Tiers>()?;
    module.add_class::<py_queue::Queue>()?;
    module.add_function(wrap_pyfunction!(device::is_on_gpu, module)?)?;
    module.add_class::<cachegen::CacheGen>()?;
    #[cfg(feature = "lock-clock")]
    module.add_function(wrap_pyfunction!(gil::seconds_without_gil, module)?)?;
    module.add_class::<region::Region>()?;
    module.add_class::<region::Range>()?;
    module.add_class::<engine::EngineTiers>()?;
    module.add_class::<engine::EngineRequest>()?;
    module.add_class::<engine::EnginePool>()?;
    module.add_class::<listing::Listing>()
}
