use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use nix::fcntl::{FcntlArg, OFlag, fcntl, open, readlink};
use nix::sys::stat::{FileStat, Mode, fstat, stat};

use super::api::Descr;
use super::{CufileError, Driver};

/// The most registered files in the cache.
const FILES_MAX: usize = 64;

/// A registered file. The drop deregisters it and then closes it.
pub struct RegisteredFile {
    driver: Driver,
    handle: usize,
    fd: OwnedFd,
}

/// A range of GPU memory: offset and length from a registered or any other address.
#[derive(Clone, Copy, Debug)]
pub struct GpuRange {
    pub base: usize,
    pub offset: usize,
    pub len: usize,
}

/// The rest of a transfer between a file offset and GPU memory.
struct CufileTransfer {
    at: u64,
    gpu: GpuRange,
}

impl RegisteredFile {
    /// Registers the file behind `fd` through a duplicate, because the caller may close its own
    /// descriptor at any time. A CUDA context must be current.
    pub fn register(driver: Driver, fd: &OwnedFd) -> Result<Self, CufileError> {
        let failed = |e: nix::Error| CufileError { call: "open", code: e as i32, cuda: 0 };
        let fd = reopen(fd).map_err(failed)?;
        // Read before the registration and checked after it: an eviction may delete the file, and a
        // save may give its name to another one, in between.
        let name = name_of(&fd).map_err(failed)?;
        let mut descr = Descr::from_fd(fd.as_raw_fd());
        let mut handle = 0;
        // SAFETY: both are valid for the call; the descriptor stays open for as long as the handle
        // lives.
        unsafe { (driver.api().handle_register)(&mut handle, &mut descr) }
            .check("cuFileHandleRegister")?;
        let file = RegisteredFile { driver, handle, fd };
        // libcufile opens the file again by its name, which may belong to another file by then.
        if is_named(&name, &file.fd) { Ok(file) } else { Err(failed(nix::Error::ESTALE)) }
    }

    /// Reads exactly `len` bytes at offset `at` of the file.
    ///
    /// # Errors
    /// `UnexpectedEof` if the file ends before; what cuFile reports.
    ///
    /// # Safety
    /// The whole target is memory of the GPU whose context is current, and nothing else accesses it
    /// until this returns.
    pub unsafe fn read(&self, at: u64, to: GpuRange) -> Result<(), io::Error> {
        let read = self.driver.api().read;
        // SAFETY: the handle is registered; the rest is the caller's promise, and
        // `transfer_all` stays within the target.
        self.transfer_all("cuFileRead", CufileTransfer { at, gpu: to }, |at, to, len| unsafe {
            read(self.handle, to.base, len, at, to.offset as i64)
        })
    }

    /// Writes exactly `len` bytes at offset `at` of the file.
    ///
    /// # Errors
    /// What cuFile reports.
    ///
    /// # Safety
    /// As for [`read`](RegisteredFile::read); nothing writes to the memory.
    pub unsafe fn write(&self, at: u64, from: GpuRange) -> Result<(), io::Error> {
        let write = self.driver.api().write;
        // SAFETY: as in `read`.
        self.transfer_all("cuFileWrite", CufileTransfer { at, gpu: from }, |at, from, len| unsafe {
            write(self.handle, from.base, len, at, from.offset as i64)
        })
    }

    /// Repeats `step` after short transfers, until everything was moved, nothing is, or it fails.
    fn transfer_all(
        &self,
        call: &'static str,
        CufileTransfer { mut at, gpu: mut target }: CufileTransfer,
        mut step: impl FnMut(i64, GpuRange, usize) -> isize,
    ) -> io::Result<()> {
        while target.len > 0 {
            let moved = CufileError::check_bytes(call, step(at as i64, target, target.len))
                .map_err(io_error)?;
            // More than requested would be a fault of the library; the loop must not run past the
            // memory.
            if moved == 0 || moved > target.len {
                let what =
                    format!("{call} moved {moved} bytes of the {} that were left", target.len);
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, what));
            }
            at += moved as u64;
            target = GpuRange { offset: target.offset + moved, len: target.len - moved, ..target };
        }
        Ok(())
    }
}

/// Opens the file behind `fd` again with the same access. cuFile refuses descriptors with the flags
/// `O_NOFOLLOW`, `O_NONBLOCK` or `O_TMPFILE`.
fn reopen(fd: &OwnedFd) -> nix::Result<OwnedFd> {
    let access = OFlag::from_bits_truncate(fcntl(fd, FcntlArg::F_GETFL)?) & OFlag::O_ACCMODE;
    // Through `/proc`, since a duplicate shares the flags of the descriptor and its name may be
    // gone.
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    open(path.as_str(), access | OFlag::O_DIRECT | OFlag::O_CLOEXEC, Mode::empty())
}

/// The current name of the file behind `fd`.
fn name_of(fd: &OwnedFd) -> nix::Result<OsString> {
    readlink(format!("/proc/self/fd/{}", fd.as_raw_fd()).as_str())
}

/// Whether `name` is a name of the file behind `fd`.
fn is_named(name: &OsStr, fd: &OwnedFd) -> bool {
    let inode = |meta: FileStat| (meta.st_dev, meta.st_ino);
    matches!((stat(name), fstat(fd.as_fd())), (Ok(named), Ok(own)) if inode(named) == inode(own))
}

/// Converts an `errno` to the error of that number, anything else to `Other`.
fn io_error(e: CufileError) -> io::Error {
    if e.code < 5000 { io::Error::from_raw_os_error(e.code) } else { io::Error::other(e) }
}

impl Drop for RegisteredFile {
    fn drop(&mut self) {
        // SAFETY: registered in `register`; no transfer is in flight. The descriptor is closed after
        // this.
        unsafe { (self.driver.api().handle_deregister)(self.handle) };
    }
}

impl fmt::Debug for RegisteredFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RegisteredFile({:?})", self.fd)
    }
}

/// Recently registered files: registering costs more than a small read.
#[derive(Debug, Default)]
pub struct FileCache(Mutex<Vec<(Inode, Arc<RegisteredFile>)>>);

/// Device and inode number.
type Inode = (u64, u64);

impl FileCache {
    /// The file behind `fd`, registered if it is not yet. A CUDA context must be current.
    pub fn get(&self, driver: Driver, fd: &OwnedFd) -> Result<Arc<RegisteredFile>, io::Error> {
        let meta = fstat(fd.as_fd())?;
        let inode = (meta.st_dev, meta.st_ino);
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = kept.iter().position(|(own, _)| *own == inode) {
            // The vector is in order of use.
            let entry = kept.remove(at);
            let file = Arc::clone(&entry.1);
            kept.push(entry);
            return Ok(file);
        }
        drop(kept);
        let file = Arc::new(RegisteredFile::register(driver, fd).map_err(io_error)?);
        self.close_deleted();
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let oldest = (kept.len() >= FILES_MAX).then(|| kept.remove(0));
        kept.push((inode, Arc::clone(&file)));
        drop(kept);
        drop(oldest);
        Ok(file)
    }

    /// Closes deleted files, which frees their space on the medium.
    pub fn close_deleted(&self) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_linked = |(_, file): &(Inode, Arc<RegisteredFile>)| {
            fstat(file.fd.as_fd()).is_ok_and(|meta| meta.st_nlink > 0)
        };
        let (linked, deleted) = std::mem::take(&mut *kept).into_iter().partition(is_linked);
        *kept = linked;
        // Without the lock, since closing may be slow.
        drop(kept);
        drop::<Vec<_>>(deleted);
    }

    /// Closes all files.
    pub fn clear(&self) {
        let all = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        drop(all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_another_file_is_detected() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name| dir.path().join(name);
        let fd: OwnedFd = std::fs::File::create(path("one")).unwrap().into();
        let name = name_of(&fd).unwrap();
        assert!(is_named(&name, &fd));
        std::fs::rename(path("one"), path("two")).unwrap();
        assert!(!is_named(&name, &fd), "no file");
        std::fs::write(path("one"), "another").unwrap();
        assert!(!is_named(&name, &fd), "another file");
        assert!(is_named(&name_of(&fd).unwrap(), &fd));
    }
}
