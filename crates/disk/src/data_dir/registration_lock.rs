//! The registration lock.
//!
//! Processes come and go while others have the directory open. Whatever depends on which processes
//! live happens under one lock, the file `.kvtier/lock`: a process registers (creates its staging
//! directory), removes those of dead processes, writes the manifest, creates the change log, or acts
//! because it is alone. Without the lock, one process could take a staging directory that is being
//! created for an abandoned one.
//!
//! The lock is held for a few file operations. A process that is stopped with it must not stop the
//! others, so each wait is bounded; what could not be done is tried again later. Time in which the
//! waiting thread itself did not run does not count as waiting.
//!
//! The lock is released by an explicit unlock, not only by closing the file: a child that this
//! process forked meanwhile has the file open too.

use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind as Io};
use std::path::Path;
use std::time::Duration;

use super::internal_files::open_rw;

/// The registration lock's file below `.kvtier`.
pub const LOCK: &str = "lock";
/// How long a process waits for the registration lock.
pub const REGISTRATION_WAIT_MAX: Duration = Duration::from_secs(3);
/// The same when the directory is opened, which fails after that. Several processes may open it at
/// once, each of which creates files and directories on a medium that may be busy. Only a stopped
/// process holds the lock longer.
pub const OPEN_WAIT_MAX: Duration = Duration::from_secs(15);
/// The pauses between two tries to lock. Each is twice as long as the last.
const LOCK_PAUSE_MIN: Duration = Duration::from_micros(20);
const LOCK_PAUSE_MAX: Duration = Duration::from_millis(3);

/// The held registration lock; see the [module](self).
#[derive(Debug)]
pub struct RegistrationLock(File);

impl Drop for RegistrationLock {
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

/// Takes the registration lock. Waits at most [`REGISTRATION_WAIT_MAX`].
pub fn lock_registration(own: &Path) -> io::Result<RegistrationLock> {
    lock_registration_within(own, REGISTRATION_WAIT_MAX)
}

/// The same, with a wait of at most `most`.
pub fn lock_registration_within(own: &Path, most: Duration) -> io::Result<RegistrationLock> {
    lock_file_within(&own.join(LOCK), most)
}

/// Locks the file `path` in the same way, and creates it where it is missing.
pub fn lock_file_within(path: &Path, most: Duration) -> io::Result<RegistrationLock> {
    let registration = open_rw(path)?;
    lock_within(&registration, most).map_err(|e| match e.kind() {
        Io::WouldBlock => {
            let path = path.display();
            let most = most.as_secs();
            io::Error::new(
                Io::WouldBlock,
                format!("another process keeps {path} locked for more than {most} s: find it with `fuser`"),
            )
        }
        _ => e,
    })?;
    Ok(RegistrationLock(registration))
}

/// Locks a file. Waits at most `most` for the process that holds the lock.
pub fn lock_within(file: &File, most: Duration) -> io::Result<()> {
    let began = kvtier_os::now();
    lock_by(file, most, || kvtier_os::now() - began, kvtier_os::sleep)
}

/// The same by this clock. Time in which the waiting thread itself did not run does not count: an
/// eighth of the time must be pauses that a try followed.
fn lock_by(
    file: &File,
    most: Duration,
    elapsed: impl Fn() -> Duration,
    mut sleep: impl FnMut(Duration),
) -> io::Result<()> {
    let mut pause = LOCK_PAUSE_MIN;
    let mut paused = Duration::ZERO;
    loop {
        match kvtier_os::try_lock(file) {
            Ok(()) => return Ok(()),
            Err(TryLockError::Error(e)) => return Err(e),
            Err(TryLockError::WouldBlock) if elapsed() > most && paused >= most / 8 => {
                return Err(TryLockError::WouldBlock.into());
            }
            Err(TryLockError::WouldBlock) => sleep(pause),
        }
        paused += pause;
        pause = (2 * pause).min(LOCK_PAUSE_MAX);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_thread_that_did_not_run_has_not_waited_for_a_lock() {
        let dir = tempfile::tempdir().unwrap();
        let ours = open_rw(&dir.path().join("lock")).unwrap();
        let theirs = open_rw(&dir.path().join("lock")).unwrap();
        let most = Duration::from_secs(1);
        let clock = Cell::new(Duration::ZERO);
        let pauses = Cell::new(0);
        theirs.lock().unwrap();
        let passes = |time| clock.set(clock.get() + time);
        // Ten seconds pass at the first pause, and the lock is free at the third.
        let stands_still = |pause| {
            passes(pause + 10 * most);
            pauses.set(pauses.get() + 1);
            if pauses.get() == 3 {
                theirs.unlock().unwrap();
            }
        };
        lock_by(&ours, most, || clock.get(), stands_still).unwrap();
        ours.unlock().unwrap();
        theirs.lock().unwrap();
        clock.set(Duration::ZERO);
        let e = lock_by(&ours, most, || clock.get(), passes).unwrap_err();
        assert_eq!(e.kind(), Io::WouldBlock);
        assert!(clock.get() > most && clock.get() < 2 * most, "{:?}", clock.get());
    }
}
