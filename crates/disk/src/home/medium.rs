//! What the file system under a directory says of itself.

use std::io;
use std::path::Path;

use nix::sys::statfs::statfs;
use nix::sys::statvfs::{FsFlags, statvfs};

use super::Home;

/// Magic numbers of file systems where a lock is a message to a server: NFS, SMB (two), FUSE, Ceph, Lustre, BeeGFS, GPFS.
const REMOTE: [i64; 8] =
    [0x6969, 0xff53_4d42, 0xfe53_4d42, 0x6573_5546, 0x00c3_6400, 0x0bd0_0bd0, 0x1983_0326, 0x4750_4653];

/// Whether locks on this file system are an affair of this machine alone.
pub fn is_local(path: &Path) -> io::Result<bool> {
    Ok(!REMOTE.contains(&statfs(path)?.filesystem_type().0))
}

/// Whether the file system is mounted read-only there.
pub fn is_read_only(path: &Path) -> bool {
    statvfs(path).is_ok_and(|stat| stat.flags().contains(FsFlags::ST_RDONLY))
}

/// (all, free for us) bytes of the file system.
pub fn sizes(path: &Path) -> io::Result<(u64, u64)> {
    let stat = statfs(path)?;
    let unit = stat.block_size().unsigned_abs();
    Ok((stat.blocks() * unit, stat.blocks_available() * unit))
}

impl Home {
    /// Free bytes of the file system.
    pub fn free_bytes(&self) -> io::Result<u64> {
        Ok(sizes(self.root())?.1)
    }
}
