//! Plugins that LMCache loads: those that are ours say which tiers they are.

use kvtier_core::Error;

use super::engine::LmcacheConfig;
use super::remote;
use crate::config::value::Value;
use crate::config::{Config, native};

/// A list of plugins, and what stands before their settings.
const KINDS: [(&str, &str); 2] =
    [("storage_plugins", "storage_plugin"), ("remote_storage_plugins", "remote_storage_plugin")];

/// The tiers of the plugins whose module is ours (`<kind>.<name>.tiers`, in the native form, `<kind>.<name>.url`, as `remote_url` has it, or
/// `<kind>.<name>.gds_path`, as the setting of that name has it), and of LMCache's own `fs` remotes.
pub(super) fn configs(config: &LmcacheConfig, device: usize) -> Result<Vec<Config>, Error> {
    let mut all = Vec::new();
    for (list, kind) in KINDS {
        for name in names(config, list) {
            let setting = |what: &str| config.extra(&format!("{kind}.{name}.{what}"));
            if is_us(setting("module_path")) {
                let place = format!("extra_config: {kind}.{name}");
                let text = |what| setting(what).and_then(Value::as_text);
                match (setting("tiers"), text("url"), text("gds_path")) {
                    (Some(list), None, None) => {
                        all.push(native::config(&Value::Map(vec![("tiers".into(), list.clone())]), &place)?);
                    }
                    (None, Some(url), None) => {
                        all.push(Config::new().with(remote::of_url(config, url, "extra_config")?));
                    }
                    (None, None, Some(paths)) => {
                        let tier = config.gds_tier(paths, device, setting("bytes"))?;
                        all.push(Config::new().with(tier));
                    }
                    (list, url, paths) => {
                        let given = [list.is_some(), url.is_some(), paths.is_some()].iter().any(|given| *given);
                        let wrong = if given { "are there together; keep one" } else { "are missing; write one" };
                        let own = format!("{kind}.{name}");
                        let what = format!("{own}.tiers (the native form), {own}.url and {own}.gds_path {wrong}");
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

/// Whether a plugin that is ours has directories of LMCache's GDS backend.
pub(super) fn has_gds_path(config: &LmcacheConfig) -> bool {
    let all = KINDS.iter().flat_map(|(list, kind)| names(config, list).map(move |name| format!("{kind}.{name}")));
    let mut ours = all.filter(|plugin| is_us(config.extra(&format!("{plugin}.module_path"))));
    ours.any(|plugin| config.extra(&format!("{plugin}.gds_path")).is_some())
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
