use std::fs::{self, File};
use std::io;
use std::path::Path;

use kvtier_core::Error;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use crate::data_dir::{self, Scratch};
use crate::kind_of;

/// The abilities of a file system that matter to a directory tier.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Medium {
    /// Whether files can be opened for direct I/O.
    pub direct: bool,
    /// The alignment in bytes that direct I/O needs of memory and of offsets, where the file system
    /// reports it.
    pub direct_align: Option<(u32, u32)>,
    /// Whether files without a name can be created (`O_TMPFILE`).
    pub unnamed: bool,
    /// Whether files keep user attributes.
    pub attributes: bool,
    /// Whether a file can replace another in one step, and the two be swapped.
    pub rename_swaps: bool,
    /// Whether space can be allocated for a file.
    pub fallocates: bool,
    /// Whether locks work.
    pub locks: bool,
    /// Whether locks on it concern this machine alone.
    pub local: bool,
    /// All bytes, and those that this user may still write.
    pub bytes: (u64, u64),
    /// Free inodes; 0 where the file system does not count them.
    pub inodes_free: u64,
}

impl Medium {
    /// Tries everything in a scratch directory below `path`, and removes it.
    ///
    /// # Errors
    /// The directory cannot be created or written.
    pub fn probe(path: &Path) -> Result<Self, Error> {
        let failed = |e: io::Error| {
            let what = format!("cannot probe {}", path.display());
            Error::new(kind_of(&e), what).with_cause(e, "check the path and its permissions")
        };
        let scratch = Scratch::new(path, "probe").map_err(failed)?;
        Self::probe_in(scratch.path()).map_err(failed)
    }

    fn probe_in(scratch: &Path) -> io::Result<Self> {
        use nix::fcntl::{AT_FDCWD, FallocateFlags, RenameFlags, fallocate, renameat2};
        use std::os::unix::fs::OpenOptionsExt;
        let one = scratch.join("one");
        let two = scratch.join("two");
        fs::write(&two, "two")?;
        let file = File::create(&one)?;
        let fallocates = fallocate(&file, FallocateFlags::empty(), 0, 1 << 20).is_ok();
        let mut options = fs::OpenOptions::new();
        let direct =
            options.read(true).write(true).custom_flags(nix::libc::O_DIRECT).open(&one).is_ok();
        let swap = renameat2(AT_FDCWD, &one, AT_FDCWD, &two, RenameFlags::RENAME_EXCHANGE);
        let stat = nix::sys::statvfs::statvfs(scratch)?;
        let unnamed = options.custom_flags(nix::libc::O_TMPFILE).open(scratch).is_ok();
        let attributes =
            rustix::fs::fsetxattr(&file, c"user.kvtier", b"probe", rustix::fs::XattrFlags::empty())
                .is_ok();
        Ok(Medium {
            direct,
            direct_align: direct_align(&two),
            unnamed,
            attributes,
            rename_swaps: swap.is_ok() && fs::read(&one)? == b"two",
            fallocates,
            locks: file.try_lock().is_ok(),
            local: data_dir::is_local(scratch)?,
            bytes: data_dir::sizes(scratch)?,
            inodes_free: stat.files_available(),
        })
    }
}

/// Alignments of (memory, offsets) for direct I/O; `None` where the file system or the kernel does
/// not report them.
fn direct_align(path: &Path) -> Option<(u32, u32)> {
    let found = statx(CWD, path, AtFlags::empty(), StatxFlags::DIOALIGN).ok()?;
    let is_reported = found.stx_mask & StatxFlags::DIOALIGN.bits() != 0;
    (is_reported && found.stx_dio_offset_align > 0)
        .then_some((found.stx_dio_mem_align, found.stx_dio_offset_align))
}
