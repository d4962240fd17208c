//! The table of all settings, from which docs/CONFIG.md is written and which `kvtier config explain`
//! prints.

/// A table of settings, by section. A row has a name, the kind of its values, the default, the role
/// and the description. Adjacent settings with the same role and description may share a row.
macro_rules! settings {
    ($($section:expr => {
        $($($name:literal $kind:ident $default:literal),+ $role:ident $what:expr;)*
    })*) => {
        &[$($($(Setting {
            name: $name,
            section: $section,
            kind: ValueKind::$kind,
            default: $default,
            role: Role::$role,
            what: $what,
        },)+)*)*]
    };
}

mod document;
pub(crate) mod lmcache_adapter;
mod lmcache_engine;
pub(crate) mod native;

use std::fmt;

pub use document::{BEGIN, END, document};

/// One setting.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Setting {
    /// Its name, as it is written.
    pub name: &'static str,
    /// Where it may be written.
    pub section: Section,
    /// The kind of its values.
    pub kind: ValueKind,
    /// The default as text: `null` for none, empty if the setting is required.
    pub default: &'static str,
    /// Its effect in kvtier.
    pub role: Role,
    /// A short description.
    pub what: &'static str,
}

/// Where a setting may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Section {
    /// LMCache's file, its environment (`LMCACHE_` and the name in capitals) and overrides.
    Engine,
    /// LMCache's file, in the form of its guide for porting to S3, which LMCache 0.5.6 ignores.
    Porting,
    /// Under `extra_config` of that file.
    Extra,
    /// An `--l2-adapter` object or a native tier, of any type.
    Adapter,
    /// Such an object of this type.
    Of(&'static str),
    /// The native form, beside `tiers`.
    Stack,
    /// The native form, in a tier of any type: its rules as a part of the stack.
    Level,
}

/// The kind of values that a setting takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ValueKind {
    /// True or false.
    Bool,
    /// A whole number.
    Int,
    /// A number.
    Float,
    /// A text.
    Text,
    /// Paths, separated by commas, with or without `file://`.
    Paths,
    /// Whole numbers: a list, or separated by commas.
    Ints,
    /// Numbers: a list, or separated by commas.
    Floats,
    /// Texts: a list, or separated by commas.
    Texts,
    /// Texts: a list, or a single one.
    Locations,
    /// A mapping, or one as JSON text.
    Dict,
    /// `prefix_strict` or `skip_missing_chunks`.
    Mode,
    /// Bytes: a number, or a text such as `512MiB`.
    Size,
    /// One of the words that its description names.
    Word,
    /// A text that is not empty.
    Name,
    /// true or false, and no other word for it.
    Switch,
    /// A whole number above 0.
    Positive,
    /// A whole number from 0.
    Count,
    /// A number, and no text.
    Number,
    /// A number from 0, and no text.
    Amount,
    /// A mapping, and no text.
    Object,
    /// A list of tiers.
    Tiers,
    /// True or false, or a mapping of `watermark` and `ratio`.
    Marks,
    /// A list of encodings.
    Encodings,
    /// A list of keys.
    Keys,
}

/// The effect of a setting in kvtier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Role {
    /// It configures the tiers.
    Used,
    /// LMCache itself uses it; it has no effect on the tiers.
    Engine,
    /// It has no effect; its description says why.
    Ignored,
    /// Any value but its default is an error; its description says why.
    Refused,
    /// It configures the GPUDirect Storage tier. In a build without that tier, any value but its
    /// default is an error.
    Gds,
    /// It names plugins; kvtier's own plugins are read.
    Plugin,
    /// It holds more settings.
    Extra,
}

impl Setting {
    /// The default in kvtier. It differs from [`Setting::default`] for settings whose default has no
    /// effect in LMCache.
    pub fn default_here(&self) -> &'static str {
        match (self.section, self.name) {
            // LMCache's client always uses HTTP/1.1.
            (Section::Of("s3"), "s3_prefer_http2") => "false",
            _ => self.default,
        }
    }
}

/// Every setting.
pub fn all() -> impl Iterator<Item = &'static Setting> {
    [
        lmcache_engine::KEYS,
        lmcache_engine::PORTING,
        lmcache_engine::EXTRA,
        lmcache_adapter::KEYS,
        native::KEYS,
    ]
    .into_iter()
    .flatten()
}

/// The settings below `extra_config`.
pub(crate) fn of_extra() -> impl Iterator<Item = &'static Setting> {
    all().filter(|key| key.section == Section::Extra)
}

/// The settings below `extra_config` that are read for a bucket that an `s3://` URL names: those of
/// its object.
pub(crate) fn of_bucket_url() -> impl Iterator<Item = &'static Setting> {
    all().filter(|key| key.section == Section::Of("s3") && key.name != "s3_endpoint")
}

/// The settings of one of kvtier's plugins, without their prefix: `kind` is `storage_plugin` or
/// `remote_storage_plugin`.
pub(crate) fn of_our_plugin(kind: &str) -> impl Iterator<Item = &'static str> {
    let is_backend = kind == "storage_plugin";
    of_extra().filter_map(move |key| {
        let own = key.name.strip_prefix("storage_plugin.<name>.").filter(|_| is_backend);
        own.or_else(|| {
            key.name
                .strip_prefix("remote_storage_plugin.<name>.")
                .filter(|what| *what != "base_path")
        })
    })
}

/// The settings of LMCache's file.
pub(crate) fn of_engine() -> &'static [Setting] {
    lmcache_engine::KEYS
}

/// The settings of this name or older name, in any form.
pub fn named(name: &str) -> Vec<&'static Setting> {
    let name = name.trim_start_matches("extra_config.");
    let plain = name.strip_prefix("LMCACHE_").map(str::to_lowercase);
    let name = plain.as_deref().unwrap_or(name);
    let name = old_name(name).unwrap_or(name);
    let of_plugins = of_plugin(name);
    let is_named =
        |key: &Setting| key.name == name || of_plugins.iter().any(|other| key.name == *other);
    // `capacity` is an alias of a directory's `bytes`.
    let is_cap = |key: &Setting| {
        name == "capacity" && key.name == "bytes" && key.section == Section::Of("file")
    };
    all().filter(|key| is_named(key) || is_cap(key)).collect()
}

/// The names that the table has for a setting of a plugin.
fn of_plugin(name: &str) -> Vec<String> {
    let own = name.strip_prefix("remote_").unwrap_or(name).strip_prefix("storage_plugin.");
    let split = own.and_then(|own| own.rsplit_once('.')).filter(|(plugin, _)| !plugin.is_empty());
    let kinds = ["remote_storage_plugin", "storage_plugin"].into_iter();
    split.map_or_else(Vec::new, |(_, what)| {
        kinds.map(|kind| format!("{kind}.<name>.{what}")).collect()
    })
}

/// The name nearest to `name`, if one is near enough.
pub fn nearest(name: &str) -> Option<&'static str> {
    super::suggest::nearest(name, all().map(|key| key.name))
}

/// The current name of a setting of an earlier LMCache.
pub fn old_name(name: &str) -> Option<&'static str> {
    let pair = lmcache_engine::OLD.iter().find(|(old, _)| *old == name);
    pair.map(|(_, new)| *new)
}

pub(crate) use lmcache_engine::{ALIASES, DEPRECATED, NOT_SETTINGS};

impl ValueKind {
    /// The accepted values, in words.
    pub fn takes(self) -> &'static str {
        match self {
            ValueKind::Bool => "true or false",
            ValueKind::Int => "a whole number",
            ValueKind::Float => "a number",
            ValueKind::Text => "a text",
            ValueKind::Paths => "a path, or several separated by commas",
            ValueKind::Ints => "whole numbers: a list, or separated by commas",
            ValueKind::Floats => "numbers: a list, or separated by commas",
            ValueKind::Texts => "texts: a list, or separated by commas",
            ValueKind::Locations => "a text, or a list of texts",
            ValueKind::Dict => "a mapping, or a JSON object as text",
            ValueKind::Mode => "prefix_strict or skip_missing_chunks",
            ValueKind::Size => "a number of bytes, or a text such as \"512MiB\"",
            ValueKind::Word => "one of these words",
            ValueKind::Name => "a text that is not empty",
            ValueKind::Switch => "true or false",
            ValueKind::Positive => "a whole number above 0",
            ValueKind::Count => "a whole number, 0 or more",
            ValueKind::Number => "a number",
            ValueKind::Amount => "a number, 0 or more",
            ValueKind::Object => "a mapping",
            ValueKind::Tiers => "a list of tiers",
            ValueKind::Marks => "true or false, or a mapping",
            ValueKind::Encodings => "a list of encodings",
            ValueKind::Keys => "a list of keys",
        }
    }
}

impl Role {
    /// The effect of the setting, in words.
    pub fn says(self) -> &'static str {
        match self {
            Role::Used => "configures the tiers",
            Role::Engine => "LMCache's own; no effect on the tiers",
            Role::Ignored => "no effect in kvtier",
            Role::Refused => "an error unless it has its default",
            Role::Gds => "for the GPUDirect Storage tier; an error in builds without it",
            Role::Plugin => "names plugins; those that name kvtier are read",
            Role::Extra => "holds more settings",
        }
    }
}

impl fmt::Display for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Section::Engine => f.write_str("LMCache's file or environment"),
            Section::Porting => f.write_str("LMCache's file, the form of its porting guide"),
            Section::Extra => f.write_str("extra_config"),
            Section::Adapter => f.write_str("every tier but host, file and gds"),
            Section::Of("eviction") => f.write_str("the object eviction"),
            Section::Of("file") => f.write_str("tiers file and gds"),
            Section::Of(kind @ ("plugin" | "native_plugin")) => write!(f, "adapter {kind}"),
            Section::Of(kind) => write!(f, "tier {kind}"),
            Section::Stack => f.write_str("the native form, beside `tiers`"),
            Section::Level => f.write_str("the native form, every tier"),
        }
    }
}
