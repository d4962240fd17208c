use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};

use libc::{
    MADV_POPULATE_WRITE, MAP_ANONYMOUS, MAP_FAILED, MAP_HUGETLB, MAP_PRIVATE, MAP_SHARED,
    PROT_READ, PROT_WRITE, c_int,
};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::{BackingKind, numa, transparent_huge_pages};
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
    file: Option<File>,
}

// SAFETY: it owns its mapping and gives no access; users of the address are `unsafe`.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// `len` bytes in pages of 4 KiB that come as they are touched.
    pub fn plain(len: usize) -> Result<Self, Error> {
        let base = map(len, MAP_PRIVATE | MAP_ANONYMOUS, None).map_err(|e| no_memory(len, e))?;
        Ok(Mapped { whole: (base, len), base, len, kind: BackingKind::Mapped, file: None })
    }

    /// `len` bytes in huge pages where the kernel has them: reserved, else transparent, else
    /// ordinary ones; of `node`, if given.
    pub fn huge(len: usize, node: Option<u32>) -> Result<Self, Error> {
        let len = len.next_multiple_of(HUGE);
        if let Ok(base) = map(len, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, None) {
            let got =
                Mapped { whole: (base, len), base, len, kind: BackingKind::HugeTlb, file: None };
            // SAFETY: the range is our new mapping.
            unsafe { numa::bind(base, len, node) }?;
            // Reserved pages count for all nodes and control groups together: a page that is
            // not there for us after all would be a SIGBUS when it is touched. So all
            // are taken now, or none.
            if populate(base, len).is_ok() {
                return Ok(got);
            }
        }
        Self::transparent(len)
    }

    /// `len` bytes for which huge pages are asked; ordinary ones where the kernel has none.
    pub fn transparent(len: usize) -> Result<Self, Error> {
        let len = len.next_multiple_of(HUGE);
        // Huge pages want the alignment that only a longer mapping is sure to have somewhere.
        let whole = len + HUGE;
        let start = map(whole, MAP_PRIVATE | MAP_ANONYMOUS, None).map_err(|e| no_memory(len, e))?;
        // SAFETY: the first aligned address is less than HUGE above the start of len + HUGE bytes.
        let base = unsafe { start.add(start.as_ptr().align_offset(HUGE)) };
        // SAFETY: the range is inside our new mapping.
        let advised = unsafe { transparent_huge_pages::advise(base, len) };
        // The kernel takes the advice even where an operator has switched huge pages off.
        let kind = if advised && transparent_huge_pages::is_on() {
            BackingKind::TransparentHuge
        } else {
            BackingKind::Mapped
        };
        Ok(Mapped { whole: (start, whole), base, len, kind, file: None })
    }

    /// `len` bytes that other processes can map, given the descriptor; its size cannot
    /// change.
    pub fn memfd(len: usize) -> Result<Self, Error> {
        let make = || {
            let file = File::from(memfd_create(
                c"kvtier",
                MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING,
            )?);
            file.set_len(len as u64)?;
            // A file that another process cut would be a SIGBUS on access to the mapping.
            fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW))?;
            Ok(file)
        };
        Self::of_file(make().map_err(|e| no_memory(len, e))?, len)
    }

    /// All `len` bytes of a file in memory, shared.
    pub fn of_file(file: File, len: usize) -> Result<Self, Error> {
        let base = map(len, MAP_SHARED, Some(file.as_fd())).map_err(|e| no_memory(len, e))?;
        Ok(Mapped { whole: (base, len), base, len, kind: BackingKind::Memfd, file: Some(file) })
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
        self.file.as_ref().map(AsFd::as_fd)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: our own mapping, whole, unmapped once.
        unsafe { libc::munmap(self.whole.0.as_ptr().cast(), self.whole.1) };
    }
}

fn map(len: usize, flags: c_int, fd: Option<BorrowedFd<'_>>) -> io::Result<NonNull<u8>> {
    let fd = fd.map_or(-1, |fd| fd.as_raw_fd());
    // SAFETY: a new mapping at an address of the kernel's choice touches no memory that is in use.
    let at =
        unsafe { libc::mmap(ptr::null_mut(), len.max(1), PROT_READ | PROT_WRITE, flags, fd, 0) };
    if at == MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(at.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))
}

/// Makes every page of the range, which is a whole backing, be there now.
pub(crate) fn populate(base: NonNull<u8>, len: usize) -> Result<(), Error> {
    // SAFETY: the range is a whole backing, page-aligned at its start; populating changes no
    // contents.
    if unsafe { libc::madvise(base.as_ptr().cast(), len, MADV_POPULATE_WRITE) } == 0 {
        return Ok(());
    }
    let e = io::Error::last_os_error();
    let error = Error::new(ErrorKind::Io, format!("cannot make {len} bytes of memory resident"));
    Err(error.with_cause(e, "ask for less, or do without prefault"))
}

fn no_memory(len: usize, e: io::Error) -> Error {
    let error = Error::new(ErrorKind::Io, format!("cannot map {len} bytes for an arena"));
    error.with_cause(e, "make it smaller, or raise the limit of memory")
}
