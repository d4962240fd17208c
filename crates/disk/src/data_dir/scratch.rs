//! Temporary directories beside the chunks, for probes and benchmarks. A killed process leaves its
//! directory behind; the next process removes it.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, ErrorKind as Io};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

const PREFIXES: [&str; 4] =
    [".kvtier-doctor.", ".kvtier-probe.", ".kvtier-bench.", ".kvtier-replay."];

/// A temporary directory `.kvtier-<what>.<process>.<n>`, deleted on drop. It is locked while its
/// process lives.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    lock: File,
}

impl Scratch {
    /// Creates one in the directory `root`, for `what`: `doctor`, `probe`, `bench` or `replay`.
    /// Removes those of dead processes first.
    pub fn new(root: &Path, what: &str) -> io::Result<Self> {
        static MADE: AtomicU64 = AtomicU64::new(0);
        delete_leftovers(root);
        loop {
            let n = MADE.fetch_add(1, Ordering::Relaxed);
            let path = root.join(format!(".kvtier-{what}.{}.{n}", std::process::id()));
            match kvtier_os::create_dir(&path) {
                Err(e) if e.kind() == Io::AlreadyExists => continue,
                other => other?,
            }
            let lock = File::open(&path)?;
            // Without locks, leftovers are never deleted.
            let _ = lock.lock();
            // Another process may have removed it before it was locked.
            if fs::metadata(&path)
                .is_ok_and(|now| lock.metadata().is_ok_and(|ours| ours.ino() == now.ino()))
            {
                return Ok(Scratch { path, lock });
            }
        }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = kvtier_os::remove_dir_all(&self.path);
        // A forked child has it open too.
        let _ = self.lock.unlock();
    }
}

/// Whether this is the name of a scratch directory.
pub fn is_scratch(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| PREFIXES.iter().any(|prefix| name.starts_with(prefix)))
}

/// Removes the scratch directories of dead processes. Those that cannot be removed stay.
pub fn delete_leftovers(root: &Path) {
    let entries = kvtier_os::read_dir(root).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| is_scratch(&entry.file_name())) {
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if let Some(lock) = File::open(entry.path()).ok().filter(|_| is_dir)
            && lock.try_lock().is_ok()
        {
            let _ = kvtier_os::remove_dir_all(entry.path());
        }
    }
}
