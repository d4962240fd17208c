//! The quarantine: files that failed a check, kept for an operator. At most a few, for a week, and
//! only while no save needs their space.

use std::fs;
use std::io::{self, ErrorKind as Io};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The most files kept.
const FILES_MAX: usize = 64;
/// The most bytes kept, whatever the cap.
const BYTES_MAX: u64 = 1 << 30;
/// How long they are kept.
const AGE_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// The most bytes kept under a cap of `capacity_bytes`: a hundredth of it, at most 1 GiB.
pub fn bytes_max(capacity_bytes: u64) -> u64 {
    (capacity_bytes / 100).min(BYTES_MAX)
}

/// One file in quarantine.
#[derive(Debug)]
pub struct QuarantinedFile {
    pub path: PathBuf,
    pub bytes: u64,
    since: SystemTime,
}

/// All files in quarantine, the oldest first.
pub fn list(own: &Path) -> io::Result<Vec<QuarantinedFile>> {
    let mut all = Vec::new();
    let entries = match kvtier_os::read_dir(own.join("quarantine")) {
        Err(e) if matches!(e.kind(), Io::NotFound | Io::NotADirectory) => return Ok(all),
        other => other?,
    };
    for entry in entries {
        let entry = entry?;
        match entry.metadata() {
            Ok(meta) => {
                // The rename into quarantine was the last change of the inode. The system's clock
                // has no part in a simulation.
                let changed = if kvtier_os::is_simulated() { meta.mtime() } else { meta.ctime() };
                let since = UNIX_EPOCH + Duration::from_secs(changed.max(0).cast_unsigned());
                all.push(QuarantinedFile { path: entry.path(), bytes: meta.len(), since });
            }
            Err(e) if e.kind() == Io::NotFound => {}
            Err(e) => return Err(e),
        }
    }
    all.sort_unstable_by(|one, two| (one.since, &one.path).cmp(&(two.since, &two.path)));
    Ok(all)
}

/// Moves a damaged file into quarantine, or deletes it where the quarantine is full. Returns the
/// bytes that are kept.
pub fn keep(own: &Path, file: &Path, bytes_max: u64) -> io::Result<u64> {
    let bytes = fs::symlink_metadata(file)?.len();
    // Listed each time: other processes put files there too, and a damaged chunk is rare.
    let fits = list(own).is_ok_and(|all| {
        all.len() < FILES_MAX
            && all.iter().map(|kept| kept.bytes).sum::<u64>().saturating_add(bytes) <= bytes_max
    });
    let moved = fits
        && file
            .file_name()
            .is_some_and(|name| move_to_free(file, &own.join("quarantine").join(name)));
    if moved {
        return Ok(bytes);
    }
    // Kept or deleted: either way the chunk's name is free for the next save.
    kvtier_os::remove_file(file).map(|()| 0)
}

/// Renames unless the name exists: the ledger counts the file that has it. Returns whether the file
/// was renamed.
pub fn move_to_free(from: &Path, to: &Path) -> bool {
    match kvtier_os::rename_noreplace(from, to) {
        // The file system has no `RENAME_NOREPLACE`.
        Err(nix::Error::EINVAL) => !to.exists() && kvtier_os::rename(from, to).is_ok(),
        other => other.is_ok(),
    }
}

/// Gives a file the name of another, in one step, and deletes the other one. Where nothing has the
/// name, the file gets it. Returns the length of a file that is deleted now. After an error the other
/// one still has its name.
pub fn replace(from: &Path, to: &Path) -> io::Result<Option<u64>> {
    let bytes = |path: &Path| fs::symlink_metadata(path).map(|meta| meta.len()).ok();
    match kvtier_os::rename_exchange(from, to) {
        // The name is given, whether or not the other file can be deleted now.
        Ok(()) => {
            let replaced = bytes(from);
            Ok(kvtier_os::remove_file(from).ok().and(replaced))
        }
        Err(nix::Error::ENOENT) if move_to_free(from, to) => Ok(None),
        // The file system has no `RENAME_EXCHANGE`, or the name was taken just now.
        Err(nix::Error::EINVAL | nix::Error::ENOENT) => {
            let replaced = bytes(to);
            kvtier_os::rename(from, to).map(|()| replaced)
        }
        Err(e) => Err(e.into()),
    }
}

/// The bytes that were deleted, and the first failure.
#[derive(Debug, Default)]
pub struct Cleared {
    pub bytes: u64,
    pub failed: Option<io::Error>,
}

/// Deletes files older than [`AGE_MAX`], and the oldest beyond the limits. Where one cannot be
/// deleted, the next is.
pub fn trim(own: &Path, bytes_max: u64, now: SystemTime) -> io::Result<Cleared> {
    let all = list(own)?;
    let mut files = all.len();
    let mut bytes = all.iter().map(|kept| kept.bytes).sum::<u64>();
    let mut cleared = Cleared::default();
    for kept in all {
        let old = now.duration_since(kept.since).is_ok_and(|age| age > AGE_MAX);
        if (old || files > FILES_MAX || bytes > bytes_max) && cleared.remove(&kept) {
            (files, bytes) = (files - 1, bytes - kept.bytes);
        }
    }
    Ok(cleared)
}

/// Deletes the oldest files until `wanted` bytes are free, or none is left.
pub fn free_space(own: &Path, wanted: u64) -> io::Result<Cleared> {
    let mut cleared = Cleared::default();
    for kept in list(own)? {
        if cleared.bytes >= wanted {
            break;
        }
        cleared.remove(&kept);
    }
    Ok(cleared)
}

impl Cleared {
    /// Deletes a file. Returns whether it is gone. A file that a peer deleted is not counted here.
    fn remove(&mut self, kept: &QuarantinedFile) -> bool {
        match remove(&kept.path) {
            Ok(()) => self.bytes += kept.bytes,
            Err(e) if e.kind() == Io::NotFound => {}
            Err(e) => {
                self.failed.get_or_insert(e);
                return false;
            }
        }
        true
    }
}

/// Deletes a file, or a directory that had a chunk's name, with its contents.
pub fn remove(path: &Path) -> io::Result<()> {
    match kvtier_os::remove_file(path) {
        Err(e) if e.kind() == Io::IsADirectory => kvtier_os::remove_dir_all(path),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(dir: &Path, name: &str, bytes: usize, max: u64) -> u64 {
        let file = dir.join(name);
        fs::write(&file, vec![0; bytes]).unwrap();
        let kept = keep(dir, &file, max).unwrap();
        assert!(!file.exists());
        kept
    }

    #[test]
    fn files_and_bytes_have_a_maximum_and_what_is_not_kept_is_gone() {
        let own = tempfile::tempdir().unwrap();
        assert_eq!(put(own.path(), "no quarantine", 10, 100), 0);
        fs::create_dir(own.path().join("quarantine")).unwrap();
        assert_eq!(
            [
                put(own.path(), "a", 60, 100),
                put(own.path(), "b", 41, 100),
                put(own.path(), "c", 40, 100)
            ],
            [60, 0, 40]
        );
        assert_eq!(put(own.path(), "a", 1, 200), 0, "one of a name, which is counted");
        let now = SystemTime::now();
        assert_eq!(trim(own.path(), 100, now).unwrap().bytes, 0);
        assert_eq!(trim(own.path(), 100, now + AGE_MAX / 2).unwrap().bytes, 0);
        assert!(trim(own.path(), 99, now).unwrap().bytes > 0);
        assert!(
            trim(own.path(), 100, now + 2 * AGE_MAX).unwrap().bytes > 0,
            "what is left is old by then"
        );
        assert!(list(own.path()).unwrap().is_empty());
        assert_eq!([put(own.path(), "a", 60, 100), put(own.path(), "c", 40, 100)], [60, 40]);
        assert_eq!(free_space(own.path(), 1 << 20).unwrap().bytes % 20, 0);
        assert!(list(own.path()).unwrap().is_empty());
        let kept =
            (0..FILES_MAX + 3).map(|n| put(own.path(), &n.to_string(), 1, 1 << 20)).sum::<u64>();
        assert_eq!(kept, FILES_MAX as u64);
        assert_eq!((bytes_max(1000), bytes_max(u64::MAX)), (10, BYTES_MAX));
    }

    #[test]
    fn what_a_peer_deleted_is_gone_and_not_counted_and_a_failure_is_kept() {
        let own = tempfile::tempdir().unwrap();
        let file = |path: PathBuf| QuarantinedFile { path, bytes: 40, since: UNIX_EPOCH };
        let mut cleared = Cleared::default();
        assert!(cleared.remove(&file(own.path().join("deleted"))));
        assert_eq!(cleared.bytes, 0);
        assert!(cleared.failed.is_none());
        fs::write(own.path().join("file"), []).unwrap();
        assert!(!cleared.remove(&file(own.path().join("file/below"))));
        assert!(!cleared.remove(&file(own.path().join("x".repeat(300)))));
        assert_eq!(cleared.bytes, 0);
        assert_eq!(cleared.failed.as_ref().unwrap().kind(), Io::NotADirectory, "the first");
        for left in [40, 80] {
            fs::write(own.path().join("file"), []).unwrap();
            assert!(cleared.remove(&file(own.path().join("file"))));
            assert_eq!(cleared.bytes, left);
        }
    }

    #[test]
    fn a_quarantine_that_is_no_directory_is_empty() {
        let own = tempfile::tempdir().unwrap();
        // As where a peer removed the whole directory and made a file of its name.
        fs::write(own.path().join("quarantine"), []).unwrap();
        assert!(list(own.path()).unwrap().is_empty());
        assert!(list(&own.path().join("absent")).unwrap().is_empty());
        assert!(list(&own.path().join("x".repeat(300))).is_err());
    }

    #[test]
    fn the_oldest_are_listed_first_and_those_of_one_second_by_name() {
        let own = tempfile::tempdir().unwrap();
        fs::create_dir(own.path().join("quarantine")).unwrap();
        for (name, bytes) in [("b", 2), ("c", 3), ("a", 1)] {
            fs::write(own.path().join("quarantine").join(name), vec![0; bytes]).unwrap();
        }
        let listed = list(own.path()).unwrap();
        let ordered: Vec<_> = listed.iter().map(|kept| (kept.since, &kept.path)).collect();
        assert!(ordered.is_sorted(), "{ordered:?}");
        assert_eq!(listed.iter().map(|kept| kept.bytes).sum::<u64>(), 6);
        let age = SystemTime::now().duration_since(listed[0].since).unwrap();
        assert!(age < Duration::from_secs(3600), "{age:?}");
    }

    #[test]
    fn a_file_takes_the_name_of_another_which_goes() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::write(&from, "one").unwrap();
        assert_eq!(replace(&from, &to).unwrap(), None, "the name was free");
        assert_eq!(fs::read(&to).unwrap(), b"one");
        fs::write(&from, "second").unwrap();
        assert!(!move_to_free(&from, &to));
        assert_eq!(replace(&from, &to).unwrap(), Some(3));
        assert_eq!((fs::read(&to).unwrap().as_slice(), from.exists()), (&b"second"[..], false));
        assert!(!move_to_free(&from, &to));
        let error = replace(&from, &dir.path().join("to/below")).unwrap_err();
        assert_eq!(error.kind(), Io::NotADirectory);
        assert_eq!(replace(&from, &to).unwrap_err().kind(), Io::NotFound);
        assert_eq!(fs::read(&to).unwrap(), b"second");
        assert!(move_to_free(&to, &from));
    }

    #[test]
    fn a_file_goes_when_it_is_too_old_or_beyond_a_limit_and_not_a_moment_before() {
        let own = tempfile::tempdir().unwrap();
        fs::create_dir(own.path().join("quarantine")).unwrap();
        let left = |bytes_max, now| {
            let cleared = trim(own.path(), bytes_max, now).unwrap();
            (cleared.bytes, list(own.path()).unwrap().len())
        };
        put(own.path(), "a", 30, 100);
        let since = list(own.path()).unwrap()[0].since;
        assert_eq!(left(100, since + AGE_MAX), (0, 1));
        assert_eq!(left(100, since + AGE_MAX + Duration::from_secs(1)), (30, 0));
        for name in ["a", "b", "c"] {
            put(own.path(), name, 30, 100);
        }
        let now = SystemTime::now();
        assert_eq!(left(90, now), (0, 3));
        assert_eq!(left(60, now), (30, 2), "the other two fit");
        for n in 0..FILES_MAX - 2 {
            put(own.path(), &n.to_string(), 1, 1 << 20);
        }
        assert_eq!(left(1 << 20, now), (0, FILES_MAX));
        for name in ["x", "y"] {
            fs::write(own.path().join("quarantine").join(name), [0]).unwrap();
        }
        assert_eq!(left(1 << 20, now).1, FILES_MAX);
    }

    #[test]
    fn a_directory_in_quarantine_goes_too_and_does_not_stop_the_rest() {
        let own = tempfile::tempdir().unwrap();
        let quarantine = own.path().join("quarantine");
        // No file may stay; more bytes are wanted than there are.
        let trim_now: fn(&Path, u64) -> io::Result<Cleared> =
            |own, max| trim(own, max, SystemTime::now());
        let ways = [(trim_now, 0), (free_space, u64::MAX)];
        for (clear, bytes) in ways {
            fs::create_dir_all(quarantine.join("a directory/not empty")).unwrap();
            fs::write(quarantine.join("file"), [0; 40]).unwrap();
            assert!(clear(own.path(), bytes).unwrap().failed.is_none());
            assert!(list(own.path()).unwrap().is_empty());
        }
    }
}
