//! A GPU tier in the configuration: a file tier's settings, and those of its own.

use std::path::PathBuf;

use kvtier_core::{Error, ErrorKind};
use kvtier_gds::{CufileMode, GdsConfig, GdsTier, Proof};
use serde::Deserialize;

use super::file::{named, size};
use super::value::Value;
use super::{Capacity, FileSpec};

/// Chunks in a directory, for memory of GPUs and of the host.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GdsSpec {
    /// The directory and what is kept there; the default name is `gds`.
    pub file: FileSpec,
    /// The settings of GPU transfers.
    pub gpu: GpuSpec,
}

/// How bytes go between files and GPUs.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct GpuSpec {
    /// `off`, `auto` (the default) or `require`: whether cuFile is used.
    #[serde(default, deserialize_with = "named")]
    pub cufile: Option<CufileMode>,
    /// `always` (the default), `sample` or `off`: which loads by cuFile are compared with their
    /// checksums.
    #[serde(default, alias = "verify", deserialize_with = "named")]
    pub proof: Option<Proof>,
    /// The GPU with which it is decided at the start whether cuFile is used; without it that is
    /// decided when memory of one comes by.
    #[serde(default)]
    pub gpu: Option<u32>,
    /// The path of libcufile, if not where packages and wheels install it.
    #[serde(default)]
    pub cufile_library: Option<PathBuf>,
    /// Bytes that are read at once on their way to a GPU (4 MiB).
    #[serde(default, deserialize_with = "size")]
    pub piece: Option<u64>,
    /// Pinned memory for loads (64 MiB).
    #[serde(default, deserialize_with = "size")]
    pub buffers: Option<u64>,
    /// Pinned memory for saves, and so the longest chunk that can be saved from a GPU (256 MiB).
    #[serde(default, deserialize_with = "size")]
    pub staging: Option<u64>,
    /// Threads for each GPU (4).
    #[serde(default)]
    pub threads: Option<usize>,
}

/// The settings that a file tier does not have.
const OWN: [&str; 8] =
    ["cufile", "proof", "gpu", "cufile_library", "piece", "buffers", "staging", "threads"];

/// `verify` with a word that files alone do not know is another name for `proof`.
fn says_proof(key: &str, value: &Value) -> bool {
    // `verify` is a setting of the file tier too, with other words. The word decides which of the
    // two is meant.
    key == "verify"
        && value.as_text().is_some_and(|word| ["always", "sample", "off"].contains(&word))
}

impl GdsSpec {
    /// A directory and its cap, with defaults for the rest.
    pub fn new(path: impl Into<PathBuf>, bytes: Capacity) -> Self {
        GdsSpec { file: FileSpec::new(path, bytes), gpu: GpuSpec::default() }
    }

    /// Reads a tier's settings; the error says what is wrong with them.
    pub(super) fn read(value: &Value) -> Result<Self, serde_json::Error> {
        let all =
            value.as_map().unwrap_or_default().iter().filter(|(key, _)| key != "type").cloned();
        let is_own =
            |(key, value): &(String, Value)| OWN.contains(&key.as_str()) || says_proof(key, value);
        // Each part is read with unknown fields refused. One struct with both flattened into it
        // could not refuse any.
        let (own, file): (Vec<_>, Vec<_>) = all.partition(is_own);
        let gpu = GpuSpec::deserialize(Value::Map(own).to_json())?;
        Ok(GdsSpec { file: FileSpec::deserialize(Value::Map(file).to_json())?, gpu })
    }

    /// The tier's name.
    pub(super) fn name(&self) -> &str {
        self.file.name.as_deref().unwrap_or("gds")
    }

    pub(super) fn open(&self) -> Result<GdsTier, Error> {
        let GpuSpec { cufile, proof, gpu, cufile_library, piece, buffers, staging, threads } =
            self.gpu.clone();
        // The capacity is part of the file tier's configuration, which replaces this one below.
        let mut config = GdsConfig::new(&self.file.path, 0);
        config.disk = self.file.config()?.into_disk();
        config.disk.name = self.name().into();
        config.engine = self.file.engine.unwrap_or(config.engine);
        config.cufile = cufile.unwrap_or_default();
        config.proof = proof.unwrap_or_default();
        (config.gpu, config.cufile_library) = (gpu, cufile_library);
        config.threads = threads.unwrap_or(config.threads);
        for (name, bytes, field) in [
            ("piece", piece, &mut config.piece_bytes),
            ("buffers", buffers, &mut config.buffer_bytes),
            ("staging", staging, &mut config.staging_bytes),
        ] {
            if let Some(bytes) = bytes {
                let out = |_| Error::new(ErrorKind::Invalid, format!("{name} is out of range"));
                *field = usize::try_from(bytes).map_err(out)?;
            }
        }
        GdsTier::open(config)
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, TierSpec};

    use super::*;

    fn read(rest: &str) -> Result<GdsSpec, String> {
        let text = format!(r#"{{"tiers":[{{"type":"gds","path":"/x","bytes":"1MiB"{rest}}}]}}"#);
        let config = Config::from_json(&text, "x.json").map_err(|e| e.to_string())?;
        match config.tiers.into_iter().next() {
            Some(TierSpec::Gds(spec)) => Ok(*spec),
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn it_has_a_file_tiers_settings_and_its_own() {
        let rest = r#","layout":"lmcache-mp","cufile":"require","proof":"sample","gpu":1,"piece":"8MiB","buffers":"128MiB","staging":"1GiB","threads":8"#;
        let spec = read(rest).unwrap();
        assert_eq!(spec.file.layout, Some(kvtier_file::Layout::LmcacheMp));
        assert_eq!((spec.gpu.cufile, spec.gpu.gpu), (Some(CufileMode::Require), Some(1)));
        assert!(matches!(spec.gpu.proof, Some(Proof::Sample(_))));
        assert_eq!((spec.gpu.piece, spec.gpu.threads), (Some(8 << 20), Some(8)));
        assert_eq!(
            (read("").unwrap().name(), read(r#","name":"g""#).unwrap().name()),
            ("gds", "g")
        );
    }

    #[test]
    fn verify_speaks_of_foreign_files_or_of_loads_by_cufile() {
        let spec = read(r#","verify":"sample""#).unwrap();
        assert!(matches!((spec.gpu.proof, spec.file.verify), (Some(Proof::Sample(_)), None)));
        assert_eq!(read(r#","verify":"off""#).unwrap().gpu.proof, Some(Proof::Off));
        let spec = read(r#","verify":"strict","proof":"off""#).unwrap();
        assert!(matches!((spec.gpu.proof, spec.file.verify), (Some(Proof::Off), Some(_))));
        let twice = read(r#","verify":"off","proof":"always""#).unwrap_err();
        assert!(twice.contains("proof") && twice.contains("tiers[0] ('gds')"), "{twice}");
    }

    #[test]
    fn wrong_settings_say_what_and_where() {
        for (wrong, says) in [
            (r#","cufile":"yes""#, "off, auto or require"),
            (r#","proof":"never""#, "always, sample or off"),
            (r#","gpu":-1"#, "-1"),
            (r#","peice":1"#, "peice"),
            (r#","engine":"fast""#, "uring"),
        ] {
            let e = read(wrong).unwrap_err();
            assert!(e.contains(says) && e.contains("x.json: tiers[0] ('gds')"), "{wrong}: {e}");
        }
    }

    /// The GPU tier that LMCache's settings mean for GPU number 1, or the error.
    fn of_lmcache(yaml: &str) -> Result<GdsSpec, String> {
        use crate::config::lmcache::{Inputs, LmcacheConfig};
        let inputs = Inputs::new()
            .with_file("x.yaml", format!("local_cpu: false\n{yaml}"))
            .with_lenient(true);
        let planned = LmcacheConfig::read(&inputs)
            .and_then(|config| config.stack(1))
            .map_err(|e| e.to_string())?;
        match planned.config.tiers.into_iter().next() {
            Some(TierSpec::Gds(spec)) => Ok(*spec),
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn lmcaches_settings_of_both_generations_mean_its_files() {
        let layout = Some(kvtier_file::Layout::LmcacheGds);
        let new = of_lmcache("gds_path: /a, /b\ngds_buffer_size: 1024\n").unwrap();
        assert_eq!(
            (new.file.path.to_str(), new.file.layout, new.gpu.cufile),
            (Some("/b"), layout, Some(CufileMode::Auto))
        );
        assert_eq!(
            of_lmcache("gds_path: /a\nuse_gds: false\n").unwrap().gpu.cufile,
            Some(CufileMode::Off)
        );
        let old = of_lmcache(
            "gds_path: /a\ncufile_buffer_size: 1024\nextra_config: {use_cufile: true}\n",
        )
        .unwrap();
        assert_eq!(
            (old.file.path.to_str(), old.file.layout, old.gpu.cufile),
            (Some("/a"), layout, Some(CufileMode::Auto))
        );
        let off =
            of_lmcache("gds_path: /a\nextra_config: {use_cufile: false, use_direct_io: true}\n")
                .unwrap();
        assert_eq!(off.gpu.cufile, Some(CufileMode::Off));
        let both = of_lmcache("gds_path: /a\nuse_gds: true\nextra_config: {use_cufile: false}\n")
            .unwrap_err();
        assert!(both.contains("use_cufile") && both.contains("x.yaml"), "{both}");
        assert!(of_lmcache("gds_path: /a\ngds_backend: hipfile\n").unwrap_err().contains("cufile"));
    }

    #[test]
    fn a_storage_plugin_of_ours_names_its_directory_as_gds_path_does() {
        let place = "storage_plugin.kv";
        let plugin = |rest: &str| {
            of_lmcache(&format!(
                "storage_plugins: [kv]\nuse_gds: false\nextra_config: {{{place}.module_path: kvtier.lmcache, {rest}}}\n"
            ))
        };
        let spec = plugin(&format!("{place}.gds_path: '/a, /b', {place}.bytes: 800GiB")).unwrap();
        assert_eq!(
            (spec.file.path.to_str(), spec.file.bytes),
            (Some("/b"), Capacity::Bytes(800 << 30))
        );
        assert_eq!(
            (spec.file.layout, spec.gpu.cufile),
            (Some(kvtier_file::Layout::LmcacheGds), Some(CufileMode::Off))
        );
        let spec = plugin(&format!("{place}.gds_path: /a")).unwrap();
        assert_eq!(spec.file.bytes, Capacity::Share(1.0));
        let wrong = plugin(&format!("{place}.gds_path: /a, {place}.bytes: much")).unwrap_err();
        assert!(wrong.contains("bytes") && wrong.contains("much"), "{wrong}");
        for cap in ["", ", storage_plugin.kv.bytes: 1GiB"] {
            let both =
                plugin(&format!("{place}.gds_path: /a, {place}.tiers: []{cap}")).unwrap_err();
            assert!(both.contains("are there together; keep one"), "{both}");
            let none = plugin(&format!("{place}.class_name: C{cap}")).unwrap_err();
            assert!(none.contains("are missing; write one"), "{none}");
        }
        let cap = plugin(&format!("{place}.tiers: [], {place}.bytes: 1GiB")).unwrap_err();
        assert!(cap.contains("bytes: it is the cap of a gds_path, which is missing"), "{cap}");
    }

    #[test]
    fn the_shape_of_a_chunk_is_said_below_extra_config() {
        assert_eq!(of_lmcache("gds_path: /a\n").unwrap().file.shape, None);
        let said =
            of_lmcache("gds_path: /a\nextra_config: {kvtier.gds_shape: 2x32x256x1024}\n").unwrap();
        assert_eq!(said.file.shape.unwrap().axes, [2, 32, 256, 1024]);
        let wrong =
            of_lmcache("gds_path: /a\nextra_config: {kvtier.gds_shape: large}\n").unwrap_err();
        assert!(wrong.contains("kvtier.gds_shape") && wrong.contains("large"), "{wrong}");
        assert!(read(r#","shape":"2x2""#).unwrap_err().contains("2x32x256x1024"));
        let spec = read(r#","layout":"lmcache-gds","shape":"1x61x256x576""#).unwrap();
        assert_eq!(spec.file.shape.unwrap().to_string(), "1x61x256x576 KV_MLA_FMT");
    }

    #[test]
    fn what_is_out_of_range_is_refused_when_it_is_opened() {
        let dir = tempfile::tempdir().unwrap();
        let mut spec = GdsSpec::new(dir.path(), Capacity::Bytes(1 << 20));
        spec.gpu.piece = Some(1);
        assert!(spec.open().unwrap_err().to_string().contains("piece_bytes is 1"));
        spec.gpu.piece = None;
        assert_eq!(kvtier_core::Tier::caps(&spec.open().unwrap()).name.as_ref(), "gds");
    }
}
