//! Cycles in a graph of files.

use std::collections::{BTreeMap, BTreeSet};

use super::Imports;

/// All cycles: sets of files each of which reaches all others.
pub fn cycles(imports: &Imports) -> Vec<BTreeSet<String>> {
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        imports.keys().map(|file| (file.as_str(), reachable(imports, file))).collect();
    let mut found: BTreeSet<BTreeSet<String>> = BTreeSet::new();
    for (file, targets) in &reached {
        let back = |target: &&&str| reached.get(*target).is_some_and(|back| back.contains(file));
        let cycle: BTreeSet<String> =
            targets.iter().filter(back).map(|target| (*target).to_owned()).collect();
        if cycle.len() > 1 {
            found.insert(cycle);
        }
    }
    found.into_iter().collect()
}

/// The files that `from` imports, directly or through others.
fn reachable<'a>(imports: &'a Imports, from: &str) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut next: Vec<&str> = imports[from].iter().map(String::as_str).collect();
    while let Some(file) = next.pop() {
        if found.insert(file) {
            next.extend(imports.get(file).into_iter().flatten().map(String::as_str));
        }
    }
    found
}
