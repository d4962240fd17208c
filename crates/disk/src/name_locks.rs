//! The locks that guard the chunks.
//!
//! A chunk's state has two copies: its file under its name, and its entry in the index. Every change
//! of one chunk makes both under the lock of the chunk's *name*, so that the second of two concurrent
//! changes sees all of the first. The index has a lock of its own, which operations on other
//! chunks share; it is held for steps in memory alone.
//!
//! Order: name, then [`LedgerValidity::moving`](crate::ledger::validity::LedgerValidity::moving), then the
//! corrupt files, then the index. No thread holds any of these locks while a listener is notified.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use kvtier_index::Index;
use kvtier_key::Digest;

use crate::corrupt_file::CorruptFile;
use crate::data_dir::FileId;

/// How many locks guard the chunks' names. Two chunks may share one.
const NAMES: usize = 64;

/// The chunks of a tier, behind their locks; see the [module](self).
#[derive(Debug)]
pub struct NameLocks {
    names: [Mutex<()>; NAMES],
    /// Files that failed a check and are still under their chunks' names.
    corrupt_files: Mutex<HashMap<Digest, FileId>>,
    /// Those that are to be moved into quarantine.
    unmoved_files: Mutex<Vec<CorruptFile>>,
    index: Mutex<Index>,
}

impl NameLocks {
    pub fn new(index: Index) -> Self {
        NameLocks {
            names: [const { Mutex::new(()) }; NAMES],
            corrupt_files: Mutex::default(),
            unmoved_files: Mutex::default(),
            index: Mutex::new(index),
        }
    }

    /// Locks a chunk's name. Held while a file gets or loses its name and the index follows. Never
    /// taken on a mover's thread, which must not wait for system calls of others.
    pub fn name(&self, digest: &Digest) -> MutexGuard<'_, ()> {
        lock(&self.names[digest.as_bytes()[1] as usize % NAMES])
    }

    /// Locks the corrupt files.
    pub fn corrupt_files(&self) -> MutexGuard<'_, HashMap<Digest, FileId>> {
        lock(&self.corrupt_files)
    }

    /// Locks the list of corrupt files that are to be moved into quarantine. No other lock is taken
    /// while it is held.
    pub fn unmoved_files(&self) -> MutexGuard<'_, Vec<CorruptFile>> {
        lock(&self.unmoved_files)
    }

    /// Locks the index.
    pub fn index(&self) -> MutexGuard<'_, Index> {
        lock(&self.index)
    }

    /// The index, for a reader that locks it many times for a short while.
    pub fn index_mutex(&self) -> &Mutex<Index> {
        &self.index
    }
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A thread that panicked must not end the tier for all others.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
