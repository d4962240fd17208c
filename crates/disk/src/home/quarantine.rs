use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, UNIX_EPOCH};

use kvtier_key::Digest;

use super::Home;
use crate::name;

/// The most files kept for a look at what went wrong.
const FILES_MAX: usize = 64;
/// How long they are kept.
const AGE_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

impl Home {
    /// Moves a chunk's file that fails its checks out of the way; when the quarantine is full, deletes it.
    pub fn set_aside(&self, digest: &Digest, len: u64) -> io::Result<()> {
        let (quarantine, path) = (self.own().join("quarantine"), name::path(self.root(), digest, len));
        // A file that is damaged and in the way is worth less than its room: where it cannot be kept for a look, it goes.
        let full = fs::read_dir(&quarantine).map_or(true, |files| files.take(FILES_MAX).count() == FILES_MAX);
        match path.file_name() {
            Some(name) if !full => fs::rename(&path, quarantine.join(name)).or_else(|_| fs::remove_file(&path)),
            _ => fs::remove_file(path),
        }
    }

    /// Deletes what has been in quarantine for long.
    pub fn trim_quarantine(&self) -> io::Result<()> {
        for file in fs::read_dir(self.own().join("quarantine"))? {
            let file = file?;
            // The change of its name is the last change of its inode.
            let moved = UNIX_EPOCH + Duration::from_secs(file.metadata()?.ctime().max(0).cast_unsigned());
            if moved.elapsed().is_ok_and(|age| age > AGE_MAX) {
                fs::remove_file(file.path())?;
            }
        }
        Ok(())
    }
}
