//! The native configuration: a list of tiers, the first the fastest.
//!
//! ```json
//! {"tiers": [{"type": "host", "bytes": "1GiB"}, {"type": "file", "path": "/mnt/nvme/kv", "bytes": "100GiB", "engine": "auto"}]}
//! ```

use std::sync::Arc;

use kvtier_core::{Error, ErrorKind, Tier};
use serde::{Deserialize, Deserializer};

use crate::{HostConfig, HostTier, Stack};

/// A checked configuration.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The tiers, fastest first.
    pub tiers: Vec<TierSpec>,
}

/// One tier of a configuration.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
#[non_exhaustive]
pub enum TierSpec {
    /// Host memory.
    Host {
        /// The cap in bytes, as a number or a text such as `512MiB`.
        #[serde(deserialize_with = "bytes")]
        bytes: u64,
        /// The tier's name; the default is `host`.
        name: Option<String>,
    },
    /// Files of a directory.
    #[cfg(feature = "file")]
    File {
        /// The directory; made if it is not there.
        path: std::path::PathBuf,
        /// The cap: bytes as a number or a text such as `100GiB`, or a share of the file system such as `80%`. Also spelled `capacity`.
        #[serde(alias = "capacity", deserialize_with = "capacity")]
        bytes: Capacity,
        /// Whether chunks may be deleted because the cap is smaller than last time; without it such a directory is refused.
        #[serde(default)]
        shrink: bool,
        /// `kvtier` (the default), `lmcache-mp` or `lmcache`: whose files the directory holds.
        layout: Option<String>,
        /// `lenient` (the default) or `strict`: what becomes of chunks in a foreign layout that nothing proves.
        verify: Option<String>,
        /// `auto` (the default), `uring` or `threads`.
        engine: Option<String>,
        /// The tier's name; the default is `file`.
        name: Option<String>,
    },
}

/// How much a file tier may hold.
#[cfg(feature = "file")]
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Capacity {
    /// So many bytes.
    Bytes(u64),
    /// This share of the file system's bytes, above 0 and at most 1.
    Share(f64),
}

#[cfg(feature = "file")]
impl Capacity {
    fn of(self, path: &std::path::Path) -> kvtier_file::FileConfig {
        match self {
            Capacity::Bytes(bytes) => kvtier_file::FileConfig::new(path, bytes),
            Capacity::Share(share) => kvtier_file::FileConfig::new(path, 0).with_capacity_share(share),
        }
    }
}

/// The tiers of a configuration, running.
#[derive(Debug)]
pub struct Opened {
    /// All of it as one tier.
    pub top: Arc<dyn Tier>,
    /// Each tier, fastest first.
    pub tiers: Vec<Arc<dyn Tier>>,
}

impl Config {
    /// No tier yet: add them, the fastest first.
    ///
    /// ```
    /// let stack = kvtier::config::Config::new().with_host(64 << 20).with_host(256 << 20).open()?;
    /// assert_eq!(stack.tiers.len(), 2);
    /// # Ok::<(), kvtier::core::Error>(())
    /// ```
    pub fn new() -> Self {
        Config::default()
    }

    /// Adds host memory of at most `bytes` below what is there.
    pub fn with_host(self, bytes: u64) -> Self {
        self.with(TierSpec::Host { bytes, name: None })
    }

    /// Adds files of at most `bytes` in the directory `path`.
    #[cfg(feature = "file")]
    pub fn with_file(self, path: impl Into<std::path::PathBuf>, bytes: u64) -> Self {
        self.with(TierSpec::File {
            path: path.into(),
            bytes: Capacity::Bytes(bytes),
            shrink: false,
            layout: None,
            verify: None,
            engine: None,
            name: None,
        })
    }

    /// Adds a tier below what is there.
    pub fn with(mut self, tier: TierSpec) -> Self {
        self.tiers.push(tier);
        self
    }

    /// Reads JSON; `source` names it in errors.
    pub fn from_json(text: &str, source: &str) -> Result<Self, Error> {
        let config: Config = serde_json::from_str(text).map_err(|e| {
            Error::new(ErrorKind::Invalid, format!("{source}: {e}; see docs/CONFIG.md for the accepted form"))
        })?;
        if config.tiers.is_empty() {
            return Err(Error::new(ErrorKind::Invalid, format!("{source}: `tiers` is empty; name at least one tier")));
        }
        Ok(config)
    }

    /// Opens the tiers; `wrap` may put a decorator around each.
    pub fn open_with(&self, wrap: impl Fn(Arc<dyn Tier>) -> Arc<dyn Tier>) -> Result<Opened, Error> {
        let tiers = self.tiers.iter().map(|spec| spec.open().map(&wrap)).collect::<Result<Vec<_>, _>>()?;
        let top: Arc<dyn Tier> = match tiers.as_slice() {
            [] => return Err(Error::new(ErrorKind::Invalid, "a configuration without a tier; add one")),
            [one] => Arc::clone(one),
            many => Arc::new(Stack::new("stack", many.to_vec())?),
        };
        Ok(Opened { top, tiers })
    }

    /// Opens the tiers.
    pub fn open(&self) -> Result<Opened, Error> {
        self.open_with(|tier| tier)
    }
}

impl TierSpec {
    fn open(&self) -> Result<Arc<dyn Tier>, Error> {
        match self {
            TierSpec::Host { bytes, name } => {
                let mut config = HostConfig::new(*bytes);
                config.name = name.clone().unwrap_or(config.name);
                Ok(Arc::new(HostTier::open(config)?))
            }
            #[cfg(feature = "file")]
            TierSpec::File { path, bytes, shrink, layout, verify, engine, name } => {
                let layout: kvtier_file::Layout = layout.as_deref().unwrap_or("kvtier").parse()?;
                let verify: kvtier_file::Verify = verify.as_deref().unwrap_or("lenient").parse()?;
                let engine = engine.as_deref().unwrap_or("auto").parse();
                let engine =
                    engine.map_err(|e: kvtier_file::EngineError| Error::new(ErrorKind::Invalid, e.to_string()))?;
                let config = bytes.of(path).with_engine(engine).with_shrink(*shrink);
                let config = config.with_layout(layout).with_verify(verify);
                Ok(Arc::new(kvtier_file::FileTier::open(config.with_name(name.as_deref().unwrap_or("file")))?))
            }
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Size {
    Number(u64),
    Text(String),
}

fn bytes<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let wrong = |text: &str| {
        serde::de::Error::custom(format!("{text:?} is no size; write a number of bytes or a text like \"512MiB\""))
    };
    match Size::deserialize(from) {
        Ok(Size::Number(n)) => Ok(n),
        Ok(Size::Text(text)) => crate::bytes::parse(&text).ok_or_else(|| wrong(&text)),
        Err(_) => Err(wrong("this")),
    }
}

#[cfg(feature = "file")]
fn capacity<'de, D: Deserializer<'de>>(from: D) -> Result<Capacity, D::Error> {
    let wrong = |text: &str| {
        serde::de::Error::custom(format!(
            "{text:?} is no capacity; write a number of bytes, a text like \"512MiB\", or a share of the file system like \"80%\""
        ))
    };
    let share = |text: &str| {
        let percent: f64 = text.trim().strip_suffix('%')?.trim().parse().ok()?;
        (percent > 0.0 && percent <= 100.0).then_some(Capacity::Share(percent / 100.0))
    };
    match Size::deserialize(from) {
        Ok(Size::Number(n)) => Ok(Capacity::Bytes(n)),
        Ok(Size::Text(text)) => {
            share(&text).or_else(|| crate::bytes::parse(&text).map(Capacity::Bytes)).ok_or_else(|| wrong(&text))
        }
        Err(_) => Err(wrong("this")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_is_read_and_wrong_ones_say_what_and_where() {
        let config = Config::from_json(r#"{"tiers":[{"type":"host","bytes":"1MiB"}]}"#, "x.json").unwrap();
        assert!(matches!(config.tiers[0], TierSpec::Host { bytes: 1_048_576, .. }));
        assert_eq!(config.open().unwrap().tiers.len(), 1);
        assert_eq!(Config::new().open().unwrap_err().kind(), ErrorKind::Invalid);
        for (text, says) in [
            (r#"{"tiers":[]}"#, "empty"),
            (r#"{"tiers":[{"type":"host","bytes":1,"byte":2}]}"#, "byte"),
            (r#"{"tiers":[{"type":"hots","bytes":1}]}"#, "hots"),
            (r#"{"tiers":[{"type":"host","bytes":"lots"}]}"#, "lots"),
            #[cfg(feature = "file")]
            (r#"{"tiers":[{"type":"file","path":"/x","bytes":1,"layuot":"lmcache"}]}"#, "layuot"),
            (r#"{"tier":[]}"#, "tier"),
            ("{", "EOF"),
        ] {
            let e = Config::from_json(text, "x.json").unwrap_err().to_string();
            assert!(e.contains(says) && e.contains("x.json"), "{text}: {e}");
        }
    }

    #[cfg(feature = "file")]
    #[test]
    fn a_cap_is_bytes_or_a_share_of_the_file_system() {
        let read = |key: &str, value: &str| {
            let text = format!(r#"{{"tiers":[{{"type":"file","path":"/x","{key}":{value}}}]}}"#);
            Config::from_json(&text, "x.json").map(|config| match config.tiers[0] {
                TierSpec::File { bytes, .. } => bytes,
                _ => panic!("a file tier"),
            })
        };
        assert_eq!(read("capacity", r#""80%""#).unwrap(), Capacity::Share(0.8));
        assert_eq!(read("bytes", r#""12.5 %""#).unwrap(), Capacity::Share(0.125));
        assert_eq!(read("capacity", r#""1MiB""#).unwrap(), Capacity::Bytes(1 << 20));
        assert_eq!(read("bytes", "7").unwrap(), Capacity::Bytes(7));
        for wrong in [r#""0%""#, r#""101%""#, r#""%""#, r#""NaN%""#, "-1", "true"] {
            let e = read("capacity", wrong).unwrap_err().to_string();
            assert!(e.contains("80%") && e.contains("x.json"), "{wrong}: {e}");
        }
    }
}
