use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::mapped::{Mapped, resize};
use crate::{Error, ErrorKind};

const DIR: &str = "/dev/shm";

/// A POSIX shared-memory segment, named `PREFIX.PID.START.N`: who made it can be told from the name, and so whether it is dead.
#[derive(Debug)]
pub(crate) struct Named {
    map: Mapped,
    path: PathBuf,
}

impl Named {
    /// A new segment of `len` bytes; it goes when this is dropped, or, after a death, when somebody calls [`sweep`].
    pub fn new(prefix: &str, len: usize) -> Result<Self, Error> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        check(prefix)?;
        let pid = std::process::id();
        let start = start_of(pid).map_err(|e| failed(prefix, e))?;
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = Path::new(DIR).join(format!("{prefix}.{pid}.{start}.{n}"));
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path);
        let fd = file.map_err(|e| failed(prefix, e))?.into();
        let made = resize(&fd, len).map_err(|e| failed(prefix, e)).and_then(|()| Mapped::of_file(fd, len));
        match made {
            Ok(map) => Ok(Named { map, path }),
            Err(e) => {
                let _ = fs::remove_file(&path);
                Err(e)
            }
        }
    }

    pub fn map(&self) -> &Mapped {
        &self.map
    }

    /// The name that others open it by.
    pub fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// What [`sweep`] did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Swept {
    /// Names of segments that were removed: their makers are dead.
    pub removed: Vec<String>,
    /// Names of segments whose makers live.
    pub kept: Vec<String>,
}

/// Removes named segments of `prefix` whose makers are dead: no process has their number, or another one that began at another time.
/// Segments with names of any other form are left alone.
pub fn sweep(prefix: &str) -> Result<Swept, Error> {
    check(prefix)?;
    let mut swept = Swept::default();
    for entry in fs::read_dir(DIR).map_err(|e| failed(prefix, e))? {
        let entry = entry.map_err(|e| failed(prefix, e))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some((pid, start)) = maker(&name, prefix) else { continue };
        match start_of(pid) {
            Ok(now) if now == start => swept.kept.push(name),
            Err(e) if e.kind() != io::ErrorKind::NotFound => swept.kept.push(name),
            _ => match fs::remove_file(entry.path()) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(failed(prefix, e)),
                _ => swept.removed.push(name),
            },
        }
    }
    Ok(swept)
}

/// Process and start time of the maker of a segment.
fn maker(name: &str, prefix: &str) -> Option<(u32, u64)> {
    let mut parts = name.strip_prefix(prefix)?.strip_prefix('.')?.split('.');
    let (pid, start, n) = (parts.next()?, parts.next()?, parts.next()?);
    n.parse::<u64>().ok()?;
    if parts.next().is_some() {
        return None;
    }
    Some((pid.parse().ok()?, start.parse().ok()?))
}

/// When a process began, in clock ticks since boot. One that has ended and waits for its parent is not found.
fn start_of(pid: u32) -> io::Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name of the program, in brackets, may hold anything; the 20th field after it is the start time.
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    if matches!(rest.split_whitespace().next(), Some("Z" | "X")) {
        return Err(io::ErrorKind::NotFound.into());
    }
    let start = rest.split_whitespace().nth(19).and_then(|start| start.parse().ok());
    start.ok_or_else(|| io::Error::other(format!("/proc/{pid}/stat has another form")))
}

fn check(prefix: &str) -> Result<(), Error> {
    let fine = !prefix.is_empty()
        && prefix.len() <= 64
        && prefix.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    let what = || format!("the prefix {prefix:?} of a shared-memory name must be 1 to 64 letters, digits, '_' or '-'");
    fine.then_some(()).ok_or_else(|| Error::new(ErrorKind::Invalid, what()))
}

fn failed(prefix: &str, e: io::Error) -> Error {
    let what =
        format!("cannot use shared memory {DIR}/{prefix}.*; check that it is mounted, writable and large enough");
    Error::new(ErrorKind::Io, what).with_source(e)
}
