//! Calls by a path.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use nix::sys::statfs::statfs;

use crate::call::Call;
use crate::observe::observed;

/// Opens a file with these options.
#[inline]
pub fn open(options: &OpenOptions, path: impl AsRef<Path>) -> io::Result<File> {
    let path = path.as_ref();
    observed(Call::Open(path.into()), || options.open(path))
}

/// Creates a directory.
#[inline]
pub fn create_dir(path: impl AsRef<Path>) -> io::Result<()> {
    let path = path.as_ref();
    observed(Call::CreateDir(path.into()), || fs::create_dir(path))
}

/// Creates a directory with this mode.
#[inline]
pub fn create_dir_mode(path: impl AsRef<Path>, mode: u32) -> io::Result<()> {
    let path = path.as_ref();
    observed(Call::CreateDir(path.into()), || DirBuilder::new().mode(mode).create(path))
}

/// Creates a directory and those above it.
#[inline]
pub fn create_dir_all(path: impl AsRef<Path>) -> io::Result<()> {
    let path = path.as_ref();
    observed(Call::CreateDir(path.into()), || fs::create_dir_all(path))
}

/// Gives a file a second name.
#[inline]
pub fn hard_link(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
    let (from, to) = (from.as_ref(), to.as_ref());
    observed(Call::Link(from.into(), to.into()), || fs::hard_link(from, to))
}

/// Renames a file, and replaces what has the new name.
#[inline]
pub fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
    let (from, to) = (from.as_ref(), to.as_ref());
    observed(Call::Rename(from.into(), to.into()), || fs::rename(from, to))
}

/// Renames a file, unless something has the new name: `EEXIST`.
#[inline]
pub fn rename_noreplace(from: &Path, to: &Path) -> nix::Result<()> {
    observed(Call::Rename(from.into(), to.into()), || {
        renameat2(AT_FDCWD, from, AT_FDCWD, to, RenameFlags::RENAME_NOREPLACE)
    })
}

/// Exchanges the files that have two names, in one step: `ENOENT` where one of them is free.
#[inline]
pub fn rename_exchange(one: &Path, other: &Path) -> nix::Result<()> {
    observed(Call::Exchange(one.into(), other.into()), || {
        renameat2(AT_FDCWD, one, AT_FDCWD, other, RenameFlags::RENAME_EXCHANGE)
    })
}

/// Removes a file.
#[inline]
pub fn remove_file(path: impl AsRef<Path>) -> io::Result<()> {
    let path = path.as_ref();
    observed(Call::Remove(path.into()), || fs::remove_file(path))
}

/// Removes an empty directory.
#[inline]
pub fn remove_dir(path: impl AsRef<Path>) -> io::Result<()> {
    let path = path.as_ref();
    observed(Call::Remove(path.into()), || fs::remove_dir(path))
}

/// Removes a directory with all that it has.
#[inline]
pub fn remove_dir_all(path: impl AsRef<Path>) -> io::Result<()> {
    let path = path.as_ref();
    observed(Call::RemoveTree(path.into()), || fs::remove_dir_all(path))
}

/// The bytes of the file system of a path, and how many of them this process may still use.
pub fn sizes(path: impl AsRef<Path>) -> io::Result<(u64, u64)> {
    #[cfg(feature = "simulate")]
    if let Some(process) = crate::simulated::current() {
        return Ok(process.sizes());
    }
    let stat = statfs(path.as_ref())?;
    let unit = stat.block_size().unsigned_abs();
    Ok((stat.blocks() * unit, stat.blocks_available() * unit))
}
