//! Calls relative to an open directory.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

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
    let flags = supported(flags);
    observed(Call::Open(name(&dir, path)), || nix::fcntl::openat(&dir, path, flags, mode))
}

#[cfg(not(feature = "simulate"))]
#[inline(always)]
fn supported(flags: OFlag) -> OFlag {
    flags
}

/// What any file system supports, in a simulation: not each has direct I/O, and one that has none costs another
/// call.
#[cfg(feature = "simulate")]
fn supported(flags: OFlag) -> OFlag {
    if crate::simulated::current().is_some() { flags - OFlag::O_DIRECT } else { flags }
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
