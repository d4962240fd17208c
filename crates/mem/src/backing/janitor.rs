//! Removes what the dead left behind in `/dev/shm`, and nothing of the living.

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
    /// Names of segments whose makers live, or cannot be told to be dead.
    pub kept: Vec<String>,
}

/// Removes named segments of `prefix` whose makers are dead: no process has their number, or
/// another one that began at another time; and nobody holds their lock, as makers in other
/// containers do, and processes that inherited the descriptor. Segments with names of any other
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

/// Whether the process is there, as far as this one can see; when in doubt, it is.
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
