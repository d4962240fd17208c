//! Merges LMCache's file, its environment variables and overrides into the settings in force.

use kvtier_core::{Error, ErrorKind};

use super::convert_values::{convert, why_suspicious};
use super::effective_settings::{EffectiveSetting, LmcacheConfig, SettingSource};
use super::python::{self, Misfit};
use super::{Inputs, check, plugins, storage_backend_form, unknown};
use crate::config::secrets::is_secret;
use crate::config::settings::{self, Role, Setting, ValueKind};
use crate::config::value::Value;
use crate::config::yaml;

/// What becomes of a value that does not fit.
#[derive(Clone, Copy, PartialEq)]
enum OnMisfit {
    /// The setting becomes null.
    Null,
    /// The setting keeps the value that it has.
    Keep,
}

/// What is read so far, and what is wrong with it.
struct SourceMerge {
    config: LmcacheConfig,
    faults: Vec<String>,
    lenient: bool,
    /// Unknown settings of the file that probably name storage, with hints.
    unknown_storage: Vec<String>,
}

impl LmcacheConfig {
    /// Reads all sources with LMCache's precedence. Errors are `Invalid` and name the setting,
    /// where it stands, its value, and what it takes.
    pub fn read(inputs: &Inputs) -> Result<Self, Error> {
        let settings = settings::of_engine().iter().map(default).collect();
        let lenient = inputs.lenient;
        let config = LmcacheConfig {
            settings,
            user_set: Vec::new(),
            notes: Vec::new(),
            lenient,
            ported: None,
        };
        let mut reading =
            SourceMerge { config, faults: Vec::new(), lenient, unknown_storage: Vec::new() };
        if inputs.file.is_some() {
            reading.file(inputs)?;
            reading.config.complete()?;
        }
        reading.variables(inputs);
        reading.config.complete()?;
        reading.overrides(inputs);
        reading.config.complete()?;
        reading.config.note_unknown_extras();
        reading.config.note_serde();
        reading.refuse_unknown_storage(inputs);
        if reading.faults.is_empty() {
            Ok(reading.config)
        } else {
            Err(Error::new(ErrorKind::Invalid, reading.faults.join("\n")))
        }
    }

    /// Notes that `remote_serde` loses precision, or that it has no effect here.
    fn note_serde(&mut self) {
        let Some(serde) = self.unsupported_serde() else { return };
        let is_lossy = plugins::gets_encoded_chunks(self);
        let text = if is_lossy {
            "lossy: LMCache quantises keys and values before it passes them to kvtier, so loaded chunks differ from what the model computed; \
             write naive for exact bytes"
                .to_owned()
        } else if self.is_ported() {
            format!(
                "{} has no effect here: chunks are stored as they are, exactly, under kvtier's own names, which no LMCache reads as encoded; \
                 write naive for LMCache's names",
                serde.value
            )
        } else {
            return;
        };
        let source = serde.source.clone();
        self.note("remote_serde", source, text);
        self.notes.last_mut().into_iter().for_each(|note| note.is_lossy = is_lossy);
    }

    /// What LMCache checks, and what follows from other settings.
    fn complete(&mut self) -> Result<(), Error> {
        check::check(self)
    }

    fn note_unknown_extras(&mut self) {
        let source = self
            .setting("extra_config")
            .map_or(SettingSource::Default, |setting| setting.source.clone());
        let map = self.value("extra_config").as_map().unwrap_or_default();
        let texts = unknown::of_extra_config(map, plugins::has_bucket(self));
        for (key, text) in texts {
            self.note(&key, source.clone(), text);
        }
    }
}

fn default(key: &'static Setting) -> EffectiveSetting {
    let text = || Value::Text(key.default.into());
    let value = match key.kind {
        _ if key.default == "null" => Value::Null,
        ValueKind::Text | ValueKind::Mode => text(),
        ValueKind::Float => key.default.parse().map_or_else(|_| text(), Value::Float),
        _ => serde_json::from_str::<serde_json::Value>(key.default)
            .map_or_else(|_| text(), Value::from),
    };
    EffectiveSetting { definition: key, value, source: SettingSource::Default }
}

impl SourceMerge {
    fn file(&mut self, inputs: &Inputs) -> Result<(), Error> {
        let Some((name, text)) = &inputs.file else { return Ok(()) };
        let invalid = |what: String| Error::new(ErrorKind::Invalid, format!("{name}: {what}"));
        let document = yaml::parse(text).map_err(|e| invalid(format!("not YAML: {e}")))?;
        let source = SettingSource::File(name.clone());
        for key in document.repeated {
            self.suspicious(&key, &source, "it is written twice; LMCache takes the last; keep one");
        }
        let pairs = match document.value {
            Value::Map(pairs) => pairs,
            value if !value.is_truthy() => Vec::new(),
            Value::Text(line) if line.starts_with("LMCACHE_") && line.contains('=') => {
                let what = "a variable of the environment instead of a setting; set it there, or write `key: value` lines";
                return Err(invalid(what.into()));
            }
            other => {
                return Err(invalid(format!(
                    "a {} instead of a mapping; write `key: value` lines",
                    other.type_name()
                )));
            }
        };
        // LMCache itself ignores the form of the porting guide, and so does a lenient reading.
        let pairs = if self.lenient { pairs } else { self.ported(pairs, &source, inputs)? };
        let resolved = self.resolve(pairs, |_| source.clone());
        for (key, value, source) in resolved {
            self.apply(key, &value, &source, OnMisfit::Null);
        }
        Ok(())
    }

    /// The settings of a file with those of the porting guide's form under today's names.
    fn ported(
        &mut self,
        pairs: Vec<(String, Value)>,
        source: &SettingSource,
        inputs: &Inputs,
    ) -> Result<Vec<(String, Value)>, Error> {
        let ported = storage_backend_form::read(pairs, inputs.region());
        let ported =
            ported.map_err(|what| Error::new(ErrorKind::Invalid, format!("{source}: {what}")))?;
        for (name, text) in ported.notes {
            self.config.note(name, source.clone(), text);
        }
        self.config.ported = ported.has_bucket.then(|| source.clone());
        Ok(ported.pairs)
    }

    /// A file whose settings of storage are all unknown would run in memory alone.
    fn refuse_unknown_storage(&mut self, inputs: &Inputs) {
        let known =
            self.config.settings.iter().filter(|setting| setting.source != SettingSource::Default);
        let is_named = known
            .into_iter()
            .any(|setting| unknown::is_storage(setting.definition.name, &setting.value));
        if self.lenient || is_named || self.unknown_storage.is_empty() {
            return;
        }
        if let Some((name, _)) = &inputs.file {
            self.faults.push(unknown::refusal(name, &self.unknown_storage));
        }
    }

    fn variables(&mut self, inputs: &Inputs) {
        let failing = if inputs.file.is_some() { OnMisfit::Keep } else { OnMisfit::Null };
        let named = inputs
            .variables
            .iter()
            .filter_map(|(name, value)| Some((name.strip_prefix("LMCACHE_")?, value)));
        let known = |name: &str| {
            let lower = name.to_lowercase();
            settings::of_engine().iter().any(|key| key.name == lower)
                || settings::ALIASES.iter().any(|(old, _)| *old == lower)
                || settings::old_name(&lower).is_some()
        };
        let (settings, others): (Vec<_>, Vec<_>) = named.partition(|(name, _)| known(name));
        let pairs = settings
            .iter()
            .map(|(name, value)| (name.to_lowercase(), Value::Text((*value).clone())))
            .collect();
        let resolved = self.resolve(pairs, |name| {
            SettingSource::Variable(format!("LMCACHE_{}", name.to_uppercase()))
        });
        for (key, value, source) in resolved {
            let value = Value::Text(python::unquoted(value.as_text().unwrap_or_default()));
            self.apply(key, &value, &source, failing);
        }
        for (name, _) in others {
            let is_setting = !settings::NOT_SETTINGS
                .iter()
                .any(|other| name == *other || name.starts_with(&format!("{other}_")));
            if is_setting {
                let source = SettingSource::Variable(format!("LMCACHE_{name}"));
                let name = name.to_lowercase();
                self.config.note(&name, source, unknown::of_variable(&name));
            }
        }
    }

    fn overrides(&mut self, inputs: &Inputs) {
        for (name, value) in &inputs.overrides {
            let Some(key) = settings::of_engine().iter().find(|key| key.name == name) else {
                self.config.note(name, SettingSource::Override, unknown::of_override(name));
                continue;
            };
            let before = self.config.user_set.len();
            self.apply(key, value, &SettingSource::Override, OnMisfit::Null);
            self.config.user_set.truncate(before);
        }
    }

    /// Resolves names to settings, and notes those that LMCache no longer has.
    fn resolve(
        &mut self,
        pairs: Vec<(String, Value)>,
        source: impl Fn(&str) -> SettingSource,
    ) -> Vec<(&'static Setting, Value, SettingSource)> {
        let find = |name: &str| settings::of_engine().iter().find(|key| key.name == name);
        let mut resolved: Vec<(&'static Setting, Value, SettingSource)> = Vec::new();
        for (name, value) in pairs {
            let from = source(&name);
            let old = settings::old_name(&name)
                .filter(|_| !self.lenient || settings::DEPRECATED.contains(&name.as_str()));
            if let Some(key) = find(&name).or_else(|| old.and_then(find)) {
                if key.name != name {
                    self.config.note(
                        &name,
                        from.clone(),
                        format!("an old name; call it {}", key.name),
                    );
                }
                resolved.retain(|(other, _, _)| other.name != key.name);
                resolved.push((key, value, from));
                continue;
            }
            if let Some((variable, _)) =
                name.split_once('=').filter(|_| name.starts_with("LMCACHE_"))
            {
                let today = variable["LMCACHE_".len()..].to_lowercase();
                let what = format!(
                    "a variable of the environment instead of a setting; set it there, or write {today}: ..."
                );
                self.suspicious(variable, &from, &what);
                continue;
            }
            let hint = unknown::hint(&name);
            if matches!(from, SettingSource::File(_)) && unknown::names_storage(&name, &value) {
                self.unknown_storage.push(format!("{name}{}", hint.replacen("; ", ", ", 1)));
            }
            self.config.note(&name, from, unknown::note(&hint));
        }
        resolved
    }

    fn apply(
        &mut self,
        key: &'static Setting,
        raw: &Value,
        source: &SettingSource,
        failing: OnMisfit,
    ) {
        if raw.is_null() {
            if key.default != "null" && key.role != Role::Engine || key.name == "chunk_size" {
                self.suspicious(
                    key.name,
                    source,
                    &format!("it is null; write {}, or leave it out", key.kind.takes()),
                );
            }
            return self.keep(key, Value::Null, source);
        }
        match convert(key.kind, raw) {
            Ok(value) => {
                if let Some(why) = why_suspicious(key.kind, raw) {
                    let shown = shown(key, raw);
                    self.suspicious(
                        key.name,
                        source,
                        &format!("{shown}: {why}; write {}", key.kind.takes()),
                    );
                }
                self.keep(key, value, source);
            }
            Err(Misfit::Value(why)) => {
                let shown = shown(key, raw);
                self.suspicious(
                    key.name,
                    source,
                    &format!("{shown}: {why}; write {}", key.kind.takes()),
                );
                match failing {
                    OnMisfit::Null => self.keep(key, Value::Null, source),
                    OnMisfit::Keep => {}
                }
            }
            // LMCache itself does not survive this.
            Err(Misfit::Type(why)) => {
                self.faults.push(format!(
                    "{source}: {} = {}: {why}; write {}",
                    key.name,
                    shown(key, raw),
                    key.kind.takes()
                ));
            }
        }
    }

    fn keep(&mut self, key: &'static Setting, value: Value, source: &SettingSource) {
        self.config.user_set.push(key.name);
        self.config.set(key.name, value, source.clone());
    }

    /// What LMCache lets pass with a warning at most, and is an error here unless LMCache is to be
    /// copied.
    fn suspicious(&mut self, key: &str, source: &SettingSource, what: &str) {
        if self.lenient {
            self.config.note(key, source.clone(), what);
        } else {
            self.faults.push(format!("{source}: {key}: {what}; --lenient does as LMCache does"));
        }
    }
}

/// A raw value in a message. A mapping that is not read yet may hold anything.
fn shown(key: &Setting, raw: &Value) -> String {
    let hide = is_secret(key.name) || (key.kind == ValueKind::Dict && raw.as_map().is_none());
    if hide { "***".into() } else { raw.to_string() }
}
