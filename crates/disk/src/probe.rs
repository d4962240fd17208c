use std::fs::{self, File};
use std::io;
use std::path::Path;

use kvtier_core::Error;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use crate::data_dir::{self, Scratch};
use crate::kind_of;

/// What a file system can do for a directory tier.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Medium {
    /// Whether files can be opened for direct I/O.
    pub direct: bool,
    /// What direct I/O wants memory and offsets to be multiples of, in bytes, where the file
    /// system says so.
    pub direct_align: Option<(u32, u32)>,
    /// Whether files can be made that have no name yet.
    pub unnamed: bool,
    /// Whether files take attributes of ours.
    pub attributes: bool,
    /// Whether a file can replace another in one step, and the two be swapped.
    pub rename_swaps: bool,
    /// Whether room can be set aside for a file.
    pub fallocates: bool,
    /// Whether locks work.
    pub locks: bool,
    /// Whether it is this machine's own.
    pub local: bool,
    /// All bytes, and those free for us.
    pub bytes: (u64, u64),
    /// Free inodes; 0 where the file system does not count them.
    pub inodes_free: u64,
}

impl Medium {
    /// Tries everything in a directory of its own below `path`, and removes it again.
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
        let (one, two) = (scratch.join("one"), scratch.join("two"));
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

/// Multiples for (memory, offsets) of direct I/O; `None` where the file system or the kernel does
/// not say.
fn direct_align(path: &Path) -> Option<(u32, u32)> {
    let found = statx(CWD, path, AtFlags::empty(), StatxFlags::DIOALIGN).ok()?;
    let told = found.stx_mask & StatxFlags::DIOALIGN.bits() != 0;
    (told && found.stx_dio_offset_align > 0)
        .then_some((found.stx_dio_mem_align, found.stx_dio_offset_align))
}
