//! Configurations: kvtier's own, a list of tiers, fastest first, as JSON, YAML or TOML; and
//! [LMCache's](lmcache), unchanged.
//!
//! ```json
//! {"tiers": [{"type": "host", "bytes": "1GiB"}, {"type": "file", "path": "/mnt/nvme/kv", "bytes": "100GiB", "engine": "auto"}]}
//! ```

mod common_values;
mod describe;
#[cfg(any(feature = "file", feature = "s3"))]
mod encoding;
#[cfg(feature = "file")]
mod file;
mod formats;
#[cfg(feature = "gds")]
mod gds;
mod key_listing;
pub mod lmcache;
mod lmcache_mode;
mod lossy;
mod native;
mod open;
mod running_tiers;
mod s3;
mod secrets;
pub mod settings;
#[cfg(feature = "file")]
mod shape_source;
mod suggest;
mod tier_spec;
mod validate;
mod value;
mod yaml;

#[cfg(any(feature = "file", feature = "s3"))]
pub use encoding::{
    CacheGenSpec, EncodingSpec, EncodingStage, EncryptionKey, KeySource, write_new_key_file,
};
#[cfg(feature = "file")]
pub use file::{Capacity, FileSpec};
pub use formats::{ConfigFormat, ConfigReader, ParsedConfig};
#[cfg(feature = "gds")]
pub use gds::{GdsSpec, GpuSpec};
pub use key_listing::KeyListing;
pub use lmcache::{Adapter, Field};
pub use lmcache_mode::LmcacheMode;
pub use running_tiers::OpenTiers;
#[cfg(feature = "s3")]
pub use s3::S3Spec;
#[cfg(feature = "file")]
pub use shape_source::ShapeState;
pub use tier_spec::TierSpec;
pub use value::Value;

use std::path::Path;
use std::sync::Arc;

use kvtier_core::{Error, ErrorKind, Namespace};
use kvtier_index::Quotas;

use crate::TierRule;
use crate::metrics::Prices;

/// A checked configuration.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Config {
    /// The tiers, fastest first.
    pub tiers: Vec<TierSpec>,
    /// The stack's name in errors and reports; the default is `stack`.
    pub name: Option<String>,
    /// The rules of the tiers; the default for tiers without one.
    pub rules: Vec<TierRule>,
    /// The most bytes that wait to be written to lower tiers; the default is 256 MiB.
    pub dirty_bytes_max: Option<u64>,
    /// How many bytes of KV cache the engine computes in a second, if loads that take longer are
    /// to be misses.
    pub computed_bytes_per_s: Option<f64>,
    /// The prices of tiers that count requests.
    pub prices: Prices,
    /// The lists that the tiers come from, in their order; without any, all are one list.
    lists: Vec<TierList>,
}

/// Tiers that were written as one list, and so in the order of their speed.
#[derive(Clone, Debug, Default)]
struct TierList {
    /// The index of its first tier among all.
    start: usize,
    /// Where it is written, for errors; empty for the file that is read.
    place: String,
    /// Whether the tiers have indices there.
    is_indexed: bool,
}

impl Config {
    /// A configuration without tiers: add them, fastest first.
    ///
    /// ```
    /// let stack = kvtier::config::Config::new().with_host(64 << 20).with_host(256 << 20).open()?;
    /// assert_eq!(stack.tiers.len(), 2);
    /// # Ok::<(), kvtier::core::Error>(())
    /// ```
    pub fn new() -> Self {
        Config::default()
    }

    /// Adds host memory of at most `bytes` below the other tiers.
    pub fn with_host(self, bytes: u64) -> Self {
        self.with(TierSpec::Host {
            bytes,
            name: None,
            policy: None,
            quotas: Quotas::new(),
            fair: false,
            compat: None,
        })
    }

    /// Adds files of at most `bytes` in the directory `path`.
    #[cfg(feature = "file")]
    pub fn with_file(self, path: impl Into<std::path::PathBuf>, bytes: u64) -> Self {
        self.with(TierSpec::File(FileSpec::new(path, Capacity::Bytes(bytes))))
    }

    /// Adds a tier below the others.
    pub fn with(mut self, tier: TierSpec) -> Self {
        self.tiers.push(tier);
        self
    }

    /// The same, written at this place by settings of its own, not as a list.
    fn at(mut self, place: &str) -> Self {
        self.lists = vec![TierList { start: 0, place: place.to_owned(), is_indexed: false }];
        self
    }

    /// The same, written as a list of tiers at this place.
    fn listed_at(mut self, place: &str) -> Self {
        self.lists = vec![TierList { start: 0, place: place.to_owned(), is_indexed: true }];
        self
    }

    /// Adds the tiers of another configuration below the others, as a list of its own. Settings of the
    /// stack that both contain are taken from this one.
    fn append(&mut self, below: Config) {
        // Rules count from the first tier. Without default ones for the tiers above, those of
        // `below` would slip to other tiers.
        self.rules.resize(self.tiers.len(), TierRule::new());
        self.rules.extend(below.rules);
        if self.lists.is_empty() {
            self.lists.push(TierList::default());
        }
        let first = self.tiers.len();
        let lists = if below.lists.is_empty() { vec![TierList::default()] } else { below.lists };
        self.lists
            .extend(lists.into_iter().map(|list| TierList { start: first + list.start, ..list }));
        self.tiers.extend(below.tiers);
        // What concerns the whole stack is taken from the first configuration that says it.
        self.name = self.name.take().or(below.name);
        self.dirty_bytes_max = self.dirty_bytes_max.or(below.dirty_bytes_max);
        self.computed_bytes_per_s = self.computed_bytes_per_s.or(below.computed_bytes_per_s);
        if self.prices == Prices::new() {
            self.prices = below.prices;
        }
    }

    /// Sets the namespace of chunks in tiers of LMCache's layouts, whose names do not contain it, so
    /// that existing chunks are counted from the start instead of from the first key on. With salts
    /// as tenants, chunks of every salt are served and counted by salt.
    #[must_use]
    pub fn with_namespace(mut self, namespace: &Arc<Namespace>) -> Self {
        self.tiers
            .iter_mut()
            .filter_map(TierSpec::namespace)
            .for_each(|place| *place = Some(Arc::clone(namespace)));
        self
    }

    /// Reads JSON; `source` names it in errors.
    pub fn from_json(text: &str, source: &str) -> Result<Self, Error> {
        let json: serde_json::Value = serde_json::from_str(text).map_err(|e| {
            Error::new(
                ErrorKind::Invalid,
                format!("{source}: {e}; see docs/CONFIG.md for the accepted form"),
            )
        })?;
        native::config(&json.into(), source)
    }

    /// Reads JSON, YAML (`.yaml`, `.yml`) or TOML (`.toml`), as the ending of `name` says; JSON
    /// where it says none of these.
    ///
    /// ```
    /// let yaml = "tiers:\n- {type: host, bytes: 64MiB}\n";
    /// assert_eq!(kvtier::config::Config::from_text(yaml, "kv.yaml")?.tiers.len(), 1);
    /// # Ok::<(), kvtier::core::Error>(())
    /// ```
    pub fn from_text(text: &str, name: &str) -> Result<Self, Error> {
        native::config(&native::text(text, name)?, name)
    }

    /// Reads a file as [`Config::from_text`] reads text.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|e| {
            Error::new(ErrorKind::Invalid, format!("cannot read the configuration {name}"))
                .with_cause(e, "check the path")
        })?;
        Config::from_text(&text, &name)
    }

    /// The tiers, each with a name of its own: of those that are called the same the second is
    /// `file-2`. Metrics distinguish tiers by name.
    fn named(&self) -> Vec<TierSpec> {
        let mut tiers = self.tiers.clone();
        let mut taken: Vec<String> = self.tiers.iter().map(TierSpec::name).collect();
        // Metrics and errors identify tiers by name alone, so a name that was given twice gets a
        // number.
        for at in 1..tiers.len() {
            let name = taken[at].clone();
            if taken[..at].contains(&name) {
                let free =
                    (2..).map(|n| format!("{name}-{n}")).find(|other| !taken.contains(other));
                taken[at] = free.unwrap_or(name);
                tiers[at].rename(&taken[at]);
            }
        }
        tiers
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_is_read_and_wrong_ones_say_what_and_where() {
        let config =
            Config::from_json(r#"{"tiers":[{"type":"host","bytes":"1MiB"}]}"#, "x.json").unwrap();
        assert!(matches!(config.tiers[0], TierSpec::Host { bytes: 1_048_576, .. }));
        assert_eq!(config.open().unwrap().tiers.len(), 1);
        assert_eq!(Config::new().open().unwrap_err().kind(), ErrorKind::Invalid);
        for (text, says) in [
            (r#"{"tiers":[]}"#, "empty"),
            (r#"{"tiers":[{"type":"host","bytes":1,"byte":2}]}"#, "byte"),
            (r#"{"tiers":[{"type":"hots","bytes":1}]}"#, "did you mean \"host\"?"),
            (r#"{"tiers":[{"type":"host","bytes":"lots"}]}"#, "\"lots\" is no size"),
            (r#"{"tiers":[{"type":"host","bytes":-1}]}"#, "-1 is no size"),
            #[cfg(feature = "file")]
            (r#"{"tiers":[{"type":"file","path":"/x","bytes":1,"layuot":"lmcache"}]}"#, "layuot"),
            (r#"{"tiers":[{"type":"host","bytes":1,"compat":{"watermark":2}}]}"#, "from 0 to 1"),
            (r#"{"tiers":[{"type":"host","bytes":1,"compat":{"mark":0.5}}]}"#, "watermark"),
            (r#"{"tier":[]}"#, "tier"),
            ("{", "EOF"),
        ] {
            let e = Config::from_json(text, "x.json").unwrap_err().to_string();
            assert!(e.contains(says) && e.contains("x.json"), "{text}: {e}");
        }
    }
}
