//! Calls on an open file.

use std::fs::{File, TryLockError};
use std::io::{self, Write as _};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use nix::fcntl::FallocateFlags;

use crate::call::Call;
#[cfg(feature = "simulate")]
use crate::call::Write;
use crate::observe::observed;

/// Locks a file, unless another process has it locked: `WouldBlock`.
#[inline]
pub fn try_lock(file: &File) -> Result<(), TryLockError> {
    // As an error: the process sees that it failed.
    let locked = observed(Call::Lock(file.as_fd()), || file.try_lock().map_err(io::Error::from));
    locked.map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => TryLockError::WouldBlock,
        _ => TryLockError::Error(error),
    })
}

/// Syncs the bytes of a file and its length, or the names in a directory.
#[inline]
pub fn sync_all(file: &File) -> io::Result<()> {
    observed(Call::Sync(file.as_fd()), || file.sync_all())
}

/// Syncs the bytes of a file.
#[inline]
pub fn sync_data(file: &File) -> io::Result<()> {
    observed(Call::Sync(file.as_fd()), || file.sync_data())
}

/// As [`sync_data`], for a file descriptor.
#[inline]
pub fn fdatasync(file: impl AsFd) -> nix::Result<()> {
    observed(Call::Sync(file.as_fd()), || nix::unistd::fdatasync(&file))
}

/// Syncs the file system of an open file.
#[inline]
pub fn syncfs(file: impl AsFd) -> nix::Result<()> {
    observed(Call::SyncAll, || nix::unistd::syncfs(&file))
}

/// Appends to a file, or writes where it stands.
#[inline]
pub fn write_all(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    #[cfg(feature = "simulate")]
    if let Some(process) = crate::simulated::current() {
        let write = Write { file: file.as_fd(), at: None, bytes };
        return crate::simulated::write_all(&*process, write, |part, _| (&*file).write_all(part));
    }
    file.write_all(bytes)
}

/// Writes once; returns how many bytes it took.
#[inline]
pub fn write(mut file: &File, bytes: &[u8]) -> io::Result<usize> {
    #[cfg(feature = "simulate")]
    if let Some(process) = crate::simulated::current() {
        let write = Write { file: file.as_fd(), at: None, bytes };
        return crate::simulated::write(&*process, write, |part| file.write_all(part));
    }
    file.write(bytes)
}

/// Writes at an offset.
#[inline]
pub fn write_all_at(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    #[cfg(feature = "simulate")]
    if let Some(process) = crate::simulated::current() {
        let write = Write { file: file.as_fd(), at: Some(at), bytes };
        return crate::simulated::write_all(&*process, write, |part, from| {
            file.write_all_at(part, from.unwrap_or(at))
        });
    }
    file.write_all_at(bytes, at)
}

/// What offsets of direct I/O are multiples of, whatever the device.
const PAGE: usize = 4096;

/// Reads at an offset until `wanted` bytes arrived or the file ends. Returns how many arrived: more
/// than `wanted` where the file and `into` have them.
#[inline]
pub fn read_at_least(file: &File, into: &mut [u8], at: u64, wanted: usize) -> io::Result<usize> {
    let mut got = 0;
    while got < wanted.min(into.len()) {
        match read_at(file, &mut into[got..], at + got as u64) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            // Direct I/O goes on only where a page begins.
            Err(e) if e.raw_os_error() == Some(nix::libc::EINVAL) && got % PAGE > 0 => {
                let page = got - got % PAGE;
                let again = page + file.read_at(&mut into[page..], at + page as u64)?;
                if again <= got {
                    break;
                }
                got = again;
            }
            Err(e) => return Err(e),
        }
    }
    Ok(got)
}

/// Reads once, as the system may answer it: also fewer bytes than the file has.
#[inline]
fn read_at(file: &File, into: &mut [u8], at: u64) -> io::Result<usize> {
    #[cfg(feature = "simulate")]
    let into = match crate::simulated::current() {
        Some(process) => {
            let len = process.read_len(into.len()).clamp(1, into.len());
            &mut into[..len]
        }
        None => into,
    };
    file.read_at(into, at)
}

/// Sets the length of a file.
#[inline]
pub fn set_len(file: &File, bytes: u64) -> io::Result<()> {
    observed(Call::SetLen(file.as_fd()), || file.set_len(bytes))
}

/// As [`set_len`], for a file descriptor.
#[inline]
pub fn ftruncate(file: impl AsFd, bytes: i64) -> nix::Result<()> {
    observed(Call::SetLen(file.as_fd()), || nix::unistd::ftruncate(&file, bytes))
}

/// Allocates the first `bytes` of a file.
#[inline]
pub fn fallocate(file: impl AsFd, bytes: i64) -> nix::Result<()> {
    observed(Call::Allocate(file.as_fd(), bytes.cast_unsigned()), || {
        nix::fcntl::fallocate(&file, FallocateFlags::empty(), 0, bytes)
    })
}
