//! The extended attribute of a file.

use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::XattrFlags;

use crate::call::Call;
use crate::observe::observed;

/// Writes an attribute of an open file. A simulated process keeps one attribute of a file, whatever
/// its name.
#[inline]
pub fn set_attribute(file: impl AsFd, name: &str, value: &[u8]) -> nix::Result<()> {
    observed(Call::SetAttribute(file.as_fd(), value), || {
        if crate::is_simulated() {
            return Ok(());
        }
        rustix::fs::fsetxattr(&file, name, value, XattrFlags::empty()).map_err(errno)
    })
}

/// Reads an attribute of an open file. Returns its length.
#[inline]
pub fn attribute(file: impl AsFd, name: &str, into: &mut [u8]) -> nix::Result<usize> {
    #[cfg(feature = "simulate")]
    if let Some(process) = crate::simulated::current() {
        return fill(process.attribute(nix::sys::stat::fstat(&file)?.st_ino), into);
    }
    rustix::fs::fgetxattr(&file, name, into).map_err(errno)
}

/// The same of a file by its path; a symbolic link is not followed.
#[inline]
pub fn attribute_at(path: &Path, name: &str, into: &mut [u8]) -> nix::Result<usize> {
    #[cfg(feature = "simulate")]
    if let Some(process) = crate::simulated::current() {
        return fill(process.attribute(nix::sys::stat::lstat(path)?.st_ino), into);
    }
    rustix::fs::lgetxattr(path, name, into).map_err(errno)
}

fn errno(error: rustix::io::Errno) -> nix::Error {
    nix::Error::from_raw(error.raw_os_error())
}

#[cfg(feature = "simulate")]
fn fill(value: Option<Vec<u8>>, into: &mut [u8]) -> nix::Result<usize> {
    let value = value.ok_or(nix::Error::ENODATA)?;
    let into = into.get_mut(..value.len()).ok_or(nix::Error::ERANGE)?;
    into.copy_from_slice(&value);
    Ok(value.len())
}
