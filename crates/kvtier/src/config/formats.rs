//! Reads a configuration of any form, after detecting which it is.

use std::fmt;
use std::path::Path;

use kvtier_core::{Error, ErrorKind};

use super::lmcache::{Adapter, Dialect, Inputs, LmcacheConfig, SettingEffect, SettingSource};
use super::secrets::is_secret;
use super::settings::{self, Role, Section};
use super::value::Value;
use super::{Config, native, yaml};

/// The form of a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigFormat {
    /// kvtier's own: `tiers`.
    Native,
    /// LMCache's file and environment.
    Lmcache,
    /// A list of the objects of LMCache's `--l2-adapter`.
    Adapters,
}

impl fmt::Display for ConfigFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ConfigFormat::Native => "native",
            ConfigFormat::Lmcache => "lmcache",
            ConfigFormat::Adapters => "l2-adapter",
        })
    }
}

/// Reads configurations, with these options.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ConfigReader {
    /// Whether invalid values are treated as LMCache treats them.
    pub lenient: bool,
    /// The number of the GPU on its machine: LMCache gives each GPU its own of several directories.
    pub device: usize,
    /// Settings of LMCache that override file and environment.
    pub overrides: Vec<(String, Value)>,
}

/// A configuration that was read: the settings in force, their sources, and the resulting tiers.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ParsedConfig {
    /// Its form.
    pub form: ConfigFormat,
    /// The tiers.
    pub config: Config,
    /// Every setting, also those at their defaults.
    pub settings: Vec<SettingEffect>,
    /// Warnings.
    pub notes: Vec<String>,
    /// The settings in force that make loaded chunks differ from those that the model computed, each
    /// in words. They are warnings too.
    pub lossy: Vec<String>,
}

impl ParsedConfig {
    /// Checks that the tiers can form a stack; `place` names the source in errors.
    fn checked(mut self, place: &str) -> Result<Self, Error> {
        let named = |e: Error| match e.to_string() {
            // The error already names the file; naming it twice would hide the rest.
            what if what.starts_with(place) => Error::new(e.kind(), what),
            what => Error::new(e.kind(), format!("{place}: {what}")),
        };
        self.config.check().map_err(named)?;
        let tiers = self.config.lossy_tiers();
        self.notes.extend(tiers.iter().cloned());
        self.lossy.extend(tiers);
        Ok(self)
    }
}

impl ConfigReader {
    /// All strict, the first GPU, no overrides.
    pub fn new() -> Self {
        ConfigReader::default()
    }

    /// Reads a file: in the native form if it has `tiers`, as adapters if it is a list or one
    /// object with `type`, else as LMCache's with the environment over it.
    pub fn file(&self, path: &Path) -> Result<ParsedConfig, Error> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|e| {
            Error::new(ErrorKind::Invalid, format!("cannot read the configuration {name}"))
                .with_cause(e, "check the path")
        })?;
        self.text(&text, &name)
    }

    /// Reads a text as [`file`](Self::file) does. `name` is what messages call it; TOML is expected
    /// where it ends in `.toml`.
    pub fn text(&self, text: &str, name: &str) -> Result<ParsedConfig, Error> {
        let read = match looks(text, name) {
            ConfigFormat::Native => self.native(text, name),
            ConfigFormat::Adapters => self.adapters_of(&native::text(text, name)?, name),
            // LMCache merges its file with the environment, so both are read here too.
            ConfigFormat::Lmcache => {
                return self.lmcache(Inputs::from_environment().with_file(name, text));
            }
        }?;
        read.checked(name)
    }

    /// Reads what LMCache itself would find: `LMCACHE_CONFIG_FILE` and the environment.
    pub fn environment(&self) -> Result<ParsedConfig, Error> {
        self.lmcache(Inputs::found(None)?)
    }

    /// Reads the objects of `--l2-adapter` arguments.
    pub fn adapters(&self, arguments: &[String]) -> Result<ParsedConfig, Error> {
        self.adapted(Adapter::list(arguments, self.lenient)?)?.checked("--l2-adapter")
    }

    /// Reads LMCache's settings from these inputs.
    pub fn lmcache(&self, inputs: Inputs) -> Result<ParsedConfig, Error> {
        let mut inputs = inputs.with_lenient(self.lenient);
        for (name, value) in &self.overrides {
            inputs = inputs.with_override(name, value.clone());
        }
        let config = LmcacheConfig::read(&inputs)?;
        let planned = config.stack(self.device)?;
        let notes = config.notes().iter().map(ToString::to_string).collect();
        let place = inputs.file.as_ref().map_or("the environment", |(name, _)| name.as_str());
        ParsedConfig {
            form: ConfigFormat::Lmcache,
            config: planned.config,
            settings: planned.effects,
            notes,
            lossy: config.lossy().map(ToString::to_string).collect(),
        }
        .checked(place)
    }

    fn native(&self, text: &str, name: &str) -> Result<ParsedConfig, Error> {
        let value = native::text(text, name)?;
        let config = native::config(&value, name)?;
        let tiers = value.field("tiers").and_then(Value::as_list).unwrap_or_default();
        let tiers = tiers.iter().enumerate().flat_map(|(at, tier)| {
            let kind = tier.field("type").and_then(Value::as_text).unwrap_or_default();
            effects(kind, tier, &format!("tiers[{at}]"), name)
        });
        let settings = beside(&value, name).chain(tiers).collect();
        let (notes, lossy) = (Vec::new(), Vec::new());
        Ok(ParsedConfig { form: ConfigFormat::Native, config, settings, notes, lossy })
    }

    fn adapters_of(&self, value: &Value, name: &str) -> Result<ParsedConfig, Error> {
        let dialect = Dialect::Lmcache { lenient: self.lenient };
        let Some(list) = value.as_list() else {
            return self.adapted(vec![Adapter::read(value, name, dialect)?]);
        };
        let list = list.iter().enumerate();
        let list =
            list.map(|(at, object)| Adapter::read(object, &format!("{name} #{}", at + 1), dialect));
        self.adapted(list.collect::<Result<_, _>>()?)
    }

    fn adapted(&self, adapters: Vec<Adapter>) -> Result<ParsedConfig, Error> {
        let mut config = Config::new();
        let mut settings = Vec::new();
        let (mut notes, mut lossy) = (Vec::new(), Vec::new());
        for adapter in &adapters {
            let own = adapter.config()?;
            // The objects become tiers of one stack, in their order.
            config.append(if own.lists.is_empty() { own.at(adapter.place()) } else { own });
            let given = adapter
                .fields()
                .iter()
                .map(|field| (field.definition.name.to_owned(), field.value.clone(), field.given));
            let object = Value::Map(
                given
                    .filter(|(_, _, given)| *given)
                    .map(|(name, value, _)| (name, value))
                    .collect(),
            );
            settings.extend(effects(adapter.kind(), &object, adapter.kind(), adapter.place()));
            let placed = |note: String| format!("{}: {note}", adapter.place());
            notes.extend(adapter.notes().into_iter().map(placed));
            lossy.extend(adapter.lossy().map(placed));
        }
        if config.tiers.is_empty() {
            return Err(Error::new(
                ErrorKind::Invalid,
                "no adapter, and so no tier; give at least one",
            ));
        }
        Ok(ParsedConfig { form: ConfigFormat::Adapters, config, settings, notes, lossy })
    }
}

/// Detects the form of a text. Text that does not parse is left to LMCache's reader, which reports
/// why.
fn looks(text: &str, name: &str) -> ConfigFormat {
    let json = || serde_json::from_str::<serde_json::Value>(text).ok().map(Value::from);
    // JSON before YAML: every JSON file is also YAML, but the YAML reader follows YAML 1.1 and
    // reads some texts differently.
    let value = match name.ends_with(".toml") {
        true => native::text(text, name).ok(),
        false => json().or_else(|| yaml::parse(text).ok().map(|document| document.value)),
    };
    match value {
        // From the most specific mark to the least. LMCache's own file has neither `tiers` nor
        // `type` at the top.
        Some(Value::List(_)) => ConfigFormat::Adapters,
        Some(value) if value.field("tiers").is_some() => ConfigFormat::Native,
        Some(value) if value.field("type").is_some() => ConfigFormat::Adapters,
        _ if name.ends_with(".toml") => ConfigFormat::Native,
        _ => ConfigFormat::Lmcache,
    }
}

/// The stack's settings, beside `tiers`.
fn beside<'a>(value: &'a Value, source: &'a str) -> impl Iterator<Item = SettingEffect> {
    let own = settings::all().filter(|key| key.section == Section::Stack && key.name != "tiers");
    own.map(move |key| effect(key, key.name.to_owned(), value.field(key.name), source))
}

/// The settings of one tier, written or not.
fn effects(kind: &str, object: &Value, at: &str, source: &str) -> Vec<SettingEffect> {
    let own = settings::all().filter(|key| match key.section {
        Section::Of(other) => other == kind || (kind == "gds" && other == "file"),
        Section::Adapter => !matches!(kind, "host" | "file" | "gds"),
        // Only the native form has `tiers[0]`.
        Section::Level => at.starts_with("tiers["),
        _ => false,
    });
    own.map(|key| {
        let given = object
            .field(key.name)
            .or_else(|| object.field("capacity").filter(|_| key.name == "bytes"));
        effect(key, format!("{at}.{}", key.name), given, source)
    })
    .collect()
}

/// The effect of one setting of a tier or a stack.
fn effect(
    key: &settings::Setting,
    name: String,
    given: Option<&Value>,
    source: &str,
) -> SettingEffect {
    let hidden = given.is_some_and(|value| is_secret(key.name) && !value.is_null());
    let why = match key.role {
        Role::Used | Role::Extra | Role::Plugin => key.what.to_owned(),
        Role::Engine => format!("LMCache's own: {}", key.what),
        _ => format!("no effect: {}", key.what),
    };
    SettingEffect {
        name,
        value: if hidden {
            Value::Text("***".into())
        } else {
            given.map_or_else(|| fallback(key), Value::masked)
        },
        source: if given.is_some() {
            SettingSource::File(source.into())
        } else {
            SettingSource::Default
        },
        used: key.role == Role::Used,
        why,
    }
}

fn fallback(key: &settings::Setting) -> Value {
    match key.default_here() {
        "null" | "" => Value::Null,
        text => serde_json::from_str::<serde_json::Value>(text)
            .map_or_else(|_| Value::Text(text.into()), Value::from),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(feature = "file")]
    use crate::config::TierSpec;

    fn read(name: &str, text: &str) -> ParsedConfig {
        let dir = std::env::temp_dir().join(format!("kvtier-read-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join(name);
        std::fs::write(&path, text).unwrap();
        let read = ConfigReader::new().file(&path);
        std::fs::remove_dir_all(&dir).unwrap();
        read.unwrap()
    }

    #[test]
    fn the_form_of_a_file_is_detected() {
        let native = read("a.json", r#"{"tiers":[{"type":"host","bytes":"1MiB"}]}"#);
        assert_eq!((native.form, native.config.tiers.len()), (ConfigFormat::Native, 1));
        assert!(
            native
                .settings
                .iter()
                .any(|s| s.name == "tiers[0].bytes" && s.source != SettingSource::Default)
        );
        assert_eq!(
            read("b.toml", "[[tiers]]\ntype = 'host'\nbytes = 4096\n").form,
            ConfigFormat::Native
        );
        assert_eq!(read("c.yaml", "tiers: [{type: host, bytes: 1MiB}]").form, ConfigFormat::Native);
        assert_eq!(read("d.yaml", "max_local_cpu_size: 0.5\n").form, ConfigFormat::Lmcache);
        #[cfg(feature = "file")]
        for (name, text) in [
            ("e.json", r#"[{"type":"fs","base_path":"/x"}]"#),
            ("f.json", r#"{"type":"fs","base_path":"/x"}"#),
            ("g.json", "{\n\t\"type\": \"fs\",\n\t\"base_path\": \"/x\"\n}\n"),
            ("h.yaml", "{\n\t\"type\": \"fs\",\n\t\"base_path\": \"/x\"\n}\n"),
            ("i.yaml", "type: fs\nbase_path: /x\n"),
            ("j.yml", "- type: fs\n  base_path: /x\n"),
            ("k", "- {type: fs, base_path: /x}\n"),
            ("l.conf", r#"{"type":"fs","base_path":"/x"}"#),
        ] {
            let read = read(name, text);
            assert_eq!((read.form, read.config.tiers.len()), (ConfigFormat::Adapters, 1), "{name}");
            assert!(
                matches!(&read.config.tiers[0], TierSpec::File(spec) if spec.path.to_str() == Some("/x")),
                "{name}"
            );
        }
    }

    #[test]
    fn an_object_of_a_native_type_belongs_under_tiers() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        std::fs::write(&path, r#"{"type":"host","bytes":"1MiB"}"#).unwrap();
        let error = ConfigReader::new().file(&path).unwrap_err().to_string();
        assert!(error.contains("a.json") && error.contains("`tiers`"), "{error}");
    }
}
