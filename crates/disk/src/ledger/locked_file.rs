//! What the ledger needs of its file: a lock, and a few bytes. A model test keeps them in memory.

use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use crate::data_dir::lock_within;

/// A file that several processes have open.
pub trait LockedFile: Debug {
    /// Locks it, but waits no longer than `most` for another process: `WouldBlock`.
    fn lock_within(&self, most: Duration) -> io::Result<()>;

    /// Unlocks it.
    fn unlock(&self) -> io::Result<()>;

    /// Reads its first bytes: `UnexpectedEof` where it is shorter.
    fn read(&self, bytes: &mut [u8]) -> io::Result<()>;

    /// Replaces its first bytes.
    fn write(&self, bytes: &[u8]) -> io::Result<()>;
}

impl LockedFile for File {
    fn lock_within(&self, most: Duration) -> io::Result<()> {
        lock_within(self, most)
    }

    fn unlock(&self) -> io::Result<()> {
        File::unlock(self)
    }

    fn read(&self, bytes: &mut [u8]) -> io::Result<()> {
        self.read_exact_at(bytes, 0)
    }

    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        kvtier_os::write_all_at(self, bytes, 0)
    }
}
