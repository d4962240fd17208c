use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use nix::fcntl::{AT_FDCWD, AtFlags, FallocateFlags, fallocate};
use nix::unistd::linkat;

use super::{Mapped, numa};
use crate::{Error, ErrorKind};

/// The directory of named segments.
pub(crate) const DIR: &str = "/dev/shm";

/// A POSIX shared-memory segment, named `PREFIX.PID.START.N`: the name identifies the maker,
/// and so whether it is dead. Its maker also holds a lock on it, for processes in other
/// containers, which cannot see the maker.
#[derive(Debug)]
pub(crate) struct Named {
    map: Mapped,
    path: PathBuf,
    maker: u32,
}

impl Named {
    /// A new segment of `len` bytes, of `node` if given; it is removed when this is dropped, or, after a
    /// crash, by [`sweep`].
    ///
    /// [`sweep`]: crate::sweep
    pub fn new(prefix: &str, len: usize, node: Option<u32>) -> Result<Self, Error> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        check(prefix)?;
        let maker = std::process::id();
        let start = start_of(maker).map_err(|e| failed(prefix, e))?;
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = Path::new(DIR).join(format!("{prefix}.{maker}.{start}.{n}"));
        let file = nameless(len).map_err(|e| failed(prefix, e))?;
        let map = Mapped::of_file(file.try_clone().map_err(|e| failed(prefix, e))?, len)?;
        // SAFETY: the range is our new mapping.
        unsafe { numa::bind(map.base(), map.len(), node) }?;
        publish(&file, len, &path).map_err(|e| failed(prefix, e))?;
        Ok(Named { map, path, maker })
    }

    pub fn map(&self) -> &Mapped {
        &self.map
    }

    /// The name that others open it by.
    pub fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        // A child that was forked has a copy of this; the name is still its parent's.
        if std::process::id() == self.maker {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// A file of `len` bytes that has no name yet, locked.
fn nameless(len: usize) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let file =
        options.read(true).write(true).custom_flags(libc::O_TMPFILE).mode(0o600).open(DIR)?;
    file.set_len(len as u64)?;
    file.try_lock()?;
    Ok(file)
}

/// Reserves all pages, then links the file to its name: a file with a name is complete and
/// locked.
fn publish(file: &File, len: usize, path: &Path) -> io::Result<()> {
    // Without this, a page without memory would be a SIGBUS when it is accessed.
    fallocate(file, FallocateFlags::empty(), 0, len as libc::off_t)?;
    let own = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file));
    linkat(AT_FDCWD, own.as_str(), AT_FDCWD, path, AtFlags::AT_SYMLINK_FOLLOW)?;
    Ok(())
}

/// Opens a segment by its name.
pub(crate) fn open(name: &str) -> Result<File, Error> {
    if name.is_empty() || name.contains('/') || name.starts_with('.') {
        let what = format!("{name:?} is no name of shared memory: one file in {DIR}");
        return Err(Error::new(ErrorKind::Invalid, what));
    }
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(flags)
        .open(Path::new(DIR).join(name));
    file.map_err(|e| failed(name, e))
}

/// Process and start time of the maker of a segment.
pub(super) fn maker(name: &str, prefix: &str) -> Option<(u32, u64)> {
    let mut parts = name.strip_prefix(prefix)?.strip_prefix('.')?.split('.');
    let pid = parts.next()?;
    let start = parts.next()?;
    let n = parts.next()?;
    n.parse::<u64>().ok()?;
    if parts.next().is_some() {
        return None;
    }
    Some((pid.parse().ok()?, start.parse().ok()?))
}

/// When a process began, in clock ticks since boot. One that has ended and waits for its parent is
/// not found.
pub(super) fn start_of(pid: u32) -> io::Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name of the program, in brackets, may hold anything; the 20th field after it is the start
    // time.
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    if matches!(rest.split_whitespace().next(), Some("Z" | "X")) {
        return Err(io::ErrorKind::NotFound.into());
    }
    let start = rest.split_whitespace().nth(19).and_then(|start| start.parse().ok());
    start.ok_or_else(|| io::Error::other(format!("/proc/{pid}/stat has another form")))
}

pub(super) fn check(prefix: &str) -> Result<(), Error> {
    let fine = !prefix.is_empty()
        && prefix.len() <= 64
        && prefix.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    let what = || {
        format!(
            "the prefix {prefix:?} of a shared-memory name must be 1 to 64 letters, digits, '_' or '-'"
        )
    };
    fine.then_some(()).ok_or_else(|| Error::new(ErrorKind::Invalid, what()))
}

pub(super) fn failed(name: &str, e: io::Error) -> Error {
    let error = Error::new(ErrorKind::Io, format!("cannot use shared memory {DIR}/{name}*"));
    error.with_cause(e, "check that it is there, writable and large enough")
}
