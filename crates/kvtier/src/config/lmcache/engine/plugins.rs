//! Plugins that LMCache loads: kvtier's own name their tiers.

use kvtier_core::Error;

use super::effective_settings::LmcacheConfig;
use super::remote;
use crate::config::value::Value;
use crate::config::{Config, TierSpec, native, settings, suggest};

/// A setting that lists plugins, and the prefix of their settings.
const KINDS: [(&str, &str); 2] =
    [("storage_plugins", "storage_plugin"), ("remote_storage_plugins", "remote_storage_plugin")];

/// The value of `remote_serde` for LMCache's CacheGen, which is lossy.
const CACHEGEN: &str = "cachegen";

/// The tiers of the plugins whose module is ours (`<kind>.<name>.tiers`, in the native form,
/// `<kind>.<name>.url`, as `remote_url` has it, or `storage_plugin.<name>.gds_path`, as the setting
/// of that name has it), and of LMCache's own `fs` remotes.
pub(super) fn configs(config: &LmcacheConfig, device: usize) -> Result<Vec<Config>, Error> {
    let mut all = Vec::new();
    for (list, kind) in KINDS {
        for name in names(config, list) {
            let own = format!("{kind}.{name}");
            let setting = |what: &str| config.extra(&format!("{own}.{what}"));
            if is_us(setting("module_path")) {
                refuse_unknown(config, kind, name)?;
                all.push(tiers(config, &own, device)?);
            } else if list == "remote_storage_plugins" && name.split('.').next() == Some("fs") {
                let path = setting("base_path")
                    .or_else(|| config.extra("fs_base_path"))
                    .and_then(Value::as_text);
                let tier = remote::directory(config, path.unwrap_or_default(), list)?;
                all.push(Config::new().with(tier).at(&format!("extra_config: {own}")));
            }
        }
    }
    Ok(all)
}

/// The tiers of the plugin that has its settings under `own`, such as `storage_plugin.kv`.
fn tiers(config: &LmcacheConfig, own: &str, device: usize) -> Result<Config, Error> {
    let setting = |what: &str| config.extra(&format!("{own}.{what}"));
    let text = |what| setting(what).and_then(Value::as_text);
    let place = format!("extra_config: {own}");
    let cap = setting("bytes");
    let mut tiers = match (setting("tiers"), text("url"), text("gds_path")) {
        (None, None, Some(paths)) => {
            Config::new().with(config.gds_tier(paths, device, cap)?).at(&place)
        }
        (Some(_), None, None) | (None, Some(_), None) if cap.is_some() => {
            let what = format!(
                "{own}.bytes: it is the cap of a gds_path, which is missing; write the cap of each tier in {own}.tiers"
            );
            return Err(config.wrong("extra_config", &what));
        }
        (Some(list), None, None) => {
            native::config(&Value::Map(vec![("tiers".into(), list.clone())]), &place)?
                .listed_at(&place)
        }
        (None, Some(url), None) => Config::new()
            .with(remote::of_url(config, url, &format!("extra_config.{own}.url"))?)
            .at(&place),
        (list, url, paths) => {
            let given = [list.is_some(), url.is_some(), paths.is_some()].iter().any(|given| *given);
            let wrong =
                if given { "are there together; keep one" } else { "are missing; write one" };
            let what =
                format!("{own}.tiers (the native form), {own}.url and {own}.gds_path {wrong}");
            return Err(config.wrong("extra_config", &what));
        }
    };
    // LMCache gives its storage backends the tensors of chunks, its remote connectors only bytes.
    if own.starts_with("storage_plugin.") {
        tiers.tiers.iter_mut().for_each(TierSpec::learn_shape_from_saves);
    }
    Ok(tiers)
}

/// Rejects unknown settings of kvtier's plugins.
///
/// # Errors
/// `Invalid`, with a suggestion.
fn refuse_unknown(config: &LmcacheConfig, kind: &str, name: &str) -> Result<(), Error> {
    let known: Vec<&str> = settings::of_our_plugin(kind).collect();
    let map = config.value("extra_config").as_map().unwrap_or_default();
    let mut own = map.iter().filter_map(|(key, _)| setting_of(key, kind, name));
    let Some(unknown) = own.find(|what| !known.contains(what)) else { return Ok(()) };
    let hint = suggest::hint(unknown, known.iter().copied());
    let what = format!(
        "{kind}.{name}.{unknown}: a kvtier plugin has no such setting{hint}; it has {}",
        known.join(", ")
    );
    Err(config.wrong("extra_config", &what))
}

/// The name of a plugin's setting. What has another point in it belongs to a plugin with a longer
/// name.
fn setting_of<'k>(key: &'k str, kind: &str, name: &str) -> Option<&'k str> {
    let what = key.strip_prefix(kind)?.strip_prefix('.')?.strip_prefix(name)?.strip_prefix('.')?;
    (!what.contains('.')).then_some(what)
}

/// Whether one of kvtier's plugins has directories of LMCache's GDS backend.
pub(super) fn has_gds_path(config: &LmcacheConfig) -> bool {
    let mut ours = ours(config);
    ours.any(|plugin| config.extra(&format!("{plugin}.gds_path")).is_some())
}

/// Whether settings of a bucket below `extra_config` are read: by `remote_url`, or by the URL of a
/// plugin.
pub(super) fn has_bucket(config: &LmcacheConfig) -> bool {
    let remote = config.value("remote_url").as_text().unwrap_or_default();
    urls(config).chain([remote]).any(|url| url.starts_with("s3://"))
}

/// Whether LMCache encodes chunks with CacheGen before it passes them to kvtier: a plugin of ours is
/// the only remote store.
pub(super) fn gets_encoded_chunks(config: &LmcacheConfig) -> bool {
    let is_ours = |name| is_us(config.extra(&format!("remote_storage_plugin.{name}.module_path")));
    config.value("remote_serde").as_text() == Some(CACHEGEN)
        && !config.value("remote_url").is_truthy()
        && names(config, "remote_storage_plugins").next().is_some()
        && names(config, "remote_storage_plugins").all(is_ours)
}

/// The URLs of kvtier's plugins.
pub(super) fn urls(config: &LmcacheConfig) -> impl Iterator<Item = &str> {
    ours(config).filter_map(|plugin| config.extra(&format!("{plugin}.url"))?.as_text())
}

/// Whether a name under `extra_config` is a setting of a plugin that we read.
pub(super) fn is_ours(config: &LmcacheConfig, key: &str) -> bool {
    KINDS.iter().any(|(list, kind)| {
        let mut own = names(config, list).filter(|name| {
            let fs = *kind == "remote_storage_plugin" && name.split('.').next() == Some("fs");
            fs || is_us(config.extra(&format!("{kind}.{name}.module_path")))
        });
        own.any(|name| setting_of(key, kind, name).is_some())
    })
}

/// The prefix of the settings of each of kvtier's plugins, such as `storage_plugin.kv`.
fn ours(config: &LmcacheConfig) -> impl Iterator<Item = String> {
    let all = KINDS
        .iter()
        .flat_map(|(list, kind)| names(config, list).map(move |name| format!("{kind}.{name}")));
    all.filter(|plugin| is_us(config.extra(&format!("{plugin}.module_path"))))
}

fn names<'c>(config: &'c LmcacheConfig, list: &str) -> impl Iterator<Item = &'c str> {
    config.value(list).as_list().unwrap_or_default().iter().filter_map(Value::as_text)
}

fn is_us(module: Option<&Value>) -> bool {
    let module = module.and_then(Value::as_text).unwrap_or_default();
    module == "kvtier" || module.starts_with("kvtier.")
}
