//! Imports between the files of one crate: no cycles, and floors that only use what is below them.
//!
//! A file that imports another one cannot be understood without it. In a cycle no file can be
//! understood alone, and none can be moved. The check reads `use` declarations and paths outside
//! of tests. It follows re-exports (`pub use`) to the file that defines the name, and does not
//! count a re-export itself. A submodule is a part of its parent: what it imports from its parents
//! is in no cycle. Paths inside macros are not read.

mod graph;
mod paths;

use std::collections::{BTreeMap, BTreeSet};

use super::plan::{CYCLES, Cycle, FLOORS};
use crate::tidy::Problem;
use crate::tidy::source::{Role, Source};
use graph::cycles;
use paths::CrateFiles;

/// The files that each file imports, by path.
pub type Imports = BTreeMap<String, BTreeSet<String>>;

/// Checks all crates.
pub fn check(sources: &[Source]) -> Vec<Problem> {
    let mut by_crate: BTreeMap<&str, Vec<&Source>> = BTreeMap::new();
    for source in sources.iter().filter(|source| source.role == Role::Production) {
        if let Some((dir, _)) = source.path.split_once("/src/") {
            by_crate.entry(dir).or_default().push(source);
        }
    }
    let mut problems = Vec::new();
    for (dir, files) in by_crate {
        let imports = CrateFiles::new(dir, &files).imports();
        problems.extend(check_cycles(dir, &imports, CYCLES));
        problems.extend(check_floors(dir, &imports));
    }
    problems
}

/// Cycles that the table does not have, and rows of the table that are larger than their cycle.
fn check_cycles(dir: &str, imports: &Imports, allowed: &[Cycle]) -> Vec<Problem> {
    let member = dir.rsplit('/').next().unwrap_or(dir);
    let found = cycles(&without_parents(imports));
    let files: BTreeSet<&str> = found.iter().flatten().map(String::as_str).collect();
    let row = allowed.iter().find(|cycle| cycle.member == member);
    let files_max = row.map_or(0, |row| row.files);
    let reason = row.map_or(String::new(), |row| format!(" ({})", row.reason));
    if files.len() < files_max {
        let what = format!("{} files of {member} are in cycles of imports", files.len());
        let fix = format!("lower its row from {files_max} in xtask/src/arch/plan.rs");
        return vec![Problem::new("xtask/src/arch/plan.rs", 1, what, fix)];
    }
    if files.len() == files_max {
        return Vec::new();
    }
    let problem = |cycle: BTreeSet<String>| {
        let first = cycle.first().cloned().unwrap_or_default();
        let names: Vec<String> = cycle.into_iter().collect();
        let what = format!("these files import each other in a cycle: {}", names.join(", "));
        let fix = format!(
            "move what they share into a file below them; {member} may have {files_max} files in cycles{reason}"
        );
        Problem::new(&first, 1, what, fix)
    };
    found.into_iter().map(problem).collect()
}

/// The imports but those of a file from the modules that it is a part of.
fn without_parents(imports: &Imports) -> Imports {
    let folder = |file: &str| {
        let stem = file.trim_end_matches(".rs");
        let is_folder = ["/mod", "/lib", "/main"].iter().find_map(|end| stem.strip_suffix(end));
        format!("{}/", is_folder.unwrap_or(stem))
    };
    let others = |(file, targets): (&String, &BTreeSet<String>)| {
        let is_other = |target: &&String| !file.starts_with(&folder(target));
        (file.clone(), targets.iter().filter(is_other).cloned().collect())
    };
    imports.iter().map(others).collect()
}

/// Imports of a floor from one that is above it.
fn check_floors(dir: &str, imports: &Imports) -> Vec<Problem> {
    let Some((_, floors)) = FLOORS.iter().find(|(member, _)| *member == dir) else {
        return Vec::new();
    };
    let floor = |file: &str| {
        let rest = file.strip_prefix(dir)?.strip_prefix("/src/")?;
        let top = rest.split(['/', '.']).next()?;
        floors.iter().position(|name| *name == top)
    };
    let mut problems = Vec::new();
    for (file, targets) in imports {
        let Some(own) = floor(file) else { continue };
        for target in targets.iter().filter(|target| floor(target).is_some_and(|at| at > own)) {
            let what = format!("imports {target}, which is above the floor {}", floors[own]);
            problems.push(Problem::new(file, 1, what, "move what it needs down"));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn imports(files: &[(&str, &str)]) -> Imports {
        let parse = |(name, text): &(&str, &str)| {
            Source::parse(&format!("crates/s3-tier/src/{name}"), text).unwrap()
        };
        let sources: Vec<Source> = files.iter().map(parse).collect();
        CrateFiles::new("crates/s3-tier", &sources.iter().collect::<Vec<_>>()).imports()
    }

    #[test]
    fn a_cycle_is_found_and_one_in_tests_is_none() {
        let cycle = [
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "use crate::b::B;"),
            ("b.rs", "fn f(_: crate::a::A) {}"),
        ];
        let problems = check_cycles("crates/s3-tier", &imports(&cycle), &[]);
        assert_eq!(problems.len(), 1);
        assert!(problems[0].to_string().contains("a.rs, crates/s3-tier/src/b.rs"), "{problems:?}");
        let tests = [cycle[0], cycle[1], ("b.rs", "#[cfg(test)] mod tests { use crate::a::A; }")];
        assert!(check_cycles("crates/s3-tier", &imports(&tests), &[]).is_empty());
    }

    #[test]
    fn a_row_of_the_table_allows_as_many_files_as_are_in_cycles_and_no_more() {
        let cycle = imports(&[("a.rs", "use crate::b::B;"), ("b.rs", "use super::a::A;")]);
        let row = |files| [Cycle { member: "s3-tier", files, reason: "" }];
        assert!(check_cycles("crates/s3-tier", &cycle, &row(2)).is_empty());
        assert!(check_cycles("crates/s3-tier", &cycle, &row(3))[0].to_string().contains("lower"));
    }

    #[test]
    fn re_exports_lead_to_the_file_that_defines_the_name() {
        let files = [
            ("lib.rs", "mod a; mod b; pub use b::B;"),
            ("a.rs", "use crate::B;"),
            ("b.rs", "pub struct B;"),
        ];
        let expected =
            [("crates/s3-tier/src/a.rs".to_owned(), ["crates/s3-tier/src/b.rs".to_owned()].into())];
        assert_eq!(imports(&files), expected.into());
    }

    #[test]
    fn floors_use_only_what_is_below_them() {
        let files = [
            ("state/mod.rs", "pub mod x;"),
            ("state/x.rs", "use crate::ops::save::S;"),
            ("ops/save.rs", "use crate::state::x; fn f() { crate::background::run() }"),
            ("background/mod.rs", "use crate::ops::save; use crate::state::x::X;"),
        ];
        let problems = check_floors("crates/s3-tier", &imports(&files));
        assert_eq!(problems.len(), 2, "{problems:?}");
    }
}
