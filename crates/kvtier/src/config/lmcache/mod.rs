//! LMCache's own configuration (0.5.6), read as it stands: its YAML file, `LMCACHE_*` variables,
//! overrides, and `--l2-adapter` objects.
//!
//! ```
//! use kvtier::config::lmcache::{Inputs, LmcacheConfig};
//!
//! let inputs = Inputs::new().with_file("lmcache.yaml", "max_local_cpu_size: 0.25\n").with_variable("LMCACHE_CHUNK_SIZE", "128");
//! let config = LmcacheConfig::read(&inputs)?;
//! assert_eq!(config.value("chunk_size").as_int(), Some(128));
//! assert_eq!(config.stack(0)?.config.tiers.len(), 1);
//! # Ok::<(), kvtier::core::Error>(())
//! ```

mod adapter;
mod engine;

#[cfg(feature = "s3")]
pub(crate) use adapter::AdapterFields;
pub(crate) use adapter::Dialect;
pub use adapter::{Adapter, Field};
pub use engine::{
    EffectiveSetting, Inputs, LmcacheConfig, Note, PlannedTiers, SettingEffect, SettingSource,
};
