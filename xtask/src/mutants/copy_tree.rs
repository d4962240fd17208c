//! A copy of the working tree, in which files keep their time of change as long as their bytes stay
//! the same: so what was built from the copy stays valid.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::sh::{Cmd, root};

/// The copy, what is built from it, and what the runs print.
pub fn base() -> PathBuf {
    root().join("target/mutants")
}

/// The copy.
pub fn tree() -> PathBuf {
    base().join("tree")
}

/// Makes the copy equal to the working tree.
pub fn update() -> Result<()> {
    update_at(&tree())
}

/// Makes a copy at `tree` equal to the working tree.
pub fn update_at(tree: &Path) -> Result<()> {
    let list = Cmd::new("git ls-files -z --cached --others --exclude-standard").read()?;
    let files: HashSet<&str> = list.split('\0').filter(|file| !file.is_empty()).collect();
    fs::create_dir_all(tree)?;
    remove_others(tree, Path::new(""), &files)?;
    // A file that is deleted but not yet committed is still in git's list.
    for file in files.iter().filter(|file| root().join(file).is_file()) {
        copy_changed(&root().join(file), &tree.join(file)).with_context(|| file.to_string())?;
    }
    Ok(())
}

/// Copies a file unless its copy has the same bytes.
fn copy_changed(from: &Path, to: &Path) -> Result<()> {
    let bytes = fs::read(from)?;
    if fs::read(to).is_ok_and(|copy| copy == bytes) {
        return Ok(());
    }
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent)?;
    }
    // `fs::copy` takes the permissions too.
    fs::copy(from, to)?;
    Ok(())
}

/// Removes files of the copy that the working tree does not have.
fn remove_others(tree: &Path, under: &Path, files: &HashSet<&str>) -> Result<()> {
    for entry in fs::read_dir(tree.join(under))? {
        let entry = entry?;
        let path = under.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            remove_others(tree, &path, files)?;
        } else if !path
            .to_str()
            .is_some_and(|path| files.contains(path) && root().join(path).exists())
        {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unchanged_file_keeps_its_time() {
        let dir = std::env::temp_dir().join(format!("kvtier-xtask-copy-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let (from, to) = (dir.join("from"), dir.join("deeper/to"));
        fs::write(&from, "a").unwrap();
        copy_changed(&from, &to).unwrap();
        let time = fs::metadata(&to).unwrap().modified().unwrap();
        fs::write(&from, "a").unwrap();
        copy_changed(&from, &to).unwrap();
        assert_eq!(fs::metadata(&to).unwrap().modified().unwrap(), time);
        fs::write(&from, "b").unwrap();
        copy_changed(&from, &to).unwrap();
        assert_eq!(fs::read(&to).unwrap(), b"b");
        fs::remove_dir_all(&dir).unwrap();
    }
}
