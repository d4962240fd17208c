//! Which of the processes live that have the directory open.
//!
//! A process registers with a staging directory, and holds a kernel lock on the file `alive` in it.
//! The kernel releases the lock when the process ends, however it ends. So a peer that gets the lock
//! has proof of death, and may delete the directory and release the bytes of its files.
//!
//! The lock alone is not enough in two cases:
//!
//! - A child that a process forked shares its locks, and keeps them when the process is killed.
//!   Therefore `alive` also names the process by pid, start time, namespaces and boot id. A process
//!   that certainly runs no more is dead, whichever process holds the lock.
//! - On a file system that hosts share, locks may not reach other hosts. There the directory of
//!   another host is stale only when its `alive` was not touched for a day.

use std::collections::BTreeSet;
use std::fs::{DirEntry, File, OpenOptions};
use std::io::{self, ErrorKind as Io};
use std::path::Path;
use std::time::Duration;

use super::format::FORMAT;
use super::process_identity::Process;
use super::{internal_files, is_local, open_rw};

/// The staging directory of another host is stale when its heartbeat is older than this: locks may
/// not reach across hosts.
const OTHER_HOST_DEAD_AFTER: Duration = Duration::from_secs(24 * 3600);

/// The first line of the file `alive`.
pub const ALIVE: &str = "locked while its process lives\n";
/// The most bytes of `alive` that are read.
const ALIVE_BYTES_MAX: u64 = 4096;

/// Creates and locks the file `alive`.
pub fn create_alive(staging: &Path) -> io::Result<File> {
    let alive = open_rw(&staging.join("alive"))?;
    alive.lock()?;
    #[cfg(test)]
    fail_while_full()?;
    kvtier_os::write_all_at(&alive, alive_text(None).as_bytes(), 0)?;
    Ok(alive)
}

#[cfg(test)]
thread_local! {
    /// How many of this thread's next registrations find the device full.
    pub static FULL_FOR: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

#[cfg(test)]
fn fail_while_full() -> io::Result<()> {
    let left = FULL_FOR.get();
    FULL_FOR.set(left.saturating_sub(1));
    if left > 0 { Err(Io::StorageFull.into()) } else { Ok(()) }
}

/// The line of `alive` that states the directory's format. Builds of formats 1 and 2 write none.
fn format_line() -> String {
    format!("format: {FORMAT}")
}

/// The line of `alive` of a build that reads encoded chunks. Earlier builds write none.
const READS_ENCODED: &str = "reads: encoded";

/// The text of `alive`. What changes while the process lives is last.
pub fn alive_text(capacity_bytes: Option<u64>) -> String {
    let process = Process::this().map(|process| format!("{}\n", process.text()));
    let cap = capacity_bytes.map(|bytes| format!("cap: {bytes}\n"));
    let format = format_line();
    let (process, cap) = (process.unwrap_or_default(), cap.unwrap_or_default());
    format!("{ALIVE}{format}\n{READS_ENCODED}\n{process}{cap}")
}

pub fn host() -> io::Result<String> {
    if let Some(process) = kvtier_os::identity() {
        return Ok(process.host);
    }
    let host = nix::unistd::gethostname()?;
    Ok(host.to_string_lossy().replace(['/', '.'], "_"))
}

/// The names of the staging directories whose processes live.
pub fn live_names(tmp: &Path) -> io::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for staging in staging_dirs(tmp)? {
        let name = staging.file_name().to_string_lossy().into_owned();
        if !is_stale(&staging.path(), &name)? {
            names.insert(name);
        }
    }
    Ok(names)
}

/// The cap of the process with this staging directory; `None` for a process without a tier.
pub fn read_cap(tmp: &Path, name: &str) -> Option<u64> {
    let bytes = internal_files::read(&tmp.join(name).join("alive"), ALIVE_BYTES_MAX).ok()?;
    String::from_utf8(bytes).ok()?.lines().find_map(|line| line.strip_prefix("cap: ")?.parse().ok())
}

/// Whether the living process with this staging directory is certainly of a build of this format.
pub fn is_of_this_format(tmp: &Path, name: &str) -> bool {
    has_line(tmp, name, &format_line())
}

/// The living processes that may be of builds that do not read encoded chunks.
pub fn names_without_encodings(tmp: &Path) -> io::Result<BTreeSet<String>> {
    let mut names = live_names(tmp)?;
    names.retain(|name| !has_line(tmp, name, READS_ENCODED));
    Ok(names)
}

fn has_line(tmp: &Path, name: &str, wanted: &str) -> bool {
    let bytes = internal_files::read(&tmp.join(name).join("alive"), ALIVE_BYTES_MAX);
    let text = bytes.ok().and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default();
    text.lines().any(|line| line == wanted)
}

/// All staging directories. Other files are ignored.
pub fn staging_dirs(tmp: &Path) -> io::Result<Vec<DirEntry>> {
    let all = kvtier_os::read_dir(tmp)?.collect::<io::Result<Vec<_>>>()?;
    Ok(all.into_iter().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).collect())
}

/// Whether the directory's process is dead; see the [module](self). On a local file system the lock
/// decides, whatever the host's name: containers have a new name at each start.
pub fn is_stale(staging: &Path, name: &str) -> io::Result<bool> {
    let alive = staging.join("alive");
    // A file that cannot be written can still be locked.
    let opened = internal_files::open(&alive, OpenOptions::new().write(true));
    let file = match opened.or_else(|_| internal_files::open_to_read(&alive)) {
        Ok(file) => file,
        // No kvtier process locks anything but a regular file.
        Err(e) => return Ok(e.kind() == Io::NotFound || internal_files::is_not_a_file(&e)),
    };
    if kvtier_os::try_lock(&file).is_err() {
        // A forked child may hold the lock of a killed process.
        let bytes = internal_files::read(&alive, ALIVE_BYTES_MAX).unwrap_or_default();
        let noted =
            String::from_utf8(bytes).ok().and_then(|text| text.lines().find_map(Process::parse));
        return Ok(noted.is_some_and(|process| process.is_gone()));
    }
    // At once: a forked child may have the file open too.
    // The lock was free, so its process is dead, or on a host whose locks do not reach this one.
    file.unlock()?;
    // On a local file system the lock is proof. So it is for a directory of this host on a shared
    // one.
    if is_local(staging)? || name.split('.').next() == Some(&host()?) {
        return Ok(true);
    }
    // Another host's lock may not be visible here. Its heartbeats are.
    let shown = file.metadata()?.modified()?;
    let since = kvtier_os::wall().duration_since(shown);
    Ok(since.is_ok_and(|since| since > OTHER_HOST_DEAD_AFTER))
}
