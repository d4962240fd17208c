//! What LMCache checks of settings together, and what it makes of one because of another.

use kvtier_core::{Error, ErrorKind};

use super::effective_settings::{LmcacheConfig, SettingSource};
use crate::config::value::Value;

/// `Invalid` where LMCache would not start.
pub(super) fn check(config: &mut LmcacheConfig) -> Result<(), Error> {
    // These checks are LMCache's own. A file that its engine refuses must not look right here.
    match config.value("min_retrieve_tokens").as_int() {
        Some(0..) => {}
        _ => return Err(wrong(config, "min_retrieve_tokens", "it must be 0 or more")),
    }
    if is_on(config, "enable_blending") {
        // LMCache switches it on itself where blending or disaggregation needs it.
        save_unfull(config, "enable_blending");
    }
    if is_on(config, "enable_controller") {
        let needed = ["controller_pull_url", "controller_reply_url", "lmcache_worker_ports"];
        needs(config, "enable_controller", &needed)?;
    }
    if is_on(config, "enable_p2p") {
        let urls = ["controller_pull_url", "controller_reply_url", "lmcache_worker_ports"];
        let own = ["p2p_host", "p2p_init_ports", "p2p_lookup_ports", "transfer_channel"];
        if !is_on(config, "enable_controller") {
            return Err(wrong(config, "enable_p2p", "it needs enable_controller: true"));
        }
        needs(config, "enable_p2p", &urls)?;
        needs(config, "enable_p2p", &own)?;
    }
    if is_on(config, "enable_pd") {
        disaggregated(config)?;
    }
    if config.extra("enable_nixl_storage").is_some_and(Value::is_truthy) {
        nixl(config)?;
    }
    Ok(())
}

fn disaggregated(config: &mut LmcacheConfig) -> Result<(), Error> {
    needs(config, "enable_pd", &["pd_role", "pd_buffer_size", "pd_buffer_device"])?;
    if is_on(config, "enable_p2p") {
        return Err(wrong(config, "enable_pd", "it excludes enable_p2p"));
    }
    if !matches!(config.value("pd_backend_mode").as_text(), Some("sync" | "async")) {
        return Err(wrong(config, "pd_backend_mode", "it must be sync or async"));
    }
    save_unfull(config, "enable_pd");
    if config.value("pd_role").as_text() == Some("receiver") {
        if config.value("store_location").as_text() == Some("PDBackend") {
            return Err(wrong(config, "store_location", "a receiver cannot store in PDBackend"));
        }
        let from = config.value("retrieve_locations");
        let only = from
            .as_list()
            .is_some_and(|list| matches!(list, [one] if one.as_text() == Some("PDBackend")));
        // A receiver gets its chunks from its sender only.
        if !(from.is_null() || only) {
            return Err(wrong(
                config,
                "retrieve_locations",
                "a receiver retrieves from PDBackend only",
            ));
        }
    }
    Ok(())
}

fn nixl(config: &LmcacheConfig) -> Result<(), Error> {
    for name in ["nixl_backend", "nixl_pool_size"] {
        if config.extra(name).is_none() {
            return Err(wrong(
                config,
                "extra_config",
                &format!("enable_nixl_storage needs {name}"),
            ));
        }
    }
    needs(config, "extra_config", &["nixl_buffer_device"])?;
    if config.value("nixl_buffer_device").as_text() != Some("cpu") {
        needs(config, "extra_config", &["nixl_buffer_size"])?;
    }
    Ok(())
}

fn is_on(config: &LmcacheConfig, name: &str) -> bool {
    config.value(name).as_bool() == Some(true)
}

fn save_unfull(config: &mut LmcacheConfig, because: &'static str) {
    if !is_on(config, "save_unfull_chunk") {
        config.set("save_unfull_chunk", Value::Bool(true), SettingSource::Because(because));
        config.note(
            "save_unfull_chunk",
            SettingSource::Because(because),
            "true, as LMCache sets it then",
        );
    }
}

fn needs(config: &LmcacheConfig, because: &str, names: &[&str]) -> Result<(), Error> {
    let missing = |name: &&&str| match config.value(name) {
        Value::List(list) => list.is_empty() && because == "enable_controller",
        value => value.is_null(),
    };
    let first = names.iter().find(missing);
    first.map_or(Ok(()), |name| Err(wrong(config, because, &format!("it needs {name}"))))
}

fn wrong(config: &LmcacheConfig, name: &str, what: &str) -> Error {
    let (source, value) = config
        .setting(name)
        .map_or((SettingSource::Default, Value::Null), |s| (s.source.clone(), s.value.clone()));
    Error::new(
        ErrorKind::Invalid,
        format!("{source}: {name} = {value}: {what}; LMCache does not start so"),
    )
}
