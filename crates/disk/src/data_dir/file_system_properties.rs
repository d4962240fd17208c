//! Properties of the file system under a directory.

use std::io;
use std::path::Path;

use nix::sys::statfs::statfs;
use nix::sys::statvfs::{FsFlags, statvfs};

use super::DataDir;

/// Magic numbers of file systems whose locks are kept by this machine's kernel alone: ext2 to ext4,
/// XFS, Btrfs, tmpfs, ramfs, overlayfs, F2FS, ZFS, bcachefs, JFS, ReiserFS, NILFS2, UBIFS,
/// eCryptfs, FAT, exFAT, NTFS (two), and the read-only SquashFS and EROFS. Any other may be
/// shared by hosts: there a lock may be a message to a server, or may not reach other hosts at all.
const LOCAL: [i64; 20] = [
    0xef53,
    0x5846_5342,
    0x9123_683e,
    0x0102_1994,
    0x8584_58f6,
    0x794c_7630,
    0xf2f5_2010,
    0x2fc1_2fc1,
    0xca45_1a4e,
    0x3153_464a,
    0x5265_4973,
    0x3434,
    0x2405_1905,
    0xf15f,
    0x4d44,
    0x2011_bab0,
    0x5346_544e,
    0x7366_746e,
    0x7371_7368,
    0xe0f5_e1e2,
];

/// Whether locks on this file system concern this machine alone.
pub fn is_local(path: &Path) -> io::Result<bool> {
    Ok(LOCAL.contains(&statfs(path)?.filesystem_type().0))
}

/// Whether the file system is mounted read-only there.
pub fn is_read_only(path: &Path) -> bool {
    statvfs(path).is_ok_and(|stat| stat.flags().contains(FsFlags::ST_RDONLY))
}

/// (all, free for us) bytes of the file system.
pub fn sizes(path: &Path) -> io::Result<(u64, u64)> {
    kvtier_os::sizes(path)
}

impl DataDir {
    /// Free bytes of the file system.
    pub fn free_bytes(&self) -> io::Result<u64> {
        Ok(sizes(self.root())?.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hosts_may_share_is_not_local() {
        // NFS, SMB, 9p, FUSE, Ceph, Lustre, BeeGFS, GPFS, OCFS2, GFS2, Weka, AFS, VirtualBox, and
        // one that does not exist.
        let shared = [
            0x6969,
            0xff53_4d42,
            0xfe53_4d42,
            0x0102_1997,
            0x6573_5546,
            0x00c3_6400,
            0x0bd0_0bd0,
            0x1983_0326,
            0x4750_4653,
            0x7461_636f,
            0x0116_1970,
            0x1803_1977,
            0x5346_414f,
            0x786f_4256,
            0x1234_5678,
        ];
        assert!(shared.iter().all(|magic| !LOCAL.contains(magic)));
        // Of those that are, the one that every machine has.
        assert!(is_local(Path::new("/dev/shm")).unwrap_or(true));
    }
}
