//! Configurations: kvtier's own, a list of tiers, fastest first, as JSON, YAML or TOML; and
//! [LMCache's](lmcache), unchanged.
//!
//! ```json
//! {"tiers": [{"type": "host", "bytes": "1GiB"}, {"type": "file", "path": "/mnt/nvme/kv", "bytes": "100GiB", "engine": "auto"}]}
//! ```

mod describe;
mod deserialize;
#[cfg(feature = "file")]
mod file;
#[cfg(feature = "gds")]
mod gds;
mod key_listing;
mod key_mode;
pub mod lmcache;
mod native;
mod open;
mod open_tiers;
mod reader;
mod s3;
pub mod settings;
#[cfg(feature = "file")]
mod shape_source;
mod spec;
mod suggest;
mod validate;
mod value;
mod yaml;

#[cfg(feature = "file")]
pub use file::{Capacity, FileSpec};
#[cfg(feature = "gds")]
pub use gds::{GdsSpec, GpuSpec};
pub use key_listing::KeyListing;
pub use key_mode::KeyMode;
pub use lmcache::{Adapter, Field};
pub use open_tiers::OpenTiers;
pub use reader::{ConfigFormat, ConfigReader, ParsedConfig};
#[cfg(feature = "s3")]
pub use s3::S3Spec;
#[cfg(feature = "file")]
pub use shape_source::ShapeState;
pub use spec::{Config, TierSpec};
pub use value::Value;

/// The parsers, for the fuzzers: no input may make them panic.
#[cfg(any(fuzzing, clippy))]
pub mod fuzzing {
    use super::lmcache::{Inputs, LmcacheConfig};
    use super::{Adapter, Config, Value};

    /// A file, in every form that a file may have.
    pub fn file(text: &str) {
        for lenient in [false, true] {
            let read =
                LmcacheConfig::read(&Inputs::new().with_file("x.yaml", text).with_lenient(lenient));
            if let Ok(config) = read {
                let _ = config.stack(1);
            }
            if let Ok(list) = Adapter::list(&[text], lenient) {
                let _ = list.iter().map(Adapter::tiers).count();
            }
        }
        for name in ["x.yaml", "x.toml", "x.json"] {
            let _ = Config::from_text(text, name);
        }
    }

    /// One setting by environment and override.
    pub fn setting(name: &str, value: &str) {
        let inputs = Inputs::new().with_variable(format!("LMCACHE_{name}"), value);
        let _ = LmcacheConfig::read(
            &inputs.with_override(name.to_lowercase(), Value::Text(value.into())),
        );
    }
}
