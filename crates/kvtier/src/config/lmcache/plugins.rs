//! Plugins that LMCache loads: those that are ours say which tiers they are.

use kvtier_core::Error;

use super::engine::LmcacheConfig;
use super::remote;
use crate::config::value::Value;
use crate::config::{Config, native};

/// A list of plugins, and what stands before their settings.
const KINDS: [(&str, &str); 2] =
    [("storage_plugins", "storage_plugin"), ("remote_storage_plugins", "remote_storage_plugin")];

/// The tiers of the plugins whose module is ours (`<kind>.<name>.tiers`, in the native form, or `<kind>.<name>.url`, as `remote_url` has
/// it), and of LMCache's own `fs` remotes.
pub(super) fn configs(config: &LmcacheConfig) -> Result<Vec<Config>, Error> {
    let mut all = Vec::new();
    for (list, kind) in KINDS {
        for name in names(config, list) {
            let setting = |what: &str| config.extra(&format!("{kind}.{name}.{what}"));
            if is_us(setting("module_path")) {
                let place = format!("extra_config: {kind}.{name}");
                match (setting("tiers"), setting("url").and_then(Value::as_text)) {
                    (Some(list), None) => {
                        all.push(native::config(&Value::Map(vec![("tiers".into(), list.clone())]), &place)?);
                    }
                    (None, Some(url)) => all.push(Config::new().with(remote::of_url(config, url, "extra_config")?)),
                    (list, _) => {
                        let wrong = if list.is_some() { "are there both; keep one" } else { "are missing; write one" };
                        let what = format!("{kind}.{name}.tiers (the native form) and {kind}.{name}.url {wrong}");
                        return Err(config.wrong("extra_config", &what));
                    }
                }
            } else if list == "remote_storage_plugins" && name.split('.').next() == Some("fs") {
                let path = setting("base_path").or_else(|| config.extra("fs_base_path")).and_then(Value::as_text);
                all.push(Config::new().with(remote::directory(config, path.unwrap_or_default(), list)?));
            }
        }
    }
    Ok(all)
}

/// Whether LMCache loads a backend of ours, which has the tensors of chunks in its hands.
pub(super) fn has_backend(config: &LmcacheConfig) -> bool {
    let (list, kind) = KINDS[0];
    names(config, list).any(|name| is_us(config.extra(&format!("{kind}.{name}.module_path"))))
}

/// The URLs of the plugins that are ours, for what is said of settings that they use.
pub(super) fn urls(config: &LmcacheConfig) -> impl Iterator<Item = &str> {
    let all = KINDS.iter().flat_map(|(list, kind)| names(config, list).map(move |name| format!("{kind}.{name}")));
    let ours = all.filter(|plugin| is_us(config.extra(&format!("{plugin}.module_path"))));
    ours.filter_map(|plugin| config.extra(&format!("{plugin}.url"))?.as_text())
}

/// Whether a name under `extra_config` is a setting of a plugin that we read.
pub(super) fn is_ours(config: &LmcacheConfig, key: &str) -> bool {
    KINDS.iter().any(|(list, kind)| {
        let mut own = names(config, list).filter(|name| {
            let fs = *kind == "remote_storage_plugin" && name.split('.').next() == Some("fs");
            fs || is_us(config.extra(&format!("{kind}.{name}.module_path")))
        });
        own.any(|name| key.starts_with(&format!("{kind}.{name}.")))
    })
}

fn names<'c>(config: &'c LmcacheConfig, list: &str) -> impl Iterator<Item = &'c str> {
    config.value(list).as_list().unwrap_or_default().iter().filter_map(Value::as_text)
}

fn is_us(module: Option<&Value>) -> bool {
    let module = module.and_then(Value::as_text).unwrap_or_default();
    module == "kvtier" || module.starts_with("kvtier.")
}
