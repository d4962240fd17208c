//! Reads golden vectors for the tests of several crates, which include this file by its path:
//! `testkit` itself cannot be used by the crates below it. The folder is `KVTIER_VECTORS`, or else
//! the committed copy.
//!
//! Any folder of the same kind will do: files may be missing, have no cases, or have other cases in
//! another order. At least one file of the folder has cases, and of the committed copy every file
//! that a test asks for.

use std::path::{Path, PathBuf};

use serde_json::Value;

fn committed() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../testkit/vectors"))
}

fn folder() -> PathBuf {
    std::env::var_os("KVTIER_VECTORS").map_or_else(|| committed().into(), PathBuf::from)
}

/// Whether the committed copy is read: only there do tests know how many cases there are, and what
/// they cover.
#[allow(dead_code)]
pub fn is_committed() -> bool {
    folder().canonicalize().unwrap() == committed().canonicalize().unwrap()
}

/// The cases of one file, such as `enums.json`; none where the folder lacks the file or the file
/// has no cases.
#[allow(clippy::print_stderr)]
pub fn cases(file: &str) -> Vec<Value> {
    let folder = folder();
    let cases = cases_in(&folder.join(file));
    if cases.is_empty() {
        assert!(!is_committed(), "{file} of the committed copy has no cases");
        assert!(any_cases(&folder), "no file of {} has cases", folder.display());
        eprintln!("{} has no cases of {file}: nothing to check there", folder.display());
    }
    cases
}

fn cases_in(path: &Path) -> Vec<Value> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Vec::new(),
        Err(e) => panic!("cannot read {}: {e}", path.display()),
    };
    let whole: Value = serde_json::from_str(&text)
        .unwrap_or_else(|e| panic!("{} is no JSON: {e}", path.display()));
    match &whole["cases"] {
        Value::Null => Vec::new(),
        Value::Array(cases) => cases.clone(),
        other => panic!("the cases of {} are no list: {other}", path.display()),
    }
}

fn any_cases(folder: &Path) -> bool {
    let entries =
        std::fs::read_dir(folder).unwrap_or_else(|e| panic!("no folder {}: {e}", folder.display()));
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .filter(|path| path.extension().is_some_and(|ext| ext == "json"))
        .any(|path| !cases_in(&path).is_empty())
}
