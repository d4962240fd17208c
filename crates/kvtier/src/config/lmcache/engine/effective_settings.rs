//! LMCache's settings in force, each with its value and where that comes from.

use std::fmt;

use crate::config::settings::Setting;
use crate::config::value::Value;

/// Where a setting's value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SettingSource {
    /// The default.
    Default,
    /// This file.
    File(String),
    /// This environment variable.
    Variable(String),
    /// The program that reads the configuration.
    Override,
    /// It follows from this other setting.
    Because(&'static str),
}

impl fmt::Display for SettingSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingSource::Default => f.write_str("default"),
            SettingSource::File(name) => f.write_str(name),
            SettingSource::Variable(name) => f.write_str(name),
            SettingSource::Override => f.write_str("override"),
            SettingSource::Because(key) => write!(f, "follows from {key}"),
        }
    }
}

/// A setting in force.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EffectiveSetting {
    /// Which.
    pub definition: &'static Setting,
    /// Its value.
    pub value: Value,
    /// Where its value comes from.
    pub source: SettingSource,
}

/// A warning about one setting.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Note {
    /// The setting's name, as it was written.
    pub name: String,
    /// Where it was written.
    pub source: SettingSource,
    /// What is to be known.
    pub text: String,
    /// Whether the setting makes loaded chunks differ from those that the model computed.
    pub is_lossy: bool,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.source, self.name, self.text)
    }
}

/// LMCache's settings, all of them, as LMCache would have them.
#[derive(Clone, Debug)]
pub struct LmcacheConfig {
    pub(super) settings: Vec<EffectiveSetting>,
    pub(super) user_set: Vec<&'static str>,
    pub(super) notes: Vec<Note>,
    pub(super) lenient: bool,
    /// The file that names the bucket of `remote_url` by `storage_backend`.
    pub(super) ported: Option<SettingSource>,
}

impl LmcacheConfig {
    /// Every setting, in the order of LMCache's table.
    pub fn settings(&self) -> &[EffectiveSetting] {
        &self.settings
    }

    /// The setting of this name, if LMCache has one.
    pub fn setting(&self, name: &str) -> Option<&EffectiveSetting> {
        self.settings.iter().find(|setting| setting.definition.name == name)
    }

    /// The value of a setting; `Null` where there is none.
    pub fn value(&self, name: &str) -> &Value {
        self.setting(name).map_or(&Value::Null, |setting| &setting.value)
    }

    /// What `extra_config` holds under a name.
    pub fn extra(&self, name: &str) -> Option<&Value> {
        self.value("extra_config").field(name).filter(|value| !value.is_null())
    }

    /// The settings that the file or the environment gave, in alphabetical order.
    pub fn user_set(&self) -> Vec<&'static str> {
        let mut names = self.user_set.clone();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// The warnings.
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// The warnings about settings that make loaded chunks differ from those that the model computed.
    pub fn lossy(&self) -> impl Iterator<Item = &Note> {
        self.notes.iter().filter(|note| note.is_lossy)
    }

    /// Whether `remote_url` comes from the `storage_backend` of a file: no LMCache 0.5.6 reads such
    /// a file, so no other node uses its bucket by the same configuration.
    pub(super) fn is_ported(&self) -> bool {
        self.ported.is_some()
            && self.setting("remote_url").map(|setting| &setting.source) == self.ported.as_ref()
    }

    /// The encoding of the remote store that there is no codec for, if it names one.
    pub(super) fn unsupported_serde(&self) -> Option<&EffectiveSetting> {
        let is_set = |setting: &&EffectiveSetting| {
            setting.value.is_truthy() && setting.value.as_text() != Some("naive")
        };
        self.setting("remote_serde").filter(is_set)
    }

    pub(super) fn is_lenient(&self) -> bool {
        self.lenient
    }

    pub(super) fn note(&mut self, key: &str, source: SettingSource, text: impl Into<String>) {
        let note = Note { name: key.into(), source, text: text.into(), is_lossy: false };
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    pub(super) fn set(&mut self, name: &str, value: Value, source: SettingSource) {
        if let Some(setting) =
            self.settings.iter_mut().find(|setting| setting.definition.name == name)
        {
            (setting.value, setting.source) = (value, source);
        }
    }
}
