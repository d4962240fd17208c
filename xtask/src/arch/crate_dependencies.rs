//! Dependencies between our own crates, and on outside libraries, as the manifests declare them.

use std::collections::BTreeSet;

use super::plan::{CRATE_DEPENDENCIES, LIBRARIES, TESTED_WITHOUT_TESTKIT};
use crate::tidy::Problem;
use crate::workspace::{Dep, DepKind, Package, short_name_of};

/// Every dependency of every member against the table.
pub fn check(packages: &[Package]) -> Vec<Problem> {
    let members: BTreeSet<&str> = packages.iter().map(|package| package.name.as_str()).collect();
    let mut problems = Vec::new();
    for package in packages {
        let Some((_, allowed)) =
            CRATE_DEPENDENCIES.iter().find(|(member, _)| *member == package.short_name())
        else {
            let fix = "add its row to xtask/src/arch/plan.rs and its line to docs/ARCHITECTURE.md";
            problems.push(problem(
                package,
                format!("{} has no row in the table of dependencies", package.name),
                fix,
            ));
            continue;
        };
        for dep in &package.deps {
            let found = if members.contains(dep.name.as_str()) {
                member(package, dep, allowed)
            } else {
                library(package, dep)
            };
            problems.extend(found);
        }
    }
    problems
}

/// A dependency on another member.
fn member(package: &Package, dep: &Dep, allowed: &[&str]) -> Option<Problem> {
    let from = package.short_name();
    let to = short_name_of(&dep.name);
    let in_tests = dep.kind == DepKind::Dev;
    if in_tests && to == "testkit" {
        let below = TESTED_WITHOUT_TESTKIT.contains(&from);
        return below.then(|| {
            problem(
                package,
                "its tests use kvtier-testkit",
                "use proptest alone: it is below testkit",
            )
        });
    }
    let fine = in_tests && (from == to || to == "fakegpu");
    if !fine && !allowed.contains(&to) {
        let list = if allowed.is_empty() {
            "no other crate of ours".to_owned()
        } else {
            allowed.join(", ")
        };
        return Some(problem(
            package,
            format!("depends on {}", dep.name),
            format!("it may use {list}"),
        ));
    }
    None
}

/// A dependency on an outside library. Tests may use any.
fn library(package: &Package, dep: &Dep) -> Option<Problem> {
    let (_, crates) = LIBRARIES.iter().find(|(names, _)| names.contains(&dep.name.as_str()))?;
    let forbidden = dep.kind != DepKind::Dev && !crates.contains(&package.short_name());
    let fix = format!("only these may use it outside tests: {}", crates.join(", "));
    forbidden.then(|| problem(package, format!("depends on {}", dep.name), fix))
}

fn problem(package: &Package, what: impl Into<String>, fix: impl Into<String>) -> Problem {
    Problem::new(&format!("{}/Cargo.toml", package.dir), 1, what, fix)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dep(name: &str, kind: DepKind) -> Dep {
        Dep { name: name.into(), kind }
    }

    fn package(member: &str, deps: Vec<Dep>) -> Package {
        Package {
            name: format!("kvtier-{member}"),
            dir: format!("crates/{member}"),
            deps,
            ..Package::default()
        }
    }

    /// Checks a workspace of all crates in which `member` has one dependency.
    fn problems(member: &str, dependency: Dep) -> Vec<String> {
        let mut workspace: Vec<Package> = ["key", "mem", "core", "file", "uring", "testkit"]
            .iter()
            .map(|member| package(member, Vec::new()))
            .collect();
        workspace.push(Package {
            name: "kvtier".into(),
            dir: "crates/kvtier".into(),
            ..Package::default()
        });
        workspace.retain(|other| other.short_name() != member);
        workspace.push(package(member, vec![dependency]));
        check(&workspace).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn dependencies_of_the_plan_pass() {
        assert!(problems("core", dep("kvtier-mem", DepKind::Normal)).is_empty());
        assert!(problems("core", dep("kvtier-testkit", DepKind::Dev)).is_empty());
        assert!(problems("cli", dep("kvtier", DepKind::Normal)).is_empty());
        assert!(problems("s3-tier", dep("kvtier-core", DepKind::Normal)).is_empty());
    }

    #[test]
    fn dependencies_against_the_plan_are_found() {
        assert_eq!(
            problems("key", dep("kvtier-mem", DepKind::Normal)),
            ["crates/key/Cargo.toml:1: depends on kvtier-mem; it may use no other crate of ours"]
        );
        for (member, name) in [
            ("s3", "kvtier-file"),
            ("file", "kvtier"),
            ("cli", "kvtier-mem"),
            ("core", "kvtier-testkit"),
        ] {
            assert_eq!(problems(member, dep(name, DepKind::Normal)).len(), 1, "{member} → {name}");
        }
        assert_eq!(problems("mem", dep("kvtier-core", DepKind::Build)).len(), 1);
        assert_eq!(problems("key", dep("kvtier-core", DepKind::Dev)).len(), 1);
        assert_eq!(problems("evict", dep("kvtier-testkit", DepKind::Dev)).len(), 1);
    }

    #[test]
    fn a_crate_outside_the_plan_is_found() {
        assert!(problems("attic", dep("kvtier-mem", DepKind::Normal))[0].contains("no row"));
    }

    #[test]
    fn libraries_stay_in_their_crates() {
        assert!(problems("uring", dep("io-uring", DepKind::Normal)).is_empty());
        assert!(problems("file", dep("tokio", DepKind::Dev)).is_empty());
        for (member, name) in [
            ("file", "io-uring"),
            ("core", "tokio"),
            ("file", "cudarc"),
            ("key", "clap"),
            ("mem", "serde_yaml"),
        ] {
            assert_eq!(problems(member, dep(name, DepKind::Normal)).len(), 1, "{member} → {name}");
        }
    }
}
