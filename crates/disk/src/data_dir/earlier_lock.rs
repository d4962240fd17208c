//! The registration lock of earlier builds, which locked a file of another name; see
//! [`upgrade`](super::upgrade).

use std::fs;
use std::path::Path;
use std::time::Duration;

use kvtier_core::{Error, ErrorKind};

use super::{
    OPEN_WAIT_MAX, RegistrationLock, internal_files, kind_of, live_names, lock_file_within,
};

/// Its file below `.kvtier`.
pub const EARLIER_LOCK: &str = "door";

/// Locks out the processes of earlier builds where one has ever had the directory open, while its
/// manifest is written anew. The caller holds this build's registration lock.
///
/// # Errors
/// `Invalid` where processes have the directory open, which may be of an earlier build.
pub fn exclude_earlier_builds(root: &Path, own: &Path) -> Result<Option<RegistrationLock>, Error> {
    let path = own.join(EARLIER_LOCK);
    let is_there = internal_files::exists(&path).map_err(|e| {
        Error::new(kind_of(&e), format!("cannot use {}", path.display())).with_source(e)
    })?;
    if is_there { lock_earlier_within(root, own, OPEN_WAIT_MAX).map(Some) } else { Ok(None) }
}

/// Takes the earlier builds' lock, for which it waits at most `most`. The caller holds this build's.
///
/// # Errors
/// `Invalid` where processes have the directory open, and those of the file system.
pub fn lock_earlier_within(
    root: &Path,
    own: &Path,
    most: Duration,
) -> Result<RegistrationLock, Error> {
    let path = own.join(EARLIER_LOCK);
    let tmp = own.join("tmp");
    let lock = lock_file_within(&path, most).map_err(|e| {
        Error::new(kind_of(&e), format!("cannot lock {}", path.display()))
            .with_cause(e, "stop the processes that have the directory open")
    })?;
    let living = live_names(&tmp).map_err(|e| {
        Error::new(kind_of(&e), format!("cannot read {}", tmp.display()))
            .with_cause(e, "check its permissions")
    })?;
    if living.is_empty() {
        return Ok(lock);
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

/// Removes the earlier builds' lock from a directory of this build's format. An upgrade that was
/// killed leaves it, and so does a process of an earlier build that was refused.
pub fn remove_earlier_lock(own: &Path) {
    // Where it cannot be removed it stays, and costs nothing.
    let _ = fs::remove_file(own.join(EARLIER_LOCK));
}
