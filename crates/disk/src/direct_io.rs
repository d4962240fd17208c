//! Direct I/O: moves bytes between the device and memory, without the page cache.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use nix::fcntl::OFlag;

/// The unit of direct I/O in bytes: addresses, offsets and lengths are multiples of it. Payloads are
/// padded to it, and a footer is one.
pub const PAGE: u64 = 4096;

/// Opens with `O_DIRECT`, or, on a file system without direct I/O, through the page cache.
pub fn open_direct(flags: OFlag, open: impl Fn(OFlag) -> nix::Result<OwnedFd>) -> io::Result<File> {
    // Without blocking: the name may be a pipe's, whose other end never opens. Regular files ignore
    // the flag.
    let flags = flags | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
    match open(flags | OFlag::O_DIRECT) {
        Err(nix::Error::EINVAL) => Ok(open(flags)?.into()),
        other => other.map(File::from).map_err(io::Error::from),
    }
}
