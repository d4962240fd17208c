//! Unfinished files that could not be deleted. They are tried again in each round of the maintenance;
//! until then the ledger counts their bytes.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::data_dir::Draft;

/// Files of one save.
#[derive(Debug)]
pub struct Undeleted {
    pub files: Vec<Draft>,
    /// What the ledger counts for them together.
    pub counted_bytes: u64,
}

/// All of them.
#[derive(Debug, Default)]
pub struct UndeletedFiles(Mutex<Vec<Undeleted>>);

impl UndeletedFiles {
    pub fn lock(&self) -> MutexGuard<'_, Vec<Undeleted>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
