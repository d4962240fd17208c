//! Files of code that a document names in backticks exist, and so do the names in them that it
//! mentions: `file.rs`, `file.rs::name`, `file.rs` (`NAME`, `OTHER`), `a_long_name` in `file.rs`.
//!
//! A path may leave out its beginning. In a README it then means a file below the README's folder,
//! and in the row of a table that begins with a folder a file below that one.

use super::Problem;
use super::links::outside_fences;
use crate::tree::Tree;

const ENDINGS: &[&str] = &[".rs", ".py"];

/// Files of other projects, and why a document names them.
const FOREIGN: &[(&str, &str)] =
    &[("file_mapper.py", "vLLM's, which defines the names of its files")];

/// Files and names in documents that do not exist.
pub fn check(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (document, text) in tree.texts(&[".md"]) {
        for (line, text) in outside_fences(text) {
            for what in missing(tree, document, text) {
                let fix = "write the name that it has now, or list it in FOREIGN of names_in_documents.rs";
                problems.push(Problem::new(document, line, what, fix));
            }
        }
    }
    problems
}

/// What one line of a document names and the repository does not have.
fn missing(tree: &Tree, document: &str, line: &str) -> Vec<String> {
    let folder = folder_of_row(tree, line)
        .unwrap_or_else(|| document.strip_suffix("README.md").unwrap_or_default());
    let mut missing = Vec::new();
    // The texts of the files that the last path may mean, and whether it has a parenthesis.
    let (mut files, mut is_open) = (Vec::<&str>::new(), false);
    // The long names before a path, as tests have them.
    let mut names = Vec::new();
    let mut between = "";
    for (at, part) in line.split('`').enumerate() {
        // Every second part is between two backticks.
        if at % 2 == 0 {
            between = part;
            is_open = part == " (" || (is_open && part == ", ");
            if !matches!(part, ", " | " and ") && !part.ends_with(" in ") {
                names.clear();
            }
            continue;
        }
        if is_open && is_name(part) && !files.is_empty() {
            if !has(&files, part) {
                missing.push(format!("the file before `{part}` does not have it"));
            }
            continue;
        }
        files.clear();
        if is_name(part) && part.matches('_').count() >= 2 {
            names.push(part);
        }
        for word in part.split_whitespace() {
            let (path, name) = word.split_once("::").unwrap_or((word, ""));
            if !ENDINGS.iter().any(|ending| path.len() > ending.len() && path.ends_with(ending)) {
                continue;
            }
            files = found(tree, folder, path);
            let is_foreign = FOREIGN.iter().any(|(foreign, _)| *foreign == path);
            if files.is_empty() && !is_foreign {
                missing.push(format!("no file `{path}`"));
                continue;
            }
            let before = names.drain(..).filter(|_| between.ends_with(" in "));
            for name in before.chain([name]).filter(|name| !name.is_empty() && !has(&files, name)) {
                missing.push(format!("`{path}` has no `{name}`"));
            }
        }
    }
    missing
}

/// The folder that the row of a table is about.
fn folder_of_row<'a>(tree: &Tree, line: &'a str) -> Option<&'a str> {
    let (first, _) = line.strip_prefix("| `")?.split_once("` |")?;
    let is_folder = first.contains('/') && tree.text(first).is_none() && tree.has(first);
    is_folder.then_some(first)
}

/// The texts of the files that `path` may stand for: below `folder`, or written as a whole.
fn found<'a>(tree: &'a Tree, folder: &str, path: &str) -> Vec<&'a str> {
    let (start, end) = path.split_once('*').unwrap_or((path, ""));
    let is_meant = |file: &str| {
        let Some(file) = file.strip_suffix(end) else { return false };
        match path.contains('*') {
            true => file.contains(start),
            false => file == path || file.ends_with(&format!("/{path}")),
        }
    };
    let folder = folder.trim_end_matches('/');
    let is_below = |rest: &str| folder.is_empty() || rest.starts_with('/');
    let below =
        |file: &str| file.strip_prefix(folder).is_some_and(is_below) || file.starts_with(start);
    let files = tree.texts(ENDINGS).filter(|(file, _)| below(file) && is_meant(file));
    files.map(|(_, text)| text).collect()
}

fn is_name(text: &str) -> bool {
    let is_part = |char: char| char.is_ascii_alphanumeric() || char == '_';
    text.starts_with(|char: char| char.is_ascii_alphabetic() || char == '_')
        && text.chars().all(is_part)
}

/// Whether one of the texts contains the name as a whole word. Of a path, its last part.
fn has(texts: &[&str], name: &str) -> bool {
    let name = name.rsplit([':', '.']).next().unwrap_or(name);
    let is_other = |char: char| !char.is_ascii_alphanumeric() && char != '_';
    texts.iter().any(|text| text.split(is_other).any(|word| word == name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(document: &str, text: &str) -> Vec<String> {
        let tree = Tree::of(&[
            (document, text),
            ("crates/key/src/key.rs", "pub const KEY_MAX: usize = 1; fn digest() {}"),
            ("crates/key/tests/long_names.rs", ""),
            ("crates/mem/src/arena.rs", "struct Arena;"),
            ("crates/mem-more/tail.rs", ""),
            ("crates/py/store.py", "class Store"),
        ]);
        check(&tree).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_exists_passes() {
        let text = "`key.rs` (`KEY_MAX`, `digest`), `src/arena.rs`, `crates/py/store.py`, `python3 crates/py/store.py 4`\n\
                    `key.rs::digest`, `tests/long*.rs`, `vllm/file_mapper.py`-less `file_mapper.py`, `.rs`, `KEY_MAXIMUM`\n\
                    ```\ngone.rs\n```\n";
        let found = problems("docs/A.md", text);
        assert_eq!(
            found.len(),
            1,
            "a path of another project is listed as it is written: {found:?}"
        );
        assert!(found[0].contains("no file `vllm/file_mapper.py`"));
    }

    #[test]
    fn a_file_that_is_gone_is_found() {
        let found = problems(
            "docs/A.md",
            "text\n`gone.rs`, `ey.rs`, `tests/short*.rs` and `python3 gone.py`",
        );
        assert_eq!(found.len(), 4, "{found:?}");
        assert!(found[0].starts_with("docs/A.md:2: no file `gone.rs`"), "{}", found[0]);
    }

    #[test]
    fn a_name_that_is_gone_from_its_file_is_found() {
        let found = problems("docs/A.md", "`key.rs` (`KEY`, `digest`), `key.rs::digests`");
        assert_eq!(found.len(), 2, "{found:?}");
        let before = problems("docs/A.md", "`a_test_that_moved` and `long` in `key.rs`");
        assert_eq!(before.len(), 1, "{before:?}");
        assert!(before[0].contains("`key.rs` has no `a_test_that_moved`"));
        assert!(found[0].contains("the file before `KEY` does not have it"));
        assert!(found[1].contains("`key.rs` has no `digests`"));
    }

    #[test]
    fn a_readme_means_the_files_of_its_folder() {
        let readme = "crates/mem/README.md";
        assert_eq!(problems(readme, "`arena.rs`, `crates/key/src/key.rs`"), Vec::<String>::new());
        assert_eq!(problems(readme, "`key.rs`").len(), 1);
        assert_eq!(problems("README.md", "`key.rs`"), Vec::<String>::new());
        let row = "| `crates/mem` | `arena.rs`, `key.rs`, `tail.rs` |";
        assert_eq!(problems("docs/A.md", row).len(), 2, "the row is about another folder");
    }
}
