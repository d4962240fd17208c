//! The effect of each of LMCache's settings: what it configures, or why it does nothing.

use super::effective_settings::{LmcacheConfig, SettingSource};
use super::plugins;
use crate::config::secrets::is_secret;
use crate::config::settings::{self, Role};
use crate::config::value::Value;

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
    /// The effects of all settings, also of those at their defaults.
    pub(super) fn effects(&self) -> Vec<SettingEffect> {
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
            (Role::Used, "remote_serde")
                if remote.is_empty() && !plugins::gets_encoded_chunks(self) =>
            {
                idle("there is no remote_url, nor a remote plugin of kvtier's")
            }
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
