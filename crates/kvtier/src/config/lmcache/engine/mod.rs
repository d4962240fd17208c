//! LMCache's settings: its YAML file, `LMCACHE_*` variables and overrides, and the tiers they mean.

mod check;
mod config;
mod convert;
mod inputs;
mod plugins;
mod python;
mod remote;
mod stack;
mod storage_backend_form;
mod unknown;
#[cfg(feature = "gds")]
mod weka;

pub use config::{EffectiveSetting, LmcacheConfig, Note, SettingSource};
pub use inputs::Inputs;
pub use stack::{PlannedTiers, SettingEffect};
