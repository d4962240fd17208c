//! Every crate has a line in the documents that list the crates.

use super::Problem;
use crate::tree::Tree;
use crate::workspace::Package;

const DOCUMENTS: &[&str] = &["README.md", "docs/ARCHITECTURE.md"];

/// Crates that one of these documents does not mention.
pub fn check(packages: &[Package], tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for document in DOCUMENTS {
        let Some(text) = tree.text(document) else { continue };
        for package in packages.iter().filter(|package| package.dir.starts_with("crates/")) {
            let names = [
                format!("`{}`", package.name),
                package.dir.clone(),
                format!("`{}`", package.short_name()),
            ];
            if !names.iter().any(|name| text.contains(name.as_str())) {
                let what = format!("{} is not mentioned", package.name);
                let fix = format!("add a line that says what `{}` is for", package.name);
                problems.push(Problem::new(document, 1, what, fix));
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_without_a_line_is_found() {
        let package = |member: &str| Package {
            name: format!("kvtier-{member}"),
            dir: format!("crates/{member}"),
            ..Package::default()
        };
        let packages = [package("key"), package("mem")];
        let tree = Tree::of(&[("README.md", "| `kvtier-key` | keys |\n| `kvtier-mem` | memory |")]);
        assert!(check(&packages, &tree).is_empty());
        let tree = Tree::of(&[
            ("README.md", "| `kvtier-key` | keys |"),
            ("docs/ARCHITECTURE.md", "`key`, then `mem`"),
        ]);
        assert_eq!(
            check(&packages, &tree)[0].to_string().split(';').next(),
            Some("README.md:1: kvtier-mem is not mentioned")
        );
    }
}
