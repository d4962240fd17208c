//! Settings that LMCache does not have: what is said about each, and whether a file that has only
//! such ones meant to name storage.

use crate::config::settings::{self, Section};
use crate::config::suggest;
use crate::config::value::Value;

/// The prefix of kvtier's own settings below `extra_config`.
const OURS: &str = "kvtier.";

/// The settings that name storage.
const STORAGE: [&str; 9] = [
    "local_cpu",
    "local_disk",
    "remote_url",
    "gds_path",
    "maru_path",
    "nixl_backends",
    "audit_actual_remote_url",
    "storage_plugins",
    "remote_storage_plugins",
];

/// Settings of storage that name none by themselves: a name that is close to one of them means
/// storage all the same.
const SIZES: [&str; 2] = ["max_local_cpu_size", "max_local_disk_size"];

/// Words in the names of settings that name storage.
const WORDS: [&str; 14] = [
    "storage",
    "backend",
    "disk",
    "device",
    "remote",
    "s3",
    "bucket",
    "connector",
    "adapter",
    "gds",
    "endpoint",
    "tier",
    "nvme",
    "cache_dir",
];

/// What is said about an unknown setting of a file, after a [hint].
pub(super) fn note(hint: &str) -> String {
    format!("unknown, and ignored as LMCache does{hint}")
}

/// The name that an unknown setting of a file has now, or was meant to be.
pub(super) fn hint(name: &str) -> String {
    let new = settings::ALIASES.iter().find(|(old, _)| *old == name).map(|(_, new)| *new);
    let is_extra = || settings::of_extra().any(|key| key.name == name);
    match new.or(settings::old_name(name)) {
        Some(new) => format!("; it is called {new} now"),
        None if is_extra() => {
            format!("; it belongs under extra_config: write extra_config: {{{name}: ...}}")
        }
        None if name == "nixl_peer_port" => "; it is gone".into(),
        // A file of kvtier's own form whose `tiers` is misspelled ends up here.
        None => suggest::hint(name, known().chain(["tiers"])),
    }
}

/// What is said about an unknown environment variable, by its name in lower case.
pub(super) fn of_variable(name: &str) -> String {
    note(&suggest::hint(name, known()))
}

/// What is said about an unknown override.
pub(super) fn of_override(name: &str) -> String {
    format!("unknown, and ignored{}", suggest::hint(name, known()))
}

fn known() -> impl Iterator<Item = &'static str> {
    settings::of_engine().iter().map(|key| key.name)
}

/// The settings below `extra_config` that are unknown or without effect, and what is said about
/// each. `has_bucket` says that another setting names a bucket.
pub(super) fn of_extra_config(map: &[(String, Value)], has_bucket: bool) -> Vec<(String, String)> {
    let extras: Vec<&str> =
        settings::all().filter(|key| key.section == Section::Extra).map(|key| key.name).collect();
    let is_bucket_setting = |name: &str| settings::of_bucket_url().any(|key| key.name == name);
    let is_known = |name: &str| {
        extras.contains(&name)
            || is_bucket_setting(name)
            || settings::old_name(name).is_some()
            || name.contains('.')
            || name.starts_with("nixl_")
    };
    let texts = map.iter().filter_map(|(name, _)| {
        let text = match is_known(name) {
            false => format!(
                "no storage setting is called that{}",
                suggest::hint(name, extras.iter().copied())
            ),
            true if has_bucket || extras.contains(&name.as_str()) || !is_bucket_setting(name) => {
                return None;
            }
            true => "no effect: it is a setting of a bucket, and neither remote_url nor a plugin's url is an s3:// URL; a tier under \
                     `tiers` has such settings itself"
                .to_owned(),
        };
        Some((format!("extra_config.{name}"), text))
    });
    texts.collect()
}

/// Why a setting of kvtier's own below `extra_config` is refused, if one is unknown.
pub(super) fn own_refusal(map: &[(String, Value)]) -> Option<String> {
    let known = || settings::of_extra().map(|key| key.name).filter(|name| name.starts_with(OURS));
    let (name, _) = map
        .iter()
        .find(|(name, _)| name.starts_with(OURS) && !known().any(|known| known == name))?;
    let hint = suggest::hint(name, known());
    Some(format!("{name}: kvtier has no such setting{hint}; take it out"))
}

/// Whether a setting of LMCache's names storage: `false`, null and empty values name none.
pub(super) fn is_storage(name: &str, value: &Value) -> bool {
    STORAGE.contains(&name) && value.is_truthy()
}

/// Whether an unknown setting probably names storage: by its name, or because it is a mapping,
/// which no setting of LMCache's is but `extra_config`.
pub(super) fn names_storage(name: &str, value: &Value) -> bool {
    let lower = name.to_lowercase();
    let is_map = |value: &Value| matches!(value, Value::Map(_));
    let is_object = is_map(value) || value.as_list().is_some_and(|list| list.iter().any(is_map));
    is_object
        || WORDS.iter().any(|word| lower.contains(word))
        || suggest::nearest(&lower, STORAGE.into_iter().chain(SIZES)).is_some()
}

/// Why a file whose settings of storage are all unknown is refused.
pub(super) fn refusal(source: &str, names: &[String]) -> String {
    format!(
        "{source}: {}: LMCache has no such settings, and the file names no other storage, so that everything would stay in memory; \
         write local_cpu, local_disk, remote_url or gds_path, or a list under `tiers`; --lenient does as LMCache does",
        names.join("; ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_mappings_distinguish_storage_from_the_rest() {
        let one = Value::Int(1);
        for name in [
            "storage_backend",
            "local_device",
            "s3_num_io_threads",
            "Bucket",
            "remote_ulr",
            "max_local_cpu_siez",
        ] {
            assert!(names_storage(name, &one), "{name}");
        }
        for name in ["chunk_sise", "foo", "enable_blendin", "pd_proxy"] {
            assert!(!names_storage(name, &one), "{name}");
        }
        assert!(names_storage("foo", &Value::Map(Vec::new())));
    }
}
