//! Removes the segments of dead processes in `/dev/shm`.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::named::{DIR, check, failed, maker, start_of};
use crate::Error;

/// What [`sweep`] did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Swept {
    /// Names of segments that were removed: their makers are dead.
    pub removed: Vec<String>,
    /// Names of segments whose makers live, or may live.
    pub kept: Vec<String>,
}

/// Removes named segments of `prefix` whose makers are dead: no process has their pid, or
/// one that started at another time, and their lock is free. Makers in other
/// containers hold it, and so do processes that inherited the descriptor. Segments with names of any other
/// form are left alone.
pub fn sweep(prefix: &str) -> Result<Swept, Error> {
    check(prefix)?;
    let mut swept = Swept::default();
    for entry in fs::read_dir(DIR).map_err(|e| failed(prefix, e))? {
        let entry = entry.map_err(|e| failed(prefix, e))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some((pid, start)) = maker(&name, prefix) else { continue };
        if lives(pid, start) {
            swept.kept.push(name);
            continue;
        }
        match remove_unlocked(&entry.path()) {
            Ok(()) => swept.removed.push(name),
            // Another sweep was faster.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(_) => swept.kept.push(name),
        }
    }
    Ok(swept)
}

/// Whether the process is alive; also if this process cannot see.
fn lives(pid: u32, start: u64) -> bool {
    match start_of(pid) {
        Ok(now) => now == start,
        Err(e) => e.kind() != io::ErrorKind::NotFound,
    }
}

fn remove_unlocked(path: &Path) -> io::Result<()> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)?;
    file.try_lock()?;
    fs::remove_file(path)
}
