//! Settings that LMCache does not have, and whether a file that has only such ones meant to name
//! storage.

use crate::config::suggest;
use crate::config::value::Value;

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
    fn names_and_mappings_tell_storage_from_the_rest() {
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
