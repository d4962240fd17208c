//! A file tier in the configuration.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use kvtier_core::key::VllmRunConfig;
use kvtier_core::{Error, ErrorKind, Namespace};
use kvtier_evict::PolicyKind;
use kvtier_file::{ChunkShape, Durability, EngineKind, FileConfig, FileTier, Layout, Verify};
use kvtier_index::{LmcacheEviction, Quotas};
use serde::{Deserialize, Deserializer};

use super::common_values;
use super::encoding::EncodingSpec;
use super::value::Value;

/// Files of a directory.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct FileSpec {
    /// The directory; made if it is not there.
    pub path: PathBuf,
    /// The cap: bytes as a number or a text such as `100GiB`, or a share of the file system such
    /// as `80%`. Also spelled `capacity`.
    #[serde(alias = "capacity", deserialize_with = "capacity")]
    pub bytes: Capacity,
    /// Whether chunks may be deleted because the cap is smaller than last time; without it such a
    /// directory is refused.
    #[serde(default)]
    pub shrink: bool,
    /// The layout of the directory: `kvtier` (the default), `lmcache-mp`, `lmcache`, `lmcache-gds`,
    /// `lmcache-gds-weka` or `vllm-fs`.
    #[serde(default, deserialize_with = "named")]
    pub layout: Option<Layout>,
    /// `lenient` (the default) or `strict`: whether chunks without checksums, in a foreign layout, are
    /// hits or misses.
    #[serde(default, deserialize_with = "named")]
    pub verify: Option<Verify>,
    /// The tensor that a full chunk is, such as `2x32x256x1024` (keys and values, layers, tokens,
    /// elements), for layout `lmcache-gds`, whose files state it; without it, existing files state
    /// it.
    #[serde(default, deserialize_with = "named")]
    pub shape: Option<ChunkShape>,
    /// With layout `vllm-fs`: the configuration of the vLLM engine, as its `fs` tier writes it to
    /// `config.json`. It is written beside the chunks, and a directory with another one is refused.
    #[serde(default, deserialize_with = "run_config")]
    pub vllm_run_config: Option<Arc<VllmRunConfig>>,
    /// `auto` (the default), `uring` or `threads`.
    #[serde(default, deserialize_with = "named")]
    pub engine: Option<EngineKind>,
    /// `none` (the default), `fdatasync` or `syncfs`: whether an answered save survives a crash of the
    /// machine.
    #[serde(default, deserialize_with = "named")]
    pub durability: Option<Durability>,
    /// Bytes of the file system that stay free, whatever the cap; the default is one hundredth of
    /// it, at most 1 GiB.
    #[serde(default, deserialize_with = "size")]
    pub free_min: Option<u64>,
    /// Memory in bytes for chunks whose own is not aligned to pages (64 MiB); 0 refuses such
    /// chunks.
    #[serde(default, deserialize_with = "size")]
    pub bounce: Option<u64>,
    /// The eviction policy; without it the default policy.
    #[serde(default, deserialize_with = "common_values::policy")]
    pub policy: Option<PolicyKind>,
    /// The quota of each tenant (cache salt).
    #[serde(default, deserialize_with = "common_values::quotas")]
    pub quotas: Quotas,
    /// Whether a tenant's quota is also guaranteed to it.
    #[serde(default)]
    pub fair: bool,
    /// Emulates LMCache's eviction exactly: true, or its `watermark` and `ratio`.
    #[serde(default, deserialize_with = "common_values::compat")]
    pub compat: Option<LmcacheEviction>,
    /// The tier's name; the default is `file`.
    pub name: Option<String>,
    /// How chunks are encoded, in layout `kvtier`; by default they are stored as they are.
    #[serde(skip)]
    pub encoding: EncodingSpec,
    /// The namespace of chunks in a foreign layout; `None`: that of the first key. It is not a setting
    /// of files: the program that opens the tier sets it.
    #[serde(skip)]
    pub namespace: Option<Arc<Namespace>>,
    /// Whether the caller of saves states the shape of its chunks, in a layout whose files do. It is
    /// not a setting of files: the program that opens the tier sets it.
    #[serde(skip)]
    pub saves_state_shape: bool,
}

impl FileSpec {
    /// A directory and its cap, with defaults for the rest.
    pub fn new(path: impl Into<PathBuf>, bytes: Capacity) -> Self {
        FileSpec {
            path: path.into(),
            bytes,
            shrink: false,
            layout: None,
            verify: None,
            shape: None,
            vllm_run_config: None,
            engine: None,
            durability: None,
            free_min: None,
            bounce: None,
            policy: None,
            quotas: Quotas::new(),
            fair: false,
            compat: None,
            name: None,
            encoding: EncodingSpec::default(),
            namespace: None,
            saves_state_shape: false,
        }
    }

    /// All but how to open it.
    pub(super) fn config(&self) -> Result<FileConfig, Error> {
        let mut config = self.bytes.of(&self.path).with_shrink(self.shrink);
        config = config.with_policy(self.policy.unwrap_or_default());
        config = config.with_quotas(self.quotas.clone().with_fair(self.fair));
        config = config.with_engine(self.engine.unwrap_or(EngineKind::Auto));
        config = config
            .with_layout(self.layout.unwrap_or_default())
            .with_verify(self.verify.unwrap_or_default());
        config = config.with_durability(self.durability.unwrap_or_default());
        if let Some(compat) = self.compat {
            config = config.with_compat(compat);
        }
        if let Some(shape) = &self.shape {
            config = config.with_chunk_shape(shape.clone());
        }
        if let Some(run_config) = &self.vllm_run_config {
            config = config.with_vllm_run_config(Arc::clone(run_config));
        }
        // Layout `kvtier` records the namespace itself.
        if let Some(namespace) =
            self.namespace.as_ref().filter(|_| self.layout.is_some_and(Layout::is_foreign))
        {
            config = config.with_namespace(Arc::clone(namespace));
        }
        if let Some(bytes) = self.free_min {
            config = config.with_free_min(bytes);
        }
        if let Some(bytes) = self.bounce {
            let bytes = usize::try_from(bytes);
            config = config.with_bounce(
                bytes.map_err(|_| Error::new(ErrorKind::Invalid, "bounce is out of range"))?,
            );
        }
        if !self.encoding.is_empty() {
            config = config.with_encoding(self.encoding.open()?);
        }
        if let Some(bytes) = self.encoding.memory_bytes()? {
            config = config.with_encode_bytes(bytes);
        }
        Ok(config.with_name(self.name.as_deref().unwrap_or("file")))
    }

    pub(super) fn open(&self) -> Result<FileTier, Error> {
        FileTier::open(self.config()?)
    }
}

/// How much a file tier may hold.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Capacity {
    /// This many bytes.
    Bytes(u64),
    /// This share of the file system's bytes, above 0 and at most 1.
    Share(f64),
}

impl Capacity {
    fn of(self, path: &Path) -> FileConfig {
        match self {
            Capacity::Bytes(bytes) => FileConfig::new(path, bytes),
            Capacity::Share(share) => FileConfig::new(path, 0).with_capacity_share(share),
        }
    }
}

/// One of a few words.
pub(super) fn named<'de, D: Deserializer<'de>, T: FromStr<Err: std::fmt::Display>>(
    from: D,
) -> Result<Option<T>, D::Error> {
    let word: Option<String> = Option::deserialize(from)?;
    word.map(|word| word.parse().map_err(serde::de::Error::custom)).transpose()
}

pub(super) fn size<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    common_values::bytes(from).map(Some)
}

/// The configuration of a vLLM engine, as an object.
pub(super) fn run_config<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<Arc<VllmRunConfig>>, D::Error> {
    let given: Option<serde_json::Value> = Option::deserialize(from)?;
    let read = |fields: serde_json::Value| VllmRunConfig::from_json(&fields.to_string());
    given.map(|fields| read(fields).map(Arc::new).map_err(serde::de::Error::custom)).transpose()
}

pub(super) fn capacity<'de, D: Deserializer<'de>>(from: D) -> Result<Capacity, D::Error> {
    let given = Value::from(serde_json::Value::deserialize(from)?);
    let wrong = || {
        serde::de::Error::custom(format!(
            "{given} is no capacity; write a number of bytes, a text like \"512MiB\", or a share of the file system like \"80%\""
        ))
    };
    let share = |text: &str| {
        let percent: f64 = text.trim().strip_suffix('%')?.trim().parse().ok()?;
        (percent > 0.0 && percent <= 100.0).then_some(Capacity::Share(percent / 100.0))
    };
    let given_share = given.as_text().and_then(share);
    // A percentage is a share of the file system. Anything else must be a size.
    given_share.or_else(|| common_values::size(&given).map(Capacity::Bytes)).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, TierSpec};

    use super::*;

    #[test]
    fn a_cap_is_bytes_or_a_share_of_the_file_system() {
        let read = |key: &str, value: &str| {
            let text = format!(r#"{{"tiers":[{{"type":"file","path":"/x","{key}":{value}}}]}}"#);
            Config::from_json(&text, "x.json").map(|config| match config.tiers[0] {
                TierSpec::File(ref spec) => spec.bytes,
                _ => panic!("a file tier"),
            })
        };
        assert_eq!(read("capacity", r#""80%""#).unwrap(), Capacity::Share(0.8));
        assert_eq!(read("bytes", r#""12.5 %""#).unwrap(), Capacity::Share(0.125));
        assert_eq!(read("capacity", r#""1MiB""#).unwrap(), Capacity::Bytes(1 << 20));
        assert_eq!(read("bytes", "7").unwrap(), Capacity::Bytes(7));
        for wrong in [r#""0%""#, r#""101%""#, r#""%""#, r#""NaN%""#, "-1", "true"] {
            let e = read("capacity", wrong).unwrap_err().to_string();
            assert!(
                e.contains("80%") && e.contains("x.json") && e.contains(&format!("{wrong} is no")),
                "{wrong}: {e}"
            );
        }
    }

    #[test]
    fn the_configuration_of_vllm_is_an_object_for_its_layout() {
        let read = |rest: &str| {
            let text =
                format!(r#"{{"tiers":[{{"type":"file","path":"/x","bytes":8192,{rest}}}]}}"#);
            let config = Config::from_json(&text, "x.json").map_err(|e| e.to_string())?;
            match &config.tiers[0] {
                TierSpec::File(spec) => Ok(spec.clone()),
                _ => panic!("a file tier"),
            }
        };
        let fields = r#""vllm_run_config":{"model_name":"org/m","tp_size":1,"kv_cache_groups":[]}"#;
        let spec = read(&format!(r#""layout":"vllm-fs",{fields}"#)).unwrap();
        let run_config = spec.vllm_run_config.as_deref().unwrap();
        assert_eq!((run_config.model(), run_config.base().len()), ("org/m", "org_m_".len() + 12));
        let facts = TierSpec::File(spec.clone()).facts();
        assert!(facts.contains(&("base", run_config.base().to_owned())), "{facts:?}");
        let dir = tempfile::tempdir().unwrap();
        let other = read(&format!(r#""layout":"lmcache-mp",{fields}"#)).unwrap();
        let other = FileSpec { path: dir.path().into(), ..other };
        assert!(other.open().unwrap_err().to_string().contains("leave `vllm_run_config` out"));
        for (wrong, says) in
            [("{}", "model_name"), (r#"{"model_name":"m","x":0.5}"#, "whole number")]
        {
            let e: String =
                read(&format!(r#""layout":"vllm-fs","vllm_run_config":{wrong}"#)).unwrap_err();
            assert!(e.contains(says) && e.contains("x.json"), "{wrong}: {e}");
        }
    }

    #[test]
    fn words_are_checked_where_they_stand() {
        let read = |rest: &str| {
            let text = format!(r#"{{"tiers":[{{"type":"file","path":"/x","bytes":1,{rest}}}]}}"#);
            Config::from_json(&text, "x.json")
        };
        let all = r#""layout":"lmcache-mp","verify":"strict","engine":"threads","durability":"syncfs","free_min":"1GiB","bounce":0"#;
        match &read(all).unwrap().tiers[0] {
            TierSpec::File(spec) => {
                assert_eq!(
                    (spec.layout, spec.verify),
                    (Some(Layout::LmcacheMp), Some(Verify::Strict))
                );
                assert_eq!(
                    (spec.engine, spec.durability),
                    (Some(EngineKind::Threads), Some(Durability::Syncfs))
                );
                assert_eq!((spec.free_min, spec.bounce), (Some(1 << 30), Some(0)));
            }
            _ => panic!("a file tier"),
        }
        for (wrong, says) in [
            (r#""durability":"always""#, "syncfs"),
            (r#""layout":"nixl""#, "lmcache-mp"),
            (r#""verify":"no""#, "strict"),
            (r#""engine":"fast""#, "uring"),
            (r#""free_min":"lots""#, "lots"),
            (r#""layuot":"lmcache""#, "layuot"),
        ] {
            let e = read(wrong).unwrap_err().to_string();
            assert!(e.contains(says) && e.contains("x.json"), "{wrong}: {e}");
        }
    }
}
