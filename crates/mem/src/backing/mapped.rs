use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};

use libc::{
    MADV_HUGEPAGE, MAP_ANONYMOUS, MAP_FAILED, MAP_HUGETLB, MAP_PRIVATE, MAP_SHARED, MFD_ALLOW_SEALING, MFD_CLOEXEC,
    PROT_READ, PROT_WRITE, c_int,
};

use super::BackingKind;
use crate::{Error, ErrorKind};

/// The size of a huge page in bytes.
const HUGE: usize = 2 << 20;

/// Memory from the kernel, zeroed.
#[derive(Debug)]
pub(crate) struct Mapped {
    /// What was mapped, which may begin before `base`.
    whole: (NonNull<u8>, usize),
    base: NonNull<u8>,
    len: usize,
    kind: BackingKind,
    fd: Option<OwnedFd>,
}

// SAFETY: it owns its mapping and gives nobody access; whoever uses the address answers for it.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// `len` bytes, in huge pages where the kernel has them: set aside, else transparent, else ordinary ones.
    pub fn huge(len: usize) -> Result<Self, Error> {
        let len = len.next_multiple_of(HUGE);
        if let Ok(base) = map(len, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, None) {
            return Ok(Mapped { whole: (base, len), base, len, kind: BackingKind::HugeTlb, fd: None });
        }
        // Transparent huge pages want the alignment that only a longer mapping is sure to have somewhere.
        let whole = len + HUGE;
        let start = map(whole, MAP_PRIVATE | MAP_ANONYMOUS, None).map_err(|e| no_memory(len, e))?;
        // SAFETY: the first aligned address is less than HUGE above the start of len + HUGE bytes.
        let base = unsafe { start.add(start.as_ptr().align_offset(HUGE)) };
        // SAFETY: the range lies inside our new mapping; advice changes no contents.
        let advised = unsafe { libc::madvise(base.as_ptr().cast(), len, MADV_HUGEPAGE) } == 0;
        let kind = if advised { BackingKind::TransparentHuge } else { BackingKind::Mapped };
        Ok(Mapped { whole: (start, whole), base, len, kind, fd: None })
    }

    /// `len` bytes that other processes can map, given the descriptor; of a size that nobody can change.
    pub fn memfd(len: usize) -> Result<Self, Error> {
        // SAFETY: the name is a C string; the flags are known ones.
        let fd = unsafe { libc::memfd_create(c"kvtier".as_ptr(), MFD_CLOEXEC | MFD_ALLOW_SEALING) };
        if fd < 0 {
            return Err(no_memory(len, io::Error::last_os_error()));
        }
        // SAFETY: a descriptor that the kernel just gave us and nobody else knows.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        resize(&fd, len).map_err(|e| no_memory(len, e))?;
        // SAFETY: sealing takes flags and no pointer. A size that cannot shrink makes the mapping safe to touch.
        unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW) };
        Self::of_file(fd, len)
    }

    /// All `len` bytes of a file in memory, shared.
    pub fn of_file(fd: OwnedFd, len: usize) -> Result<Self, Error> {
        let base = map(len, MAP_SHARED, Some(fd.as_fd())).map_err(|e| no_memory(len, e))?;
        Ok(Mapped { whole: (base, len), base, len, kind: BackingKind::Memfd, fd: Some(fd) })
    }

    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn kind(&self) -> BackingKind {
        self.kind
    }

    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: our own mapping, whole, unmapped once.
        unsafe { libc::munmap(self.whole.0.as_ptr().cast(), self.whole.1) };
    }
}

/// Sets the size of a file in memory.
pub(crate) fn resize(fd: &OwnedFd, len: usize) -> io::Result<()> {
    // SAFETY: takes a descriptor and a number.
    match unsafe { libc::ftruncate(fd.as_raw_fd(), len as libc::off_t) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn map(len: usize, flags: c_int, fd: Option<BorrowedFd<'_>>) -> io::Result<NonNull<u8>> {
    let fd = fd.map_or(-1, |fd| fd.as_raw_fd());
    // SAFETY: a new mapping at an address of the kernel's choice touches no memory that is in use.
    let at = unsafe { libc::mmap(ptr::null_mut(), len.max(1), PROT_READ | PROT_WRITE, flags, fd, 0) };
    if at == MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(at.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))
}

/// Makes every page of the range be there now.
pub(crate) fn populate(base: NonNull<u8>, len: usize) -> Result<(), Error> {
    const MADV_POPULATE_WRITE: c_int = 23;
    // SAFETY: the range is a whole backing, page-aligned at its start; populating changes no contents.
    if unsafe { libc::madvise(base.as_ptr().cast(), len, MADV_POPULATE_WRITE) } == 0 {
        return Ok(());
    }
    let e = io::Error::last_os_error();
    let what = format!("cannot make {len} bytes of memory resident; ask for less, or do without prefault");
    Err(Error::new(ErrorKind::Io, what).with_source(e))
}

fn no_memory(len: usize, e: io::Error) -> Error {
    let what = format!("cannot map {len} bytes for an arena; make it smaller, or raise the limit of memory");
    Error::new(ErrorKind::Io, what).with_source(e)
}
