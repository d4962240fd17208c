use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use nix::fcntl::{FcntlArg, OFlag, fcntl, open, readlink};
use nix::sys::stat::{FileStat, Mode, fstat, stat};

use super::api::Descr;
use super::{Driver, Failure};

/// The most files that are kept registered.
const FILES_MAX: usize = 64;

/// A registered file. Registered until it is dropped, and only then closed.
pub struct File {
    driver: Driver,
    handle: usize,
    fd: OwnedFd,
}

/// Where GPU memory lies: an address that is registered, or any other, and the bytes after it.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    pub base: usize,
    pub offset: usize,
    pub len: usize,
}

impl File {
    /// Registers the file behind `fd`, through a descriptor of its own: the caller's is closed when
    /// the caller likes. A context must be current.
    pub fn register(driver: Driver, fd: &OwnedFd) -> Result<Self, Failure> {
        let cannot = |e: nix::Error| Failure { call: "open", code: e as i32, cuda: 0 };
        let fd = plain(fd).map_err(cannot)?;
        let name = name_of(&fd).map_err(cannot)?;
        let (mut descr, mut handle) = (Descr::of_fd(fd.as_raw_fd()), 0);
        // SAFETY: both are valid for the call; the descriptor stays open for as long as the handle
        // lives.
        unsafe { (driver.api().handle_register)(&mut handle, &mut descr) }
            .check("cuFileHandleRegister")?;
        let file = File { driver, handle, fd };
        // libcufile opens the file once more, by its name, which may have got another file by then.
        if leads_to(&name, &file.fd) { Ok(file) } else { Err(cannot(nix::Error::ESTALE)) }
    }

    /// Reads exactly `len` bytes from `at` of the file; a file that ends before is `UnexpectedEof`.
    ///
    /// # Safety
    /// The target is memory of the GPU whose context is current, all of it, which nobody else
    /// touches until this returns.
    pub unsafe fn read(&self, at: u64, to: Target) -> Result<(), io::Error> {
        let read = self.driver.api().read;
        // SAFETY: the handle is registered; the rest is the caller's promise, and `all` stays
        // within the target.
        self.all("cuFileRead", (at, to), |at, to, len| unsafe {
            read(self.handle, to.base, len, at, to.offset as i64)
        })
    }

    /// Writes exactly `len` bytes at `at` of the file.
    ///
    /// # Safety
    /// As for [`read`](File::read), for memory that nobody writes to.
    pub unsafe fn write(&self, at: u64, from: Target) -> Result<(), io::Error> {
        let write = self.driver.api().write;
        // SAFETY: as in `read`.
        self.all("cuFileWrite", (at, from), |at, from, len| unsafe {
            write(self.handle, from.base, len, at, from.offset as i64)
        })
    }

    /// Goes on after short answers, until all is moved, nothing is, or it fails.
    fn all(
        &self,
        call: &'static str,
        (mut at, mut target): (u64, Target),
        mut step: impl FnMut(i64, Target, usize) -> isize,
    ) -> io::Result<()> {
        while target.len > 0 {
            let moved =
                Failure::of_bytes(call, step(at as i64, target, target.len)).map_err(io_error)?;
            if moved == 0 || moved > target.len {
                let what =
                    format!("{call} moved {moved} bytes of the {} that were left", target.len);
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, what));
            }
            at += moved as u64;
            target = Target { offset: target.offset + moved, len: target.len - moved, ..target };
        }
        Ok(())
    }
}

/// The file behind `fd`, opened again for the same access: cuFile refuses descriptors with flags
/// that protect whoever opens by name (`O_NOFOLLOW`, `O_NONBLOCK`) or that make nameless files
/// (`O_TMPFILE`).
fn plain(fd: &OwnedFd) -> nix::Result<OwnedFd> {
    let access = OFlag::from_bits_truncate(fcntl(fd, FcntlArg::F_GETFL)?) & OFlag::O_ACCMODE;
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    open(path.as_str(), access | OFlag::O_DIRECT | OFlag::O_CLOEXEC, Mode::empty())
}

/// The name that the file behind `fd` has now.
fn name_of(fd: &OwnedFd) -> nix::Result<OsString> {
    readlink(format!("/proc/self/fd/{}", fd.as_raw_fd()).as_str())
}

/// Whether the name still leads to the file behind `fd`.
fn leads_to(name: &OsStr, fd: &OwnedFd) -> bool {
    let inode = |meta: FileStat| (meta.st_dev, meta.st_ino);
    matches!((stat(name), fstat(fd.as_fd())), (Ok(there), Ok(own)) if inode(there) == inode(own))
}

/// Keeps the operating system's own errors as what they are.
fn io_error(failure: Failure) -> io::Error {
    if failure.code < 5000 {
        io::Error::from_raw_os_error(failure.code)
    } else {
        io::Error::other(failure)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: registered in `register`, no transfer of it is under way; its descriptor is
        // closed after this.
        unsafe { (self.driver.api().handle_deregister)(self.handle) };
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "File({:?})", self.fd)
    }
}

/// Files that were registered lately: registering costs more than a small read.
#[derive(Debug, Default)]
pub struct Files(Mutex<Vec<(Inode, Arc<File>)>>);

/// Device and number.
type Inode = (u64, u64);

impl Files {
    /// The file behind `fd`, registered now if it is not. A context must be current.
    pub fn get(&self, driver: Driver, fd: &OwnedFd) -> Result<Arc<File>, io::Error> {
        let meta = fstat(fd.as_fd())?;
        let inode = (meta.st_dev, meta.st_ino);
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = kept.iter().position(|(own, _)| *own == inode) {
            // The last was used last.
            let there = kept.remove(at);
            let file = Arc::clone(&there.1);
            kept.push(there);
            return Ok(file);
        }
        drop(kept);
        let file = Arc::new(File::register(driver, fd).map_err(io_error)?);
        self.forget_deleted();
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let oldest = (kept.len() >= FILES_MAX).then(|| kept.remove(0));
        kept.push((inode, Arc::clone(&file)));
        drop(kept);
        drop(oldest);
        Ok(file)
    }

    /// Lets deleted files go, whose room on the medium is free only then.
    pub fn forget_deleted(&self) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_there = |(_, file): &(Inode, Arc<File>)| {
            fstat(file.fd.as_fd()).is_ok_and(|meta| meta.st_nlink > 0)
        };
        let (there, gone) = std::mem::take(&mut *kept).into_iter().partition(is_there);
        *kept = there;
        drop(kept);
        drop::<Vec<_>>(gone);
    }

    /// Lets all go.
    pub fn clear(&self) {
        let all = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        drop(all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_got_another_file_is_noticed_wherever_the_file_went() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name| dir.path().join(name);
        let fd: OwnedFd = std::fs::File::create(path("one")).unwrap().into();
        let name = name_of(&fd).unwrap();
        assert!(leads_to(&name, &fd));
        std::fs::rename(path("one"), path("two")).unwrap();
        assert!(!leads_to(&name, &fd), "no file");
        std::fs::write(path("one"), "another").unwrap();
        assert!(!leads_to(&name, &fd), "another file");
        assert!(leads_to(&name_of(&fd).unwrap(), &fd));
    }
}
