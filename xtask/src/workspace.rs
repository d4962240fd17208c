//! The members of the workspace, as `cargo metadata` lists them.

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::sh::{self, Cmd};

/// The member that is linted together with each crate that is linted alone. Macros and build scripts
/// then have the features that they have in the whole workspace, and what uses them is not compiled again.
pub const HOST_FEATURES: &str = "kvtier-host-features";

/// One member.
#[derive(Clone, Debug, Default)]
pub struct Package {
    pub name: String,
    /// Its folder, relative to the root of the workspace: `crates/key`.
    pub dir: String,
    pub deps: Vec<Dep>,
    pub targets: Vec<Target>,
    pub features: Vec<String>,
    /// Whether it goes to a registry.
    pub published: bool,
    /// What a registry shows of a crate and its manifest lacks.
    pub missing: Vec<&'static str>,
}

impl Package {
    /// The short noun of a crate: `key` for `kvtier-key`; the facade stays `kvtier`.
    pub fn short_name(&self) -> &str {
        short_name_of(&self.name)
    }

    pub fn targets_of<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Target> {
        self.targets.iter().filter(move |target| target.kinds.iter().any(|own| own == kind))
    }
}

/// The short noun of a package's name.
pub fn short_name_of(name: &str) -> &str {
    name.strip_prefix("kvtier-").unwrap_or(name)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DepKind {
    Normal,
    Build,
    Dev,
}

/// A dependency as the member's manifest declares it.
#[derive(Clone, Debug)]
pub struct Dep {
    pub name: String,
    pub kind: DepKind,
}

/// Something cargo builds out of a member.
#[derive(Clone, Debug)]
pub struct Target {
    pub name: String,
    pub kinds: Vec<String>,
    /// The root file, relative to the root of the workspace.
    pub src: String,
    pub required_features: Vec<String>,
}

/// Where cargo puts what it builds.
pub fn target_dir() -> PathBuf {
    // A relative one counts from the root, where xtask and all that it starts run.
    sh::root().join(
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from),
    )
}

/// Reads the members from the lock file as it stands; a lock file that is out of date is an error.
pub fn read() -> Result<Vec<Package>> {
    let json = Cmd::new("cargo metadata --locked --no-deps --format-version 1").read()?;
    let root = sh::root().to_str().context("the path of the workspace is not UTF-8")?;
    parse(&serde_json::from_str(&json)?, root)
}

/// Reads the members out of `cargo metadata`'s answer.
fn parse(metadata: &Value, root: &str) -> Result<Vec<Package>> {
    let mut packages = list(metadata, "packages")
        .map(|package| parse_package(package, root))
        .collect::<Result<Vec<_>>>()?;
    packages.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(packages)
}

fn parse_package(package: &Value, root: &str) -> Result<Package> {
    let manifest = relative(&text(package, "manifest_path")?, root);
    let features =
        package["features"].as_object().context("a package without a list of features")?;
    Ok(Package {
        name: text(package, "name")?,
        dir: manifest.trim_end_matches("Cargo.toml").trim_end_matches('/').to_owned(),
        deps: list(package, "dependencies").map(parse_dep).collect::<Result<_>>()?,
        targets: list(package, "targets")
            .map(|target| parse_target(target, root))
            .collect::<Result<_>>()?,
        features: features.keys().filter(|name| *name != "default").cloned().collect(),
        published: package["publish"].is_null(),
        missing: missing(package),
    })
}

/// What a registry shows of a crate and this package's manifest lacks.
fn missing(package: &Value) -> Vec<&'static str> {
    let empty = |value: &Value| match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    };
    let mut missing: Vec<&'static str> =
        ["description", "readme", "license", "repository", "keywords", "categories"]
            .into_iter()
            .filter(|name| empty(&package[*name]))
            .collect();
    if empty(&package["metadata"]["docs"]["rs"]) {
        missing.push("package.metadata.docs.rs");
    }
    missing
}

fn parse_dep(dep: &Value) -> Result<Dep> {
    let kind = match dep["kind"].as_str() {
        None => DepKind::Normal,
        Some("build") => DepKind::Build,
        Some(_) => DepKind::Dev,
    };
    Ok(Dep { name: text(dep, "name")?, kind })
}

fn parse_target(target: &Value, root: &str) -> Result<Target> {
    Ok(Target {
        name: text(target, "name")?,
        kinds: strings(target, "kind"),
        src: relative(&text(target, "src_path")?, root),
        required_features: strings(target, "required-features"),
    })
}

fn relative(path: &str, root: &str) -> String {
    path.strip_prefix(root).map_or(path, |rest| rest.trim_start_matches('/')).to_owned()
}

fn text(value: &Value, name: &str) -> Result<String> {
    Ok(value[name].as_str().with_context(|| format!("cargo metadata without '{name}'"))?.to_owned())
}

fn list<'a>(value: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    value[name].as_array().into_iter().flatten()
}

fn strings(value: &Value, name: &str) -> Vec<String> {
    list(value, name).filter_map(Value::as_str).map(String::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_read_into_packages() {
        let json = serde_json::json!({"packages": [{
            "name": "kvtier-file", "manifest_path": "/here/crates/file/Cargo.toml",
            "publish": null, "description": "files", "readme": "README.md", "license": "Apache-2.0",
            "repository": "https://x", "keywords": [], "categories": ["caching"],
            "features": {"default": ["x"], "x": []},
            "dependencies": [
                {"name": "kvtier-core", "kind": null},
                {"name": "proptest", "kind": "dev"},
            ],
            "targets": [{"name": "kvtier_file", "kind": ["lib"], "src_path": "/here/crates/file/src/lib.rs"}],
        }]});
        let packages = parse(&json, "/here").unwrap();
        let file = &packages[0];
        assert_eq!(
            (file.short_name(), file.dir.as_str(), file.features.as_slice()),
            ("file", "crates/file", &["x".into()][..])
        );
        assert!(file.published);
        assert_eq!(file.missing, ["keywords", "package.metadata.docs.rs"]);
        assert_eq!((file.deps[0].kind, file.deps[1].kind), (DepKind::Normal, DepKind::Dev));
        assert_eq!(file.targets_of("lib").next().unwrap().src, "crates/file/src/lib.rs");
    }
}
