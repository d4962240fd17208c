//! Tests under shuttle, which explores the interleavings of threads.
//!
//! Such tests exist only under `--cfg shuttle`: unit tests with `shuttle` in their path, and
//! `tests/shuttle*.rs`. Only the workspace's crates get the flag: what they build on is the same with
//! and without it, and is not built twice.

use anyhow::Result;

use crate::sh::{self, Cmd};
use crate::testing::{self, Count};
use crate::tree::Tree;
use crate::workspace::Package;

/// Runs all tests under shuttle of all crates that have any. A night's run has a limit of its own,
/// in seconds, and makes the tests explore more.
pub fn run(packages: &[Package], night_limit_s: Option<u64>) -> Result<Count> {
    let tree = Tree::read()?;
    let mut count = Count::default();
    // The whole workspace is named, so that libraries have the features that they have in a plain
    // `cargo test`.
    if packages.iter().any(|package| package.name != "xtask" && has_unit_tests(package, &tree)) {
        let without = packages.iter().filter(|package| is_left_out(package, &tree));
        let without = without.flat_map(|package| ["--exclude", &package.name]);
        count += testing::run(&cmd(night_limit_s).args(without).args(["--lib", "shuttle"]))?;
    }
    if packages
        .iter()
        .any(|package| package.targets_of("test").any(|target| target.name.starts_with("shuttle")))
    {
        count += testing::run(&cmd(night_limit_s).args(["--test", "shuttle*"]))?;
    }
    Ok(count)
}

fn cmd(night_limit_s: Option<u64>) -> Cmd {
    let wrapper = sh::root().join("xtask/shuttle-rustc").display().to_string();
    let cmd = testing::workspace().env("RUSTC_WORKSPACE_WRAPPER", wrapper);
    match night_limit_s {
        Some(limit_s) => cmd.env("KVTIER_NIGHTLY", "1").limit_s(limit_s),
        None => cmd,
    }
}

/// Crates whose dependencies would have fewer features without them.
const GIVE_FEATURES: [&str; 5] =
    ["kvtier-cli", "kvtier-faultsim", "kvtier-key", "kvtier-py", "xtask"];

/// Whether the unit tests of a crate are not built under shuttle, because none of its sources mentions
/// it. Its library is built where others use it.
fn is_left_out(package: &Package, tree: &Tree) -> bool {
    let src = format!("{}/src/", package.dir);
    let mut texts = tree.texts(&[".rs"]).filter(|(path, _)| path.starts_with(&src));
    !GIVE_FEATURES.contains(&package.name.as_str())
        && !texts.any(|(_, text)| text.contains("shuttle"))
}

fn has_unit_tests(package: &Package, tree: &Tree) -> bool {
    let src = format!("{}/src/", package.dir);
    let conditions =
        ["#[cfg(all(test, shuttle))]", "#[cfg(all(shuttle, test))]", "#![cfg(all(test, shuttle))]"];
    let mut texts = tree.texts(&[".rs"]).filter(|(path, _)| path.starts_with(&src));
    texts.any(|(_, text)| conditions.iter().any(|condition| text.contains(condition)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_with_unit_tests_under_shuttle_are_found() {
        let package = Package { dir: "crates/core".into(), ..Package::default() };
        let has = |path, text| has_unit_tests(&package, &Tree::of(&[(path, text)]));
        assert!(has(
            "crates/core/src/queue.rs",
            "#[cfg(all(test, shuttle))]\nmod shuttle_tests {}"
        ));
        assert!(!has("crates/core/src/sync.rs", "#[cfg(shuttle)]\nuse shuttle::sync;"));
        assert!(!has(
            "crates/core2/src/queue.rs",
            "#[cfg(all(test, shuttle))]\nmod shuttle_tests {}"
        ));
    }

    #[test]
    fn a_crate_is_left_out_only_where_its_sources_do_not_mention_shuttle() {
        let left_out = |name: &str, dir: &str| {
            let package = Package { name: name.into(), dir: dir.into(), ..Package::default() };
            let tree = Tree::of(&[
                ("crates/core/src/sync.rs", "#[cfg(shuttle)]\nuse shuttle::sync;"),
                ("crates/codec/src/lib.rs", "mod aes;"),
                ("crates/codec/tests/shuttle.rs", "#![cfg(shuttle)]"),
                ("crates/py/src/lib.rs", "mod batch;"),
            ]);
            is_left_out(&package, &tree)
        };
        assert!(left_out("kvtier-codec", "crates/codec"));
        assert!(!left_out("kvtier-core", "crates/core"));
        assert!(!left_out("kvtier-py", "crates/py"));
    }
}
