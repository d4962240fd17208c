//! The native form: a list of tiers, from JSON, YAML or TOML.

use kvtier_core::{Error, ErrorKind};
use serde::Deserialize;

use super::lmcache::{Adapter, Dialect};
use super::settings::lmcache_adapter::TYPES;
use super::settings::native::OWN_TYPES;
use super::value::Value;
use super::{Config, TierSpec, suggest, yaml};
use crate::TierRule;

pub(super) mod stack_settings;

/// The settings beside the tiers, and the tiers.
const BESIDE: [&str; 5] = ["tiers", "name", "dirty_max", "computed_per_s", "prices"];

/// Reads a text in the form that the ending of its name says, JSON where it says none.
pub(super) fn text(text: &str, name: &str) -> Result<Value, Error> {
    let wrong = |form: &str, e: String| {
        invalid(format!("{name}: not {form}: {e}; see docs/CONFIG.md for the accepted form"))
    };
    match name.rsplit_once('.').map(|(_, ending)| ending) {
        Some("yaml" | "yml") => match yaml::parse(text) {
            Ok(document) => once(document, name),
            // JSON that is indented with tabs is no YAML.
            Err(e) => json(text).map_err(|_| wrong("YAML", e)),
        },
        // TOML's own types, dates among them, become JSON first, and then values.
        Some("toml") => {
            let table = text.parse::<toml::Table>().map_err(|e| wrong("TOML", placed(&e, text)))?;
            serde_json::to_value(table).map(Value::from).map_err(|e| wrong("TOML", e.to_string()))
        }
        Some("json") => json(text).map_err(|e| wrong("JSON", e.to_string())),
        // No known ending: a mapping or a list of YAML is no JSON, and text that is neither is
        // called no JSON.
        // JSON first: its errors name the place in what was most likely meant.
        _ => json(text).or_else(|e| match yaml::parse(text) {
            Ok(document) if matches!(document.value, Value::Map(_) | Value::List(_)) => {
                once(document, name)
            }
            _ => Err(wrong("JSON", e.to_string())),
        }),
    }
}

fn json(text: &str) -> Result<Value, serde_json::Error> {
    serde_json::from_str::<serde_json::Value>(text).map(Value::from)
}

/// A document of YAML in which no key is repeated.
fn once(document: yaml::Document, name: &str) -> Result<Value, Error> {
    match document.repeated.first() {
        Some(key) => Err(invalid(format!("{name}: {key} is there twice; keep one"))),
        None => Ok(document.value),
    }
}

/// What is wrong with a text of TOML, and where. The line itself, which may hold a secret, is not
/// shown.
fn placed(e: &toml::de::Error, text: &str) -> String {
    let before = e.span().and_then(|span| text.get(..span.start));
    let line = before
        .map_or(String::new(), |before| format!(" at line {}", before.matches('\n').count() + 1));
    e.message().to_owned() + &line
}

/// A whole configuration.
pub(super) fn config(value: &Value, name: &str) -> Result<Config, Error> {
    let Some(map) = value.as_map() else {
        return Err(invalid(format!(
            "{name}: a {} instead of a mapping; see docs/CONFIG.md",
            value.type_name()
        )));
    };
    if let Some((unknown, _)) = map.iter().find(|(key, _)| !BESIDE.contains(&key.as_str())) {
        let hint = suggest::hint(unknown, BESIDE.iter().copied());
        return Err(invalid(format!(
            "{name}: {unknown}: no setting is called that{hint}; see docs/CONFIG.md"
        )));
    }
    let title = match value.field("name") {
        None => None,
        Some(Value::Text(title)) if !title.is_empty() => Some(title.clone()),
        Some(other) => return Err(invalid(format!("{name}: name takes a text, not {other}"))),
    };
    let (tiers, rules): (Vec<TierSpec>, Vec<TierRule>) = list(value, name)?
        .iter()
        .enumerate()
        .map(|(at, spec)| {
            let place = format!("{name}: tiers[{at}]");
            // The rules of a tier in the stack stand in its object. They are taken out before the
            // tier's own reader, which refuses unknown settings, sees it.
            let (rule, spec) = stack_settings::take(spec, &place)?;
            Ok((tier(&spec, &place)?, rule))
        })
        .collect::<Result<_, Error>>()?;
    let dirty_bytes_max = stack_settings::size(value, "dirty_max", name)?;
    let computed_bytes_per_s =
        stack_settings::size(value, "computed_per_s", name)?.map(|bytes| bytes as f64);
    let prices = stack_settings::prices(value, name)?;
    let config = Config {
        tiers,
        rules,
        name: title,
        dirty_bytes_max,
        computed_bytes_per_s,
        prices,
        lists: Vec::new(),
    };
    stack_settings::check(&config, name).map(|()| config)
}

fn list<'a>(value: &'a Value, place: &str) -> Result<&'a [Value], Error> {
    let list = value.field("tiers").and_then(Value::as_list);
    let list = list.ok_or_else(|| {
        invalid(format!(
            "{place}: `tiers` is missing or no list; write the tiers, the first the fastest"
        ))
    })?;
    if list.is_empty() {
        return Err(invalid(format!("{place}: `tiers` is empty; name at least one tier")));
    }
    Ok(list)
}

/// One tier.
pub(super) fn tier(value: &Value, place: &str) -> Result<TierSpec, Error> {
    let name = value.field("type").and_then(Value::as_text);
    let Some(name) = name else {
        return Err(invalid(format!("{place}: `type` is missing; {}", known())));
    };
    // Tiers of the native form alone are read by serde; the others are LMCache's objects and go
    // through their reader.
    if OWN_TYPES.contains(&name) {
        return own_type(name, value).map_err(|e| {
            invalid(format!("{place} ('{name}'): {e}; see docs/CONFIG.md for the accepted form"))
        });
    }
    if !TYPES.contains(&name) {
        let hint = suggest::hint(name, OWN_TYPES.iter().chain(TYPES).copied());
        return Err(invalid(format!("{place}: no tier is of type {name:?}{hint}; {}", known())));
    }
    let adapter = Adapter::read(value, place, Dialect::Native)?;
    match adapter.tiers()?.pop() {
        // A plugin's object describes how LMCache loads kvtier. Inside kvtier's own configuration
        // it makes no sense.
        Some(tier) if !matches!(name, "plugin" | "native_plugin") => Ok(tier),
        _ => Err(invalid(format!("{place}: {name} is for --l2-adapter; write its tier here"))),
    }
}

/// A tier of a type that no adapter of LMCache's is.
fn own_type(name: &str, value: &Value) -> Result<TierSpec, String> {
    #[cfg(any(feature = "file", feature = "s3"))]
    let (encoding, value) = &super::EncodingSpec::take(value)?;
    let spec = if name == "gds" { gds(value) } else { TierSpec::deserialize(value.to_json()) };
    #[cfg_attr(not(feature = "file"), allow(unused_mut))]
    let mut spec = spec.map_err(|e| e.to_string())?;
    #[cfg(any(feature = "file", feature = "s3"))]
    match &mut spec {
        _ if encoding.is_empty() => (),
        #[cfg(feature = "file")]
        TierSpec::File(file) => file.encoding = encoding.clone(),
        #[cfg(feature = "gds")]
        TierSpec::Gds(gds) => gds.file.encoding = encoding.clone(),
        _ => {
            return Err(
                "encode and decode_keys are for tiers of type `file`, `gds` and `s3`; leave them out"
                    .into(),
            );
        }
    }
    Ok(spec)
}

#[cfg(feature = "gds")]
fn gds(value: &Value) -> Result<TierSpec, serde_json::Error> {
    Ok(TierSpec::Gds(Box::new(super::GdsSpec::read(value)?)))
}

#[cfg(not(feature = "gds"))]
fn gds(_: &Value) -> Result<TierSpec, serde_json::Error> {
    Err(serde::de::Error::custom(
        "this build has no GPU tier; build with the feature `gds`, or write `file`",
    ))
}

fn known() -> String {
    let kinds: Vec<&str> =
        OWN_TYPES.iter().chain(TYPES).copied().filter(|kind| !kind.ends_with("plugin")).collect();
    format!("known are {}", kinds.join(", "))
}

fn invalid(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, what.into())
}
