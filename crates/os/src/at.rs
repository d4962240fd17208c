//! Calls relative to an open directory.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use nix::dir::{Dir, Entry};
use nix::fcntl::{AtFlags, OFlag, RenameFlags};
use nix::sys::stat::{FileStat, Mode};
use nix::unistd::UnlinkatFlags;

use crate::call::{Call, Name};
use crate::observe::observed;

/// A name in an open directory.
#[inline]
fn name<'a>(dir: &'a impl AsFd, path: &'a str) -> Name<'a> {
    Name { dir: Some(dir.as_fd()), path: Path::new(path) }
}

/// Opens a file.
#[inline]
pub fn openat(dir: impl AsFd, path: &str, flags: OFlag, mode: Mode) -> nix::Result<OwnedFd> {
    observed(Call::Open(name(&dir, path)), || nix::fcntl::openat(&dir, path, flags, mode))
}

/// Lists a directory, perhaps with `.` and `..`. It is open until the iterator is dropped.
#[inline]
pub fn list_dir_at<D: AsFd>(
    dir: D,
    path: &str,
    flags: OFlag,
) -> nix::Result<impl Iterator<Item = nix::Result<Entry>> + use<D>> {
    let name = name(&dir, path);
    let listed = observed(Call::Look(name), || match is_known_as_empty(name) {
        true => Ok(None),
        false => Dir::openat(&dir, path, flags, Mode::empty()).map(Some),
    });
    Ok(listed?.into_iter().flatten())
}

/// Whether a simulation says without a look that a directory is empty.
#[cfg(feature = "simulate")]
fn is_known_as_empty(name: Name<'_>) -> bool {
    crate::simulated::current().is_some_and(|process| process.has_empty_dir(name))
}

#[cfg(not(feature = "simulate"))]
#[inline(always)]
fn is_known_as_empty(_: Name<'_>) -> bool {
    false
}

/// The kind, the length and the times of a name.
#[inline]
pub fn fstatat(dir: impl AsFd, path: &str, flags: AtFlags) -> nix::Result<FileStat> {
    observed(Call::Look(name(&dir, path)), || nix::sys::stat::fstatat(&dir, path, flags))
}

/// Renames, and replaces what has the new name.
#[inline]
pub fn renameat(from_dir: impl AsFd, from: &str, to_dir: impl AsFd, to: &str) -> nix::Result<()> {
    observed(Call::Rename(name(&from_dir, from), name(&to_dir, to)), || {
        nix::fcntl::renameat(&from_dir, from, &to_dir, to)
    })
}

/// Renames as the flags say.
#[inline]
pub fn renameat2(
    from_dir: impl AsFd,
    from: &str,
    to_dir: impl AsFd,
    to: &str,
    flags: RenameFlags,
) -> nix::Result<()> {
    let names = (name(&from_dir, from), name(&to_dir, to));
    let call = match flags.contains(RenameFlags::RENAME_EXCHANGE) {
        true => Call::Exchange(names.0, names.1),
        false => Call::Rename(names.0, names.1),
    };
    observed(call, || nix::fcntl::renameat2(&from_dir, from, &to_dir, to, flags))
}

/// Removes a name.
#[inline]
pub fn unlinkat(dir: impl AsFd, path: &str, flags: UnlinkatFlags) -> nix::Result<()> {
    observed(Call::Remove(name(&dir, path)), || nix::unistd::unlinkat(&dir, path, flags))
}
