//! Documents that tests write.

use std::path::Path;

/// Replaces a document at once: a test that reads it at the same time gets the old or the new one,
/// never a part.
pub fn write(path: &str, text: &str) {
    let new = format!("{path}.{}.new", std::process::id());
    std::fs::write(&new, text).unwrap();
    std::fs::rename(&new, Path::new(path)).unwrap();
}
