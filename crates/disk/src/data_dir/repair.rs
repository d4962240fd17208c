//! Repairs `.kvtier`: renames whatever is in the way of an internal file or directory to
//! `<name>.damaged`, and creates missing directories.

use std::ffi::OsStr;
use std::fs::{self, FileType};
use std::io::{self, ErrorKind as Io};
use std::path::{Path, PathBuf};

use super::ignore_existing;
use super::internal_files::{DIRS, FILES, create_dir};

/// The names `<name>.damaged`, `<name>.damaged.1` and so on that are tried.
const DAMAGED_MAX: u32 = 16;

/// Renames the file at `path` to `<name>.damaged` below `.kvtier`, in the place of an earlier one.
/// Returns the new path. Fails with `NotFound` where the file is gone.
pub fn rename_damaged(own: &Path, path: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut last = None;
    for n in 0..DAMAGED_MAX {
        let number = if n == 0 { String::new() } else { format!(".{n}") };
        let to = own.join(format!("{name}.damaged{number}"));
        match kvtier_os::rename(path, &to) {
            Ok(()) => return Ok(to),
            // A directory in the place of a file, or the reverse.
            Err(e)
                if matches!(
                    e.kind(),
                    Io::IsADirectory | Io::NotADirectory | Io::DirectoryNotEmpty
                ) =>
            {
                last = Some(e)
            }
            Err(e) => return Err(e),
        }
    }
    Err(last.unwrap_or_else(|| Io::AlreadyExists.into()))
}

/// The same. Returns a sentence about it.
pub fn rename_damaged_because(own: &Path, path: &Path, why: &str) -> io::Result<String> {
    let to = rename_damaged(own, path)?;
    Ok(format!("{} {why}; it is now {}", path.display(), to.display()))
}

/// Creates missing directories below `.kvtier`, and renames what has the name of an internal file or
/// directory and is none. Returns a sentence for each.
pub fn repair(own: &Path) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    let is_other = |kind: &FileType| !kind.is_file();
    for entry in kvtier_os::read_dir(own)? {
        let entry = entry?;
        if is_file_name(&entry.file_name()) {
            found.extend(clear_name(own, &entry.path(), is_other, "was no regular file")?);
        }
    }
    for dir in DIRS {
        found.extend(make_dir(own, &own.join(dir))?);
    }
    for entry in kvtier_os::read_dir(own.join("journal"))? {
        found.extend(clear_name(
            own,
            &entry?.path(),
            is_other,
            "was no journal but something else",
        )?);
    }
    Ok(found)
}

/// Renames the file if `is_other` holds for it at this moment. A peer may have removed or renamed it
/// meanwhile.
fn clear_name(
    own: &Path,
    path: &Path,
    is_other: impl Fn(&FileType) -> bool,
    why: &str,
) -> io::Result<Option<String>> {
    let is_gone = |e: &io::Error| e.kind() == Io::NotFound;
    match fs::symlink_metadata(path) {
        Ok(meta) if !is_other(&meta.file_type()) => return Ok(None),
        Err(e) if is_gone(&e) => return Ok(None),
        other => other?,
    };
    match rename_damaged_because(own, path, why) {
        Err(e) if is_gone(&e) => Ok(None),
        other => other.map(Some),
    }
}

fn is_file_name(name: &OsStr) -> bool {
    let is_segment =
        |number: &str| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    name.to_str().is_some_and(|name| {
        FILES.contains(&name) || name.strip_prefix("changes.").is_some_and(is_segment)
    })
}

/// Creates a directory unless it exists. Returns a sentence where something else had its name.
pub fn make_dir(own: &Path, dir: &Path) -> io::Result<Option<String>> {
    match create_dir(own, dir) {
        Err(e) if e.kind() == Io::AlreadyExists => {}
        other => return other.map(|()| None),
    }
    if fs::symlink_metadata(dir).is_ok_and(|meta| meta.is_dir()) {
        return Ok(None);
    }
    let said = clear_name(own, dir, |kind| !kind.is_dir(), "was no directory")?;
    create_dir(own, dir).or_else(ignore_existing)?;
    Ok(said)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::super::internal_files::make_dirs;
    use super::*;

    #[test]
    fn what_others_repair_meanwhile_is_done() {
        let dir = tempfile::tempdir().unwrap();
        let own = &dir.path().join(".kvtier");
        make_dirs(own).unwrap();
        for _ in 0..20 {
            for n in 0..20 {
                fs::create_dir(own.join(format!("changes.{n}"))).unwrap();
                fs::create_dir(own.join(format!("journal/a.1.0.0.{n}"))).unwrap();
            }
            std::thread::scope(|all| {
                let all = [(); 4].map(|()| all.spawn(|| repair(own).unwrap().len()));
                assert_eq!(all.map(|one| one.join().unwrap()).iter().sum::<usize>(), 40);
            });
        }
        // What was put right since it was looked at stays.
        fs::write(own.join("lock"), "").unwrap();
        let is_other = |kind: &FileType| !kind.is_file();
        assert_eq!(
            clear_name(own, &own.join("lock"), is_other, "was no regular file").unwrap(),
            None
        );
        assert!(own.join("lock").exists());
    }

    #[test]
    fn a_link_in_the_place_of_a_directory_is_renamed_wherever_it_leads() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join(".kvtier");
        let elsewhere = dir.path().join("elsewhere");
        make_dirs(&own).unwrap();
        fs::create_dir(&elsewhere).unwrap();
        fs::write(elsewhere.join("file"), "").unwrap();
        let nowhere = dir.path().join("x".repeat(300));
        for (name, to) in [("00", elsewhere), ("01", nowhere), ("02", dir.path().join("02"))] {
            let path = dir.path().join(name);
            symlink(&to, &path).unwrap();
            assert!(make_dir(&own, &path).unwrap().is_some());
            assert_eq!(make_dir(&own, &path).unwrap(), None);
            assert!(path.is_dir() && !path.is_symlink(), "{name}");
            assert_eq!(fs::read_link(own.join(format!("{name}.damaged"))).unwrap(), to);
        }
        assert!(dir.path().join("elsewhere/file").exists());
    }

    #[test]
    fn what_is_in_the_way_is_kept_and_not_twice_over() {
        let own = tempfile::tempdir().unwrap();
        let path = own.path().join("ledger");
        for round in 0..3 {
            fs::write(&path, format!("{round}")).unwrap();
            assert!(rename_damaged(own.path(), &path).unwrap().ends_with("ledger.damaged"));
        }
        fs::create_dir_all(path.join("not empty")).unwrap();
        assert!(rename_damaged(own.path(), &path).unwrap().ends_with("ledger.damaged.1"));
        fs::create_dir_all(path.join("not empty")).unwrap();
        assert!(rename_damaged(own.path(), &path).unwrap().ends_with("ledger.damaged.2"));
        assert_eq!(fs::read(own.path().join("ledger.damaged")).unwrap(), b"2");
    }
}
