//! No promise is forgotten: each one written down is in the list that makes the tests.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

#[test]
fn every_promise_is_in_the_suite() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/conformance");
    let list = fs::read_to_string(dir.join("mod.rs")).unwrap();
    let mut promises = 0;
    for entry in fs::read_dir(&dir).unwrap() {
        let path = entry.unwrap().path();
        let module = path.file_stem().unwrap().to_str().unwrap().to_owned();
        for line in fs::read_to_string(&path).unwrap().lines() {
            let Some(rest) = line.strip_prefix("pub fn ") else { continue };
            let Some((name, _)) = rest.split_once("(make: &dyn Fn() -> Fixture)") else { continue };
            assert!(
                list.contains(&format!("{module}::{name},")),
                "{module}::{name} is not in the list"
            );
            promises += 1;
        }
    }
    assert!(promises >= 40, "{promises} promises found");
}
