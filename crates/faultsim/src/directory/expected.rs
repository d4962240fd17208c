//! What is certain about a chunk when an operation on it begins.

use super::Shared;
use super::process::SimProcess;

/// What was certain about a chunk when an operation on it began.
#[derive(Debug)]
pub struct Expected {
    pub n: u64,
    /// The number of saves so far, if it was removed.
    pub removed: Option<u64>,
    /// The number of its file.
    pub file: Option<u64>,
    /// The process holds it.
    pub is_held: bool,
}

impl Expected {
    pub fn of(shared: &Shared, process: &SimProcess, n: u64) -> Self {
        Expected {
            n,
            removed: shared.model().is_removed(n),
            file: shared.chunk_files.file_of(n),
            is_held: shared.chunk_files.is_held(n, process.number, shared.world.elapsed()),
        }
    }
}
