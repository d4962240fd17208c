//! A configuration of any form.

use std::fmt;
use std::path::Path;

use kvtier_core::{Error, ErrorKind};

use super::adapter::{Adapter, Rules};
use super::keys::{self, Form as Place, Role};
use super::lmcache::{Finding, Inputs, LmcacheConfig, Source};
use super::value::{Value, is_secret};
use super::{Config, native, yaml};

/// Whose form a configuration has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Form {
    /// Ours: `tiers`.
    Native,
    /// LMCache's file and environment.
    Lmcache,
    /// A list of the objects of LMCache's `--l2-adapter`.
    Adapters,
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Form::Native => "native",
            Form::Lmcache => "lmcache",
            Form::Adapters => "l2-adapter",
        })
    }
}

/// How to read.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Reading {
    /// Whether bad values are taken as LMCache takes them.
    pub lenient: bool,
    /// The number of the GPU on its machine: LMCache gives each its own of several directories.
    pub device: usize,
    /// Settings of LMCache's that outrank file and environment.
    pub overrides: Vec<(String, Value)>,
}

/// A configuration, read: what is in force, who said so, and the tiers that come of it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Read {
    /// Whose form it had.
    pub form: Form,
    /// The tiers.
    pub config: Config,
    /// Every setting, those that nobody set included.
    pub settings: Vec<Finding>,
    /// Warnings.
    pub notes: Vec<String>,
}

impl Read {
    /// Itself, if its tiers can be a stack; `place` says where they are written.
    fn checked(self, place: &str) -> Result<Self, Error> {
        let named = |e: Error| match e.to_string() {
            what if what.starts_with(place) => Error::new(e.kind(), what),
            what => Error::new(e.kind(), format!("{place}: {what}")),
        };
        self.config.check().map_err(named)?;
        Ok(self)
    }
}

impl Reading {
    /// All strict, the first GPU, no overrides.
    pub fn new() -> Self {
        Reading::default()
    }

    /// Reads a file: in the native form if it has `tiers`, as adapters if it is a list or one
    /// object with `type`, else as LMCache's with the environment over it.
    pub fn file(&self, path: &Path) -> Result<Read, Error> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|e| {
            Error::new(ErrorKind::Invalid, format!("cannot read the configuration {name}"))
                .with_cause(e, "check the path")
        })?;
        self.text(&text, &name)
    }

    /// Reads a text as [`file`](Self::file) does. `name` is what messages call it; TOML is expected
    /// where it ends in `.toml`.
    pub fn text(&self, text: &str, name: &str) -> Result<Read, Error> {
        let read = match looks(text, name) {
            Form::Native => self.native(text, name),
            Form::Adapters => self.adapters_of(&native::text(text, name)?, name),
            Form::Lmcache => return self.lmcache(Inputs::from_environment().with_file(name, text)),
        }?;
        read.checked(name)
    }

    /// Reads what LMCache itself would find: `LMCACHE_CONFIG_FILE` and the environment.
    pub fn environment(&self) -> Result<Read, Error> {
        self.lmcache(Inputs::found(None)?)
    }

    /// Reads the objects of `--l2-adapter` arguments.
    pub fn adapters(&self, arguments: &[String]) -> Result<Read, Error> {
        self.adapted(Adapter::list(arguments, self.lenient)?)?.checked("--l2-adapter")
    }

    /// Reads LMCache's settings from these inputs.
    pub fn lmcache(&self, inputs: Inputs) -> Result<Read, Error> {
        let mut inputs = inputs.with_lenient(self.lenient);
        for (name, value) in &self.overrides {
            inputs = inputs.with_override(name, value.clone());
        }
        let config = LmcacheConfig::read(&inputs)?;
        let planned = config.stack(self.device)?;
        let notes = config.notes().iter().map(ToString::to_string).collect();
        let place = inputs.file.as_ref().map_or("the environment", |(name, _)| name.as_str());
        Read { form: Form::Lmcache, config: planned.config, settings: planned.findings, notes }
            .checked(place)
    }

    fn native(&self, text: &str, name: &str) -> Result<Read, Error> {
        let value = native::text(text, name)?;
        let config = native::config(&value, name)?;
        let tiers = value.field("tiers").and_then(Value::as_list).unwrap_or_default();
        let tiers = tiers.iter().enumerate().flat_map(|(at, tier)| {
            let kind = tier.field("type").and_then(Value::as_text).unwrap_or_default();
            findings(kind, tier, &format!("tiers[{at}]"), name)
        });
        let settings = beside(&value, name).chain(tiers).collect();
        Ok(Read { form: Form::Native, config, settings, notes: Vec::new() })
    }

    fn adapters_of(&self, value: &Value, name: &str) -> Result<Read, Error> {
        let rules = Rules::Lmcache { lenient: self.lenient };
        let Some(list) = value.as_list() else {
            return self.adapted(vec![Adapter::read(value, name, rules)?]);
        };
        let list = list.iter().enumerate();
        let list =
            list.map(|(at, object)| Adapter::read(object, &format!("{name} #{}", at + 1), rules));
        self.adapted(list.collect::<Result<_, _>>()?)
    }

    fn adapted(&self, adapters: Vec<Adapter>) -> Result<Read, Error> {
        let (mut config, mut settings, mut notes) = (Config::new(), Vec::new(), Vec::new());
        for adapter in &adapters {
            let own = adapter.config()?;
            config.append(if own.lists.is_empty() { own.at(adapter.place()) } else { own });
            let given = adapter
                .fields()
                .iter()
                .map(|field| (field.key.name.to_owned(), field.value.clone(), field.given));
            let object = Value::Map(
                given
                    .filter(|(_, _, given)| *given)
                    .map(|(name, value, _)| (name, value))
                    .collect(),
            );
            settings.extend(findings(adapter.kind(), &object, adapter.kind(), adapter.place()));
            notes.extend(
                adapter.notes().into_iter().map(|note| format!("{}: {note}", adapter.place())),
            );
        }
        if config.tiers.is_empty() {
            return Err(Error::new(
                ErrorKind::Invalid,
                "no adapter, and so no tier; give at least one",
            ));
        }
        Ok(Read { form: Form::Adapters, config, settings, notes })
    }
}

/// What form a text looks like. What cannot be read at all is LMCache's, whose reader says why.
fn looks(text: &str, name: &str) -> Form {
    let json = || serde_json::from_str::<serde_json::Value>(text).ok().map(Value::from);
    let value = match name.ends_with(".toml") {
        true => native::text(text, name).ok(),
        false => json().or_else(|| yaml::parse(text).ok().map(|document| document.value)),
    };
    match value {
        Some(Value::List(_)) => Form::Adapters,
        Some(value) if value.field("tiers").is_some() => Form::Native,
        Some(value) if value.field("type").is_some() => Form::Adapters,
        _ if name.ends_with(".toml") => Form::Native,
        _ => Form::Lmcache,
    }
}

/// The stack's settings, which stand beside the tiers.
fn beside<'a>(value: &'a Value, source: &'a str) -> impl Iterator<Item = Finding> {
    let own = keys::all().filter(|key| key.form == Place::Stack && key.name != "tiers");
    own.map(move |key| finding(key, key.name.to_owned(), value.field(key.name), source))
}

/// The settings of one tier: those written and those left out.
fn findings(kind: &str, object: &Value, at: &str, source: &str) -> Vec<Finding> {
    let own = keys::all().filter(|key| match key.form {
        Place::Of(other) => other == kind || (kind == "gds" && other == "file"),
        Place::Adapter => !matches!(kind, "host" | "file" | "gds"),
        // Only in the native form: elsewhere nobody says `tiers[0]`.
        Place::Level => at.starts_with("tiers["),
        _ => false,
    });
    own.map(|key| {
        let given = object
            .field(key.name)
            .or_else(|| object.field("capacity").filter(|_| key.name == "bytes"));
        finding(key, format!("{at}.{}", key.name), given, source)
    })
    .collect()
}

/// What became of one setting of a tier or a stack.
fn finding(key: &keys::Key, name: String, given: Option<&Value>, source: &str) -> Finding {
    let hidden = given.is_some_and(|value| is_secret(key.name) && !value.is_null());
    let why = match key.role {
        Role::Used | Role::Extra | Role::Plugin => key.what.to_owned(),
        Role::Engine => format!("LMCache's own: {}", key.what),
        _ => format!("no effect: {}", key.what),
    };
    Finding {
        key: name,
        value: if hidden {
            Value::Text("***".into())
        } else {
            given.map_or_else(|| fallback(key), Value::masked)
        },
        source: if given.is_some() { Source::File(source.into()) } else { Source::Default },
        used: key.role == Role::Used,
        why,
    }
}

fn fallback(key: &keys::Key) -> Value {
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

    fn read(name: &str, text: &str) -> Read {
        let dir = std::env::temp_dir().join(format!("kvtier-read-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join(name);
        std::fs::write(&path, text).unwrap();
        let read = Reading::new().file(&path);
        std::fs::remove_dir_all(&dir).unwrap();
        read.unwrap()
    }

    #[test]
    fn a_file_says_whose_form_it_has() {
        let native = read("a.json", r#"{"tiers":[{"type":"host","bytes":"1MiB"}]}"#);
        assert_eq!((native.form, native.config.tiers.len()), (Form::Native, 1));
        assert!(
            native
                .settings
                .iter()
                .any(|s| s.key == "tiers[0].bytes" && s.source != Source::Default)
        );
        assert_eq!(read("b.toml", "[[tiers]]\ntype = 'host'\nbytes = 4096\n").form, Form::Native);
        assert_eq!(read("c.yaml", "tiers: [{type: host, bytes: 1MiB}]").form, Form::Native);
        assert_eq!(read("d.yaml", "max_local_cpu_size: 0.5\n").form, Form::Lmcache);
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
            assert_eq!((read.form, read.config.tiers.len()), (Form::Adapters, 1), "{name}");
            assert!(
                matches!(&read.config.tiers[0], TierSpec::File(spec) if spec.path.to_str() == Some("/x")),
                "{name}"
            );
        }
    }

    #[test]
    fn an_object_of_our_own_type_says_where_it_belongs() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        std::fs::write(&path, r#"{"type":"host","bytes":"1MiB"}"#).unwrap();
        let error = Reading::new().file(&path).unwrap_err().to_string();
        assert!(error.contains("a.json") && error.contains("`tiers`"), "{error}");
    }
}
