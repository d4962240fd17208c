//! Plans the tiers that LMCache's settings mean.

use kvtier_core::{Error, ErrorKind};
use kvtier_evict::PolicyKind;
use kvtier_index::Quotas;

use super::effective_settings::{LmcacheConfig, SettingSource};
use super::file_tier::file;
use super::setting_effects::SettingEffect;
use super::{plugins, remote};
use crate::config::value::Value;
use crate::config::{Config, TierSpec};

/// The setting below `extra_config` for the shape of a full chunk in the GPU tier: LMCache's own
/// settings do not contain it.
#[cfg(feature = "gds")]
const GDS_SHAPE: &str = "kvtier.gds_shape";

/// The tiers of an LMCache configuration, and the effect of each setting.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PlannedTiers {
    /// The tiers, fastest first.
    pub config: Config,
    /// The effect of each setting, also of those at their defaults.
    pub effects: Vec<SettingEffect>,
}

impl LmcacheConfig {
    /// The tiers that the settings mean, for the GPU of this number on its machine. `Unsupported`
    /// names the setting that has no tier.
    pub fn stack(&self, device: usize) -> Result<PlannedTiers, Error> {
        // First what cannot work here at all, before a tier is planned: the error then names the
        // setting and not what follows from it.
        self.settings.iter().try_for_each(|setting| self.refuse(setting))?;
        self.refuse_extras()?;
        let mut config = Config::new();
        // LMCache's order of backends, from the fastest: memory, disk, GPU files, remote store.
        config.tiers.extend(self.host()?);
        config.tiers.extend(self.disk(device)?);
        config.tiers.extend(self.gds(device)?);
        config.tiers.extend(remote::tier(self)?);
        let mut config = config.at("LMCache's own settings");
        plugins::configs(self, device)?.into_iter().for_each(|plugin| config.append(plugin));
        if config.tiers.is_empty() {
            // LMCache's default asks for a host tier, so a file that only sets its size to 0 ends
            // up here.
            if self.value("local_cpu").as_bool() == Some(true) {
                let what = "the host tier has no memory, and no other tier is named; set it above 0, or local_disk or remote_url";
                return Err(self.wrong("max_local_cpu_size", what));
            }
            let what = "these settings name no tier; set local_cpu: true, local_disk or remote_url";
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        self.refuse_short_objects(&config)?;
        Ok(PlannedTiers { config, effects: self.effects() })
    }

    /// The policy in LMCache's words, in any case; kvtier's default if it is not set.
    fn policy(&self) -> Result<PolicyKind, Error> {
        if self
            .setting("cache_policy")
            // LMCache's default is LRU. It is used only if it is written; otherwise kvtier's own
            // policy decides.
            .is_none_or(|setting| setting.source == SettingSource::Default)
        {
            return Ok(PolicyKind::Default);
        }
        let word = self.value("cache_policy").as_text().unwrap_or_default().to_lowercase();
        let known = matches!(word.as_str(), "lru" | "lfu" | "fifo" | "mru");
        let policy = word.parse().ok().filter(|_| known);
        policy.ok_or_else(|| self.wrong("cache_policy", "it must be LRU, LFU, FIFO or MRU"))
    }

    fn host(&self) -> Result<Option<TierSpec>, Error> {
        let bytes =
            crate::byte_size::from_gib(self.value("max_local_cpu_size").as_f64().unwrap_or(0.0));
        let on = self.value("local_cpu").as_bool() == Some(true) && bytes > 0;
        let policy = Some(self.policy()?);
        Ok(on.then_some(TierSpec::Host {
            bytes,
            name: None,
            policy,
            quotas: Quotas::new(),
            fair: false,
            compat: None,
        }))
    }

    /// LMCache gives each GPU one of the directories, in turn. It finds nothing again in them after
    /// a restart, so what is in them is not shared with it, and the files are ours, in a folder
    /// of their own.
    fn disk(&self, device: usize) -> Result<Option<TierSpec>, Error> {
        let Some(paths) = self.value("local_disk").as_text() else { return Ok(None) };
        let sharding = self.value("local_disk_path_sharding").as_text();
        if sharding != Some("by_gpu") {
            return Err(self.wrong("local_disk_path_sharding", "there is only by_gpu"));
        }
        let paths: Vec<&str> = paths.split(',').collect();
        // A folder of our own: files of LMCache's own disk backend may be in this directory.
        let path = std::path::Path::new(paths[device % paths.len()]).join("kvtier");
        let bytes =
            crate::byte_size::from_gib(self.value("max_local_disk_size").as_f64().unwrap_or(0.0));
        if bytes == 0 {
            return Err(
                self.wrong("max_local_disk_size", "local_disk needs a capacity in GiB above 0")
            );
        }
        #[cfg_attr(not(feature = "file"), allow(unused_mut))]
        let mut tier = file(path, Some(bytes), false)?;
        #[cfg(feature = "file")]
        if let TierSpec::File(spec) = &mut tier {
            spec.policy = Some(self.policy()?);
        }
        Ok(Some(tier))
    }

    /// LMCache gives each GPU one of the directories, in turn; its files there are read, and ours
    /// are as it writes them.
    #[cfg(feature = "gds")]
    fn gds(&self, device: usize) -> Result<Option<TierSpec>, Error> {
        self.value("gds_path").as_text().map(|paths| self.gds_tier(paths, device, None)).transpose()
    }

    /// The GPU tier over the directory of this GPU among `paths`, which commas separate, with the
    /// cap `bytes`.
    #[cfg(feature = "gds")]
    pub(super) fn gds_tier(
        &self,
        paths: &str,
        device: usize,
        bytes: Option<&Value>,
    ) -> Result<TierSpec, Error> {
        use crate::config::{Capacity, GdsSpec};
        if self.value("gds_path_sharding").as_text() != Some("by_gpu") {
            return Err(self.wrong("gds_path_sharding", "there is only by_gpu"));
        }
        if self.value("gds_backend").as_text() != Some("cufile") {
            return Err(self.wrong("gds_backend", "there is only cufile"));
        }
        // By the worker's GPU, as LMCache has it. More GPUs than paths share them in turn.
        let paths: Vec<&str> = paths.split(',').map(str::trim).collect();
        // LMCache has no cap for it; ours is what the file system holds, less what is kept free
        // there.
        let mut spec = GdsSpec::new(paths[device % paths.len()], Capacity::Share(1.0));
        if let Some(bytes) = bytes {
            let cap = crate::config::file::capacity(bytes.to_json());
            spec.file.bytes =
                cap.map_err(|e| self.wrong("extra_config", &format!("bytes: {e}")))?;
        }
        spec.file.policy = Some(self.policy()?);
        // LMCache writes other file names on WekaFS, so the layout depends on the mount.
        let weka = super::is_on_weka::is_on_weka(&spec.file.path);
        spec.file.layout = Some(if weka {
            kvtier_gds::Layout::LmcacheGdsWeka
        } else {
            kvtier_gds::Layout::LmcacheGds
        });
        let shape = self
            .extra(GDS_SHAPE)
            .and_then(Value::as_text)
            .map(str::parse::<kvtier_gds::ChunkShape>)
            .transpose();
        spec.file.shape =
            shape.map_err(|e| self.wrong("extra_config", &format!("{GDS_SHAPE}: {e}")))?;
        spec.gpu.cufile = Some(if self.wants_cufile()? {
            kvtier_gds::CufileMode::Auto
        } else {
            kvtier_gds::CufileMode::Off
        });
        Ok(TierSpec::Gds(Box::new(spec)))
    }

    /// `use_gds`, or what earlier versions had for it below `extra_config`.
    #[cfg(feature = "gds")]
    fn wants_cufile(&self) -> Result<bool, Error> {
        let on = self.value("use_gds").as_bool() != Some(false);
        let Some(old) = self.extra("use_cufile").map(Value::is_truthy) else { return Ok(on) };
        // Both are written and disagree. If only the old one is written, it counts.
        if old != on && self.user_set().contains(&"use_gds") {
            return Err(self.wrong(
                "use_gds",
                "extra_config.use_cufile, its earlier name, says the opposite; keep one",
            ));
        }
        Ok(old)
    }

    #[cfg(not(feature = "gds"))]
    fn gds(&self, _: usize) -> Result<Option<TierSpec>, Error> {
        Ok(None)
    }

    #[cfg(not(feature = "gds"))]
    pub(super) fn gds_tier(&self, _: &str, _: usize, _: Option<&Value>) -> Result<TierSpec, Error> {
        let what =
            "this build has no GPU tier for a plugin's gds_path; build with the feature `gds`";
        Err(self.unsupported("extra_config", what))
    }
}
