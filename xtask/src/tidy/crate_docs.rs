//! Every crate has a line in the documents that list the crates, and every published one has what a
//! registry shows.

use super::Problem;
use crate::tree::Tree;
use crate::workspace::Package;

const DOCUMENTS: &[&str] = &["docs/EMBEDDING.md", "docs/ARCHITECTURE.md"];

/// Crates that one of these documents does not mention, and incomplete manifests.
pub fn check(packages: &[Package], tree: &Tree) -> Vec<Problem> {
    let mut problems: Vec<Problem> = packages.iter().filter_map(incomplete).collect();
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

/// What the manifest of a published crate lacks.
fn incomplete(package: &Package) -> Option<Problem> {
    let lacks = package.published && !package.missing.is_empty();
    let what = format!("a published crate without {}", package.missing.join(", "));
    let fix = "add them, or `publish = false`";
    lacks.then(|| Problem::new(&format!("{}/Cargo.toml", package.dir), 1, what, fix))
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
        let tree = Tree::of(&[(
            "docs/EMBEDDING.md",
            "| `kvtier-key` | keys |\n| `kvtier-mem` | memory |",
        )]);
        assert!(check(&packages, &tree).is_empty());
        let tree = Tree::of(&[
            ("docs/EMBEDDING.md", "| `kvtier-key` | keys |"),
            ("docs/ARCHITECTURE.md", "`key`, then `mem`"),
        ]);
        assert_eq!(
            check(&packages, &tree)[0].to_string().split(';').next(),
            Some("docs/EMBEDDING.md:1: kvtier-mem is not mentioned")
        );
    }
    #[test]
    fn a_published_crate_has_what_a_registry_shows() {
        let mut package = Package { published: true, ..Package::default() };
        assert!(check(std::slice::from_ref(&package), &Tree::default()).is_empty());
        package.missing = vec!["keywords", "readme"];
        let found = check(std::slice::from_ref(&package), &Tree::default());
        assert!(found[0].to_string().contains("without keywords, readme"), "{}", found[0]);
        package.published = false;
        assert!(check(&[package], &Tree::default()).is_empty());
    }
}
