//! The tiers that LMCache's settings mean.

use kvtier_core::{Error, ErrorKind};
use kvtier_evict::PolicyKind;
use kvtier_index::Quotas;

use super::config::{EffectiveSetting, LmcacheConfig, SettingSource};
use super::{plugins, remote, unknown};
use crate::config::settings::{self, Role};
use crate::config::value::{Value, is_secret};
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

/// The effect of a setting.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SettingEffect {
    /// Its name, with `extra_config.` for settings below it.
    pub name: String,
    /// Its value, secrets as `***`.
    pub value: Value,
    /// Where its value comes from.
    pub source: SettingSource,
    /// Whether it configures the tiers.
    pub used: bool,
    /// What it does, or why it does nothing.
    pub why: String,
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

    /// LMCache reads every object of a bucket at the length of a full chunk, so that a shorter one
    /// under its names is of no use to it.
    #[cfg(feature = "s3")]
    fn refuse_short_objects(&self, config: &Config) -> Result<(), Error> {
        use kvtier_s3_tier::Layout;
        let is_theirs =
            |tier: &TierSpec| matches!(tier, TierSpec::S3(spec) if spec.layout != Layout::Kvtier);
        if self.value("save_unfull_chunk").as_bool() != Some(true)
            || !config.tiers.iter().any(is_theirs)
        {
            return Ok(());
        }
        // LMCache's connector asks for exactly the length of a full chunk. A shorter object would
        // never be read, and would use up the cap.
        let what = "objects of a bucket under LMCache's names are full chunks, and LMCache reads no others; write false, or \
                    `layout: kvtier` in extra_config";
        Err(self.wrong("save_unfull_chunk", what))
    }

    #[cfg(not(feature = "s3"))]
    fn refuse_short_objects(&self, _: &Config) -> Result<(), Error> {
        Ok(())
    }

    /// Settings that would be ignored at the cost of what the operator wanted.
    fn refuse(&self, setting: &EffectiveSetting) -> Result<(), Error> {
        let name = setting.definition.name;
        let set = match &setting.value {
            // Only a value that switches something on is refused. Files often write out defaults.
            Value::Bool(on) => *on,
            Value::Null => false,
            other => other.is_truthy(),
        };
        let what = match setting.definition.role {
            Role::Refused if set => setting.definition.what.to_owned(),
            Role::Gds if name == "gds_path" && set && !cfg!(feature = "gds") => {
                "this build has no GPU tier; build with the feature `gds`, or use local_disk".into()
            }
            // Under names that other nodes read as encoded, chunks that are stored as they are
            // would be wrong bytes.
            _ if name == "remote_serde"
                && !self.is_ported()
                && self.unsupported_serde().is_some() =>
            {
                "LMCache's encodings are not supported yet; write naive, or leave it out".into()
            }
            _ => return Ok(()),
        };
        Err(self.unsupported(name, &what))
    }

    fn refuse_extras(&self) -> Result<(), Error> {
        let refused = settings::all()
            .filter(|key| key.section == settings::Section::Extra && key.role == Role::Refused);
        for key in refused {
            if self.extra(key.name).is_some_and(Value::is_truthy) {
                return Err(
                    self.unsupported("extra_config", &format!("{}: {}", key.name, key.what))
                );
            }
        }
        let map = self.value("extra_config").as_map().unwrap_or_default();
        match unknown::own_refusal(map) {
            Some(what) => Err(self.wrong("extra_config", &what)),
            None => Ok(()),
        }
    }

    pub(super) fn unsupported(&self, name: &str, what: &str) -> Error {
        Error::new(ErrorKind::Unsupported, self.about(name, what))
    }

    pub(super) fn wrong(&self, name: &str, what: &str) -> Error {
        Error::new(ErrorKind::Invalid, self.about(name, what))
    }

    fn about(&self, name: &str, what: &str) -> String {
        match self.setting(name) {
            Some(s) if s.definition.kind == settings::ValueKind::Dict => {
                format!("{}: {name}: {what}", s.source)
            }
            Some(s) => format!("{}: {name} = {}: {what}", s.source, s.value),
            None => format!("{name}: {what}"),
        }
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
            crate::bytes::from_gib(self.value("max_local_cpu_size").as_f64().unwrap_or(0.0));
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
            crate::bytes::from_gib(self.value("max_local_disk_size").as_f64().unwrap_or(0.0));
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
        let weka = super::weka::is_on_weka(&spec.file.path);
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

    fn effects(&self) -> Vec<SettingEffect> {
        let mut all = Vec::new();
        for setting in &self.settings {
            if let (Role::Extra, Some(map)) = (setting.definition.role, setting.value.as_map()) {
                all.extend(
                    map.iter().map(|(name, value)| self.extra_effect(name, value, &setting.source)),
                );
                continue;
            }
            let (used, why) = self.effect_of(setting.definition);
            let value = if is_secret(setting.definition.name) {
                Value::Text("***".into())
            } else {
                setting.value.masked()
            };
            all.push(SettingEffect {
                name: setting.definition.name.into(),
                value,
                source: setting.source.clone(),
                used,
                why,
            });
        }
        all
    }

    fn extra_effect(&self, name: &str, value: &Value, source: &SettingSource) -> SettingEffect {
        // A setting is looked for under today's name, in the places where it is or was.
        let found = settings::old_name(name).unwrap_or(name);
        let key = settings::all()
            .find(|key| key.section == settings::Section::Extra && key.name == found);
        // What is a setting of its own today stood here once.
        let key = key.or_else(|| {
            settings::of_engine().iter().find(|key| name != found && key.name == found)
        });
        // What we add to a bucket's object is read here too.
        let key = key.or_else(|| settings::of_bucket_url().find(|key| key.name == name));
        let (used, why) = match key {
            Some(key) => self.effect_of(key),
            None if plugins::is_ours(self, name) => (true, "of a kvtier plugin".into()),
            None => (false, "not a setting of kvtier".into()),
        };
        let value = if is_secret(name) { Value::Text("***".into()) } else { value.masked() };
        SettingEffect {
            name: format!("extra_config.{name}"),
            value,
            source: source.clone(),
            used,
            why,
        }
    }

    /// Whether a setting that is set decides about the tiers, and how or why not.
    fn effect_of(&self, key: &settings::Setting) -> (bool, String) {
        let remote = self.value("remote_url").as_text().unwrap_or_default();
        let urls = || plugins::urls(self).chain([remote]);
        let idle = |what: &str| (false, format!("{}, but {what}", key.what));
        match (key.role, key.name) {
            // A setting that works only with another one is shown as idle where that one is
            // missing, which answers why it changes nothing.
            (Role::Used, "max_local_cpu_size")
                if self.value("local_cpu").as_bool() != Some(true) =>
            {
                idle("local_cpu is off")
            }
            (Role::Used, "max_local_disk_size" | "local_disk_path_sharding")
                if self.value("local_disk").is_null() =>
            {
                idle("there is no local_disk")
            }
            (Role::Used, "blocking_timeout_secs") if urls().all(str::is_empty) => {
                idle("there is no remote_url, nor a plugin's url")
            }
            (Role::Used, "remote_serde") if remote.is_empty() => idle("there is no remote_url"),
            (Role::Used, name)
                if (name.starts_with("s3_") || key.section == settings::Section::Of("s3"))
                    && !urls().any(|url| url.starts_with("s3://")) =>
            {
                idle("neither remote_url nor a plugin's url names a bucket")
            }
            (Role::Used | Role::Extra, _) => (true, key.what.into()),
            (Role::Plugin, _) => (true, key.what.into()),
            (Role::Gds, _) if self.value("gds_path").is_null() && !plugins::has_gds_path(self) => {
                idle("there is no gds_path")
            }
            (Role::Gds, "gds_buffer_size") if plugins::has_gds_path(self) => {
                (true, "MiB of GPU memory that KvtierGdsBackend loads into".into())
            }
            (Role::Gds, "gds_buffer_size") => idle("GPU memory is used in place"),
            (Role::Gds, _) => (true, key.what.into()),
            (Role::Engine, _) => (false, format!("LMCache's own: {}", key.what)),
            (Role::Ignored, _) => (false, format!("no effect: {}", key.what)),
            (Role::Refused, _) => (false, "has its default".into()),
        }
    }
}

#[cfg(feature = "file")]
pub(super) fn file(
    path: impl Into<std::path::PathBuf>,
    bytes: Option<u64>,
    lmcache: bool,
) -> Result<TierSpec, Error> {
    use crate::config::{Capacity, FileSpec};
    let mut spec = FileSpec::new(path, bytes.map_or(Capacity::Share(1.0), Capacity::Bytes));
    spec.layout = lmcache.then_some(kvtier_file::Layout::Lmcache);
    Ok(TierSpec::File(spec))
}

#[cfg(not(feature = "file"))]
pub(super) fn file(
    path: impl Into<std::path::PathBuf>,
    _: Option<u64>,
    _: bool,
) -> Result<TierSpec, Error> {
    let path = path.into();
    let what =
        format!("{}: this build has no file tier; build with the feature `file`", path.display());
    Err(Error::new(ErrorKind::Unsupported, what))
}
