//! The registration lock of earlier builds, which locked a file of another name; see
//! [`upgrade`](super::upgrade).

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io;
use std::path::Path;
use std::time::Duration;

use kvtier_core::{Error, ErrorKind};

use super::liveness::is_of_this_format;
use super::registration_lock::{RegistrationLock, lock_file_within};
use super::{internal_files, kind_of, live_names};

/// Its file below `.kvtier`.
pub const EARLIER_LOCK: &str = "door";

/// Locks out the processes of earlier builds where one has ever had the directory open, while its
/// manifest is written anew. Waits at most `most` for their lock. The caller holds this build's
/// registration lock.
///
/// # Errors
/// `Invalid` where a process has the directory open that may be of an earlier build.
pub fn exclude_earlier_builds(
    root: &Path,
    own: &Path,
    most: Duration,
) -> Result<Option<RegistrationLock>, Error> {
    let path = own.join(EARLIER_LOCK);
    let is_there = internal_files::exists(&path).map_err(|e| {
        Error::new(kind_of(&e), format!("cannot use {}", path.display())).with_source(e)
    })?;
    if !is_there {
        return Ok(None);
    }
    let lock = lock_earlier(own, most)?;
    refuse(root, maybe_earlier(own).map_err(cannot_read_tmp(own))?)?;
    Ok(Some(lock))
}

/// Takes the earlier builds' lock, for which it waits at most `most`. The caller holds this build's.
///
/// # Errors
/// `Invalid` where any process has the directory open, and those of the file system.
pub fn lock_earlier_within(
    root: &Path,
    own: &Path,
    most: Duration,
) -> Result<RegistrationLock, Error> {
    let lock = lock_earlier(own, most)?;
    refuse(root, live_names(&own.join("tmp")).map_err(cannot_read_tmp(own))?)?;
    Ok(lock)
}

fn lock_earlier(own: &Path, most: Duration) -> Result<RegistrationLock, Error> {
    let path = own.join(EARLIER_LOCK);
    lock_file_within(&path, most).map_err(|e| {
        Error::new(kind_of(&e), format!("cannot lock {}", path.display()))
            .with_cause(e, "stop the processes that have the directory open")
    })
}

/// The living processes that do not say that they use this build's format.
fn maybe_earlier(own: &Path) -> io::Result<BTreeSet<String>> {
    let tmp = own.join("tmp");
    let mut names = live_names(&tmp)?;
    names.retain(|name| !is_of_this_format(&tmp, name));
    Ok(names)
}

fn cannot_read_tmp(own: &Path) -> impl FnOnce(io::Error) -> Error {
    let what = format!("cannot read {}", own.join("tmp").display());
    move |e| Error::new(kind_of(&e), what).with_cause(e, "check its permissions")
}

/// Refuses a directory that these processes have open.
fn refuse(root: &Path, living: BTreeSet<String>) -> Result<(), Error> {
    if living.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = living.into_iter().collect();
    let what = format!(
        "cannot upgrade {}: processes have it open that may be of an earlier build ({}, as host.process.start.number); stop them and try \
         again",
        root.display(),
        names.join(", ")
    );
    Err(Error::new(ErrorKind::Invalid, what))
}

/// Removes the earlier builds' lock after an upgrade, which holds this build's lock and found no
/// process.
pub fn remove_earlier_lock(own: &Path) {
    // Where it cannot be removed it stays, and costs nothing.
    let _ = kvtier_os::remove_file(own.join(EARLIER_LOCK));
}

/// The same for a directory of this build's format, unless a process of an earlier build has it
/// locked or may have the directory open. An upgrade that was killed leaves the file, and so does a
/// process of an earlier build that was refused. The caller holds this build's registration lock.
pub fn remove_unused_earlier_lock(own: &Path) {
    let mut options = OpenOptions::new();
    let path = own.join(EARLIER_LOCK);
    let Ok(lock) = internal_files::open(&path, options.read(true).write(true)) else { return };
    if kvtier_os::try_lock(&lock).is_ok() {
        if maybe_earlier(own).is_ok_and(|names| names.is_empty()) {
            remove_earlier_lock(own);
        }
        // Also where a child that this process forked has it open too.
        let _ = lock.unlock();
    }
}
