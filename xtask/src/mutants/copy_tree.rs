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
    update_at(&tree(), &HashSet::new())
}

/// Makes a copy at `tree` equal to the working tree, but for the files in `except` that it has.
pub fn update_at(tree: &Path, except: &HashSet<&str>) -> Result<()> {
    let list =
        Cmd::new("git ls-files -z --cached --others --exclude-standard").dir(root()).read()?;
    let files: HashSet<&str> = list.split('\0').filter(|file| !file.is_empty()).collect();
    fs::create_dir_all(tree)?;
    remove_others(tree, Path::new(""), &|file| {
        except.contains(file) || files.contains(file) && root().join(file).exists()
    })?;
    // A file that is deleted but not yet committed is still in git's list.
    for file in files.iter().filter(|file| root().join(file).is_file()) {
        if except.contains(file) && tree.join(file).exists() {
            continue;
        }
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

/// Removes files of the copy that do not stay.
fn remove_others(tree: &Path, under: &Path, stays: &impl Fn(&str) -> bool) -> Result<()> {
    for entry in fs::read_dir(tree.join(under))? {
        let entry = entry?;
        let path = under.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            remove_others(tree, &path, stays)?;
        } else if !path.to_str().is_some_and(stays) {
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

    #[test]
    fn files_that_others_write_stay() {
        let dir = std::env::temp_dir().join(format!("kvtier-xtask-stays-{}", std::process::id()));
        fs::create_dir_all(dir.join("xtask")).unwrap();
        for file in ["Cargo.toml", "xtask/added.rs", "xtask/Cargo.toml"] {
            fs::write(dir.join(file), "other").unwrap();
        }
        let text = |file: &str| fs::read_to_string(dir.join(file)).ok();
        let other = Some("other".to_owned());
        update_at(&dir, &HashSet::from(["Cargo.toml", "xtask/added.rs", "Cargo.lock"])).unwrap();
        assert_eq!([text("Cargo.toml"), text("xtask/added.rs")], [other.clone(), other.clone()]);
        assert_eq!(text("Cargo.lock"), fs::read_to_string(root().join("Cargo.lock")).ok());
        assert_ne!(text("xtask/Cargo.toml"), other);
        update_at(&dir, &HashSet::new()).unwrap();
        assert_eq!(text("xtask/added.rs"), None);
        assert_ne!(text("Cargo.toml"), other);
        fs::remove_dir_all(&dir).unwrap();
    }
}
