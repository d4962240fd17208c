//! The files of the repository: what git tracks or would track.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use crate::sh::Cmd;

/// Path relative to the root → text. Files that are not UTF-8 have no text.
#[derive(Clone, Debug, Default)]
pub struct Tree(BTreeMap<String, Option<String>>);

impl Tree {
    /// Reads the working tree.
    pub fn read() -> Result<Tree> {
        let list = Cmd::new("git ls-files -z --cached --others --exclude-standard").read();
        let list =
            list.context("the list of files comes from git: run this inside a git checkout")?;
        let mut files = BTreeMap::new();
        for path in list.split('\0').filter(|path| !path.is_empty()) {
            // A file that is deleted but not yet committed is still in git's list.
            if let Ok(bytes) = std::fs::read(path) {
                files.insert(path.to_owned(), String::from_utf8(bytes).ok());
            }
        }
        Ok(Tree(files))
    }

    /// A tree for tests.
    #[cfg(test)]
    pub fn of(files: &[(&str, &str)]) -> Tree {
        Tree(files.iter().map(|(path, text)| (path.to_string(), Some(text.to_string()))).collect())
    }

    /// All files that are text and whose name ends in one of `endings`.
    pub fn texts<'a>(&'a self, endings: &'a [&str]) -> impl Iterator<Item = (&'a str, &'a str)> {
        let texts =
            self.0.iter().filter_map(|(path, text)| Some((path.as_str(), text.as_deref()?)));
        texts.filter(|(path, _)| endings.iter().any(|ending| path.ends_with(ending)))
    }

    pub fn text(&self, path: &str) -> Option<&str> {
        self.0.get(path)?.as_deref()
    }

    /// Whether `path` is a file or a folder of the tree.
    pub fn has(&self, path: &str) -> bool {
        let folder = format!("{path}/");
        path.is_empty()
            || self.0.contains_key(path)
            || self.0.keys().any(|file| file.starts_with(&folder))
    }
}
