//! The files below `.kvtier`: their names, and how they are opened and replaced.
//!
//! A name can come to mean a pipe, a link or a directory. Nothing here follows a link or waits for
//! the other end of a pipe, and only a regular file is used. When a directory is opened, [`repair`](super::repair::repair)
//! renames whatever is in the way to `<name>.damaged`, for an operator to look at: bookkeeping that
//! is damaged costs what it kept, never the directory.
//!
//! # What is synced
//!
//! After a crash of the machine a file that was replaced by a rename can be empty: the new name may
//! reach the device before the bytes. Therefore a file whose loss costs more than the order of use
//! is synced before the rename, and its directory after it.
//!
//! | rename | synced | why |
//! |---|---|---|
//! | `manifest.new` to `manifest` | yes | it keeps the layout, the cap and the geometry that all agreed on |
//! | a draft to `tenant-key` | yes | without it all tenants of the chunks are unknown |
//! | `snapshot.new` to `snapshot` | no | it keeps the order of use only, and a torn one is read as far as it goes |
//! | an unfinished file to a chunk's name, and the file beside it | as `durability` says | each load proves the bytes |
//! | a victim's file to an unfinished one | no | under its old name it fails its checks, because its footer is of another chunk |
//! | a damaged chunk into quarantine | no | under its old name it fails its checks again |
//! | `<name>` to `<name>.damaged` | no | the next start finds the same damage again |
//!
//! All other files are written in place or appended to: journals and change log are read as far as
//! they are whole, and the next start counts a ledger anew.
//!
//! # Permissions
//!
//! The owner alone: files are made with mode 600 and directories with 700, and [`make_private`]
//! changes those of earlier builds.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind as Io, Read};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use super::ignore_existing;

/// The files that have a fixed name, and the drafts that become one of them. `door` and `tenants`
/// are of earlier builds.
pub(super) const FILES: [&str; 10] = [
    "lock",
    "door",
    "manifest",
    "manifest.new",
    "ledger",
    "evictor",
    "snapshot",
    "snapshot.new",
    "tenant-key",
    "tenants",
];
/// The directories.
pub(super) const DIRS: [&str; 3] = ["tmp", "quarantine", "journal"];
/// Opens an internal file. Fails for anything but a regular file, without waiting and without
/// following a link.
pub fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let options = options.custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK).mode(0o600);
    let file = kvtier_os::open(options, path)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(Io::InvalidData, format!("{} is no regular file", path.display())))
}

/// Opens an internal file for reading.
pub fn open_to_read(path: &Path) -> io::Result<File> {
    open(path, OpenOptions::new().read(true))
}

/// Opens or creates an internal file for reading and writing.
pub fn open_rw(path: &Path) -> io::Result<File> {
    open(path, OpenOptions::new().read(true).write(true).create(true).truncate(false))
}

/// Creates or truncates an internal file.
pub fn create(path: &Path) -> io::Result<File> {
    open(path, OpenOptions::new().write(true).create(true).truncate(true))
}

/// Reads at most `bytes_max` of an internal file.
pub fn read(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_to_read(path)?.take(bytes_max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Whether the error means that the name belongs to something other than a regular file.
pub fn is_not_a_file(e: &io::Error) -> bool {
    // A pipe without a reader, a device without a driver, or a link.
    let is_other = matches!(e.raw_os_error(), Some(nix::libc::ENXIO | nix::libc::ELOOP));
    is_other || matches!(e.kind(), Io::InvalidData | Io::IsADirectory)
}

/// Whether the error means that the device cannot read the bytes. Other errors (no memory, no file
/// descriptor, a server that does not respond) say nothing about the file.
pub fn is_unreadable(e: &io::Error) -> bool {
    e.raw_os_error() == Some(nix::libc::EIO)
}

/// Whether a usable file has this name.
///
/// # Errors
/// The error of the file system.
pub fn exists(path: &Path) -> io::Result<bool> {
    match fs::metadata(path) {
        Ok(_) => Ok(true),
        Err(e) if matches!(e.kind(), Io::NotFound | Io::NotADirectory) || is_not_a_file(&e) => {
            Ok(false)
        }
        Err(e) => Err(e),
    }
}

/// Replaces an internal file in one step. After a crash of the machine it holds the old bytes or the
/// new ones.
pub fn replace_synced(own: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let draft = own.join(format!("{name}.new"));
    let mut file = create(&draft)?;
    kvtier_os::write_all(&mut file, bytes)?;
    kvtier_os::sync_all(&file)?;
    kvtier_os::rename(&draft, own.join(name))?;
    sync_dir(own)
}

/// Restricts files in `.kvtier` and its journals that an earlier build left readable for other
/// users. Files of other users stay as they are.
pub fn make_private(own: &Path) {
    for dir in [own.to_owned(), own.join("journal")] {
        for entry in kvtier_os::read_dir(dir).into_iter().flatten().flatten() {
            if let Ok(file) = open_to_read(&entry.path())
                && file.metadata().is_ok_and(|meta| meta.permissions().mode() & 0o077 != 0)
            {
                let _ = file.set_permissions(Permissions::from_mode(0o600));
            }
        }
    }
}

#[cfg(test)]
thread_local! {
    /// The directories that this thread synced.
    pub static SYNCED: std::cell::RefCell<Vec<std::path::PathBuf>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// Syncs a directory's names to the device, where the file system can.
pub fn sync_dir(dir: &Path) -> io::Result<()> {
    #[cfg(test)]
    SYNCED.with_borrow_mut(|synced| synced.push(dir.to_owned()));
    match kvtier_os::sync_all(&File::open(dir)?) {
        Err(e) if matches!(e.kind(), Io::InvalidInput | Io::Unsupported) => Ok(()),
        other => other,
    }
}

/// Creates the directory `root` and those above it, and syncs the names of the new ones.
pub fn make_root(root: &Path) -> io::Result<()> {
    let new: Vec<&Path> =
        root.ancestors().take_while(|dir| !dir.as_os_str().is_empty() && !dir.exists()).collect();
    kvtier_os::create_dir_all(root)?;
    new.into_iter().filter_map(Path::parent).try_for_each(|above| {
        sync_dir(if above.as_os_str().is_empty() { Path::new(".") } else { above })
    })
}

/// Creates `.kvtier` and its directories.
pub fn make_dirs(own: &Path) -> io::Result<()> {
    make_own(own)?;
    DIRS.iter().try_for_each(|dir| create_dir(own, &own.join(dir)).or_else(ignore_existing))
}

/// Creates `.kvtier` itself, unless it exists.
pub fn make_own(own: &Path) -> io::Result<()> {
    create_dir(own, own).or_else(ignore_existing)
}

/// Creates a directory; below `.kvtier` with access for its owner alone.
pub(super) fn create_dir(own: &Path, dir: &Path) -> io::Result<()> {
    if dir.starts_with(own) {
        kvtier_os::create_dir_mode(dir, 0o700)
    } else {
        kvtier_os::create_dir(dir)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn only_a_regular_file_is_opened_and_nothing_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("elsewhere"), "secret").unwrap();
        symlink(at("elsewhere"), at("link")).unwrap();
        symlink(at("loop"), at("loop")).unwrap();
        fs::create_dir(at("dir")).unwrap();
        nix::unistd::mkfifo(&at("pipe"), nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
        for name in ["link", "loop", "dir", "pipe"] {
            let ways = [open_to_read(&at(name)), open_rw(&at(name)), create(&at(name))];
            for way in ways {
                assert!(is_not_a_file(&way.unwrap_err()), "{name}");
            }
            assert!(
                is_not_a_file(&open(&at(name), OpenOptions::new().append(true)).unwrap_err()),
                "{name}"
            );
        }
        assert_eq!(fs::read(at("elsewhere")).unwrap(), b"secret");
        drop(open_rw(&at("file")).unwrap());
        assert_eq!(fs::metadata(at("file")).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
