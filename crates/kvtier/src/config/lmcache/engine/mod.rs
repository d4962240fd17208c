//! LMCache's settings: its YAML file, `LMCACHE_*` variables and overrides, and the tiers they mean.

mod check;
mod convert_values;
mod effective_settings;
mod file_tier;
mod inputs;
#[cfg(feature = "gds")]
mod is_on_weka;
mod merge_sources;
mod plan_tiers;
mod plugins;
mod python;
mod refusals;
mod remote;
mod setting_effects;
mod storage_backend_form;
mod unknown;

pub use effective_settings::{EffectiveSetting, LmcacheConfig, Note, SettingSource};
pub use inputs::Inputs;
pub use plan_tiers::PlannedTiers;
pub use setting_effects::SettingEffect;
