//! Distinguishes a bucket, `s3://bucket/prefix`, from a directory.

use std::path::Path;

/// Whether the path names a bucket. One that is not UTF-8 is no URL, and so a directory.
pub fn is_bucket(path: &Path) -> bool {
    path.to_str().and_then(bucket_and_prefix).is_some()
}

/// The bucket that `path` names, and what is behind its first slash; `None` for a directory.
pub fn bucket_and_prefix(path: &str) -> Option<(&str, &str)> {
    let rest = path.strip_prefix("s3://")?;
    Some(rest.split_once('/').unwrap_or((rest, "")))
}
