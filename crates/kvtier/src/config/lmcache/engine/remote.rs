//! `remote_url`: a bucket or a directory.

use kvtier_core::Error;

use super::effective_settings::LmcacheConfig;
use super::{file_tier, python};
use crate::config::TierSpec;
use crate::config::lmcache::{Adapter, Dialect};
use crate::config::secrets::mask_url;
use crate::config::settings::{ValueKind, of_bucket_url};
use crate::config::value::Value;

/// The tier of `remote_url`, if there is one.
pub(super) fn tier(config: &LmcacheConfig) -> Result<Option<TierSpec>, Error> {
    let Some(url) = config.value("remote_url").as_text().filter(|url| !url.is_empty()) else {
        return Ok(None);
    };
    of_url(config, url, "remote_url").map(Some)
}

/// The tier of a URL that stands under `name`: `remote_url`, or a setting below `extra_config` with
/// that before its name.
pub(super) fn of_url(config: &LmcacheConfig, url: &str, name: &str) -> Result<TierSpec, Error> {
    // Errors name the setting of the file; the URL of a plugin stands below `extra_config`.
    let setting = if name.starts_with("extra_config.") { "extra_config" } else { name };
    match url.split_once("://") {
        Some(("s3", _)) => s3(config, url, name),
        // The host says nothing.
        Some(("fs", rest)) => {
            // LMCache's `fs://host:port/path` has a host for the form's sake only.
            let path = rest.find('/').map_or("", |at| &rest[at..]);
            let path = config.extra("fs_base_path").and_then(Value::as_text).unwrap_or(path);
            directory(config, path, setting)
        }
        _ => {
            // URLs of Redis and others may contain a password.
            let what = format!("{}: no tier speaks that; s3:// and fs:// have one", mask_url(url));
            Err(config.unsupported(setting, &what))
        }
    }
}

/// A directory in the layout of LMCache's FSConnector.
pub(super) fn directory(config: &LmcacheConfig, path: &str, name: &str) -> Result<TierSpec, Error> {
    match path.split(',').collect::<Vec<_>>().as_slice() {
        [""] => Err(config.wrong(name, "it names no directory; write fs://host:0/path")),
        [one] => file_tier::file(*one, None, true),
        _ => Err(config.unsupported(name, "several directories have no layout here; name one")),
    }
}

/// A bucket, by the fields of the adapter's object: `extra_config` has the same names.
fn s3(config: &LmcacheConfig, url: &str, name: &str) -> Result<TierSpec, Error> {
    if config.extra("save_chunk_meta").is_some_and(Value::is_truthy) {
        return Err(config.wrong(
            "extra_config",
            "save_chunk_meta must be false with a bucket; LMCache refuses it too",
        ));
    }
    if config.extra("s3_region").is_none() {
        return Err(config.wrong("extra_config", "s3_region is missing; write the bucket's region"));
    }
    // The settings become the adapter's object, so that both ways to configure a bucket are read
    // and checked by the same code.
    let mut object = vec![
        ("type".to_owned(), Value::Text("s3".into())),
        ("s3_endpoint".to_owned(), Value::Text(url.into())),
    ];
    for key in of_bucket_url() {
        let Some(raw) = config.extra(key.name) else { continue };
        // Values of the environment are texts, and LMCache's file is looser than an adapter's
        // object. What Python would convert is converted here.
        let value = match (key.kind, raw) {
            (ValueKind::Positive, Value::Text(_)) => {
                python::int(raw).map_or_else(|_| raw.clone(), Value::Int)
            }
            (ValueKind::Switch, Value::Int(n @ 0..=1)) => Value::Bool(*n == 1),
            (ValueKind::Name | ValueKind::Text | ValueKind::Word, other) => {
                Value::Text(python::text(other))
            }
            _ => raw.clone(),
        };
        object.push((key.name.to_owned(), value));
    }
    let place = config
        .setting("extra_config")
        .map_or(String::new(), |setting| format!("{}: extra_config", setting.source));
    let adapter = Adapter::read(
        &Value::Map(object),
        &place,
        Dialect::Lmcache { lenient: config.is_lenient() },
    )?;
    finish(config, &adapter, name)
}

/// What the in-process mode has of its own: its layout, its deadline.
#[cfg(feature = "s3")]
fn finish(config: &LmcacheConfig, adapter: &Adapter, name: &str) -> Result<TierSpec, Error> {
    let mut tier = crate::config::s3::spec(adapter)?;
    if let TierSpec::S3(spec) = &mut tier {
        spec.layout = layout(config, spec.layout)?;
        spec.place = place(config, name);
        // Objects under LMCache's names are full chunks.
        // An encoded chunk has any length.
        spec.whole_chunks = config.value("save_unfull_chunk").as_bool() != Some(true)
            && !is_encoded_by_lmcache(config);
        let secs = config
            .value("blocking_timeout_secs")
            .as_int()
            .and_then(|secs| u64::try_from(secs).ok());
        let secs = secs.filter(|secs| *secs > 0);
        let secs = secs.ok_or_else(|| {
            config.wrong("blocking_timeout_secs", "a deadline of no time; write seconds above 0")
        })?;
        spec.deadline = std::time::Duration::from_secs(secs);
    }
    Ok(tier)
}

/// Whether LMCache encodes the chunks: any other encoding was refused before tiers were planned.
#[cfg(feature = "s3")]
fn is_encoded_by_lmcache(config: &LmcacheConfig) -> bool {
    config.unsupported_serde().is_some() && !config.is_ported()
}

/// LMCache's own layout, unless another is written or the file names an encoding for which there is
/// no codec: then other nodes would read what is stored under LMCache's names as encoded.
#[cfg(feature = "s3")]
fn layout(
    config: &LmcacheConfig,
    written: kvtier_s3_tier::Layout,
) -> Result<kvtier_s3_tier::Layout, Error> {
    use kvtier_s3_tier::Layout;
    let is_written = config.extra("layout").is_some();
    if config.unsupported_serde().is_none() || is_encoded_by_lmcache(config) {
        return Ok(if is_written { written } else { Layout::Lmcache });
    }
    // The names promise encoded bytes to other nodes. Plain bytes under them would be wrong ones.
    if is_written && written != Layout::Kvtier {
        let what = "kvtier stores chunks as they are here, and layout is LMCache's, where other nodes expect encoded ones; write naive, or \
                    leave layout out";
        return Err(config.unsupported("remote_serde", what));
    }
    Ok(Layout::Kvtier)
}

/// Where the bucket is written: the file or variable, and the setting of this name.
#[cfg(feature = "s3")]
fn place(config: &LmcacheConfig, name: &str) -> String {
    let (setting, shown) = match name.strip_prefix("extra_config.") {
        Some(own) => ("extra_config", format!("extra_config: {own}")),
        None => (name, name.to_owned()),
    };
    config
        .setting(setting)
        .map_or_else(|| shown.clone(), |setting| format!("{}: {shown}", setting.source))
}

#[cfg(not(feature = "s3"))]
fn finish(_: &LmcacheConfig, adapter: &Adapter, _: &str) -> Result<TierSpec, Error> {
    crate::config::s3::spec(adapter)
}
