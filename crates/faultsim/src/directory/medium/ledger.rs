//! What the ledger counts, read only where it changed: that is asked after most turns.

use std::path::Path;

use kvtier_disk::inspect::ledger_bytes;

use super::Medium;
use super::names::Entry;

/// What the ledger counted after some change.
#[derive(Clone, Copy, Debug)]
pub struct CountedBytes {
    /// Which file it was.
    place: u64,
    /// How often that had changed.
    changes: u64,
    bytes: Option<u64>,
}

impl Medium {
    /// The bytes that the ledger counts; `None` where it is missing or damaged. Only for the scheduler: a process
    /// would make calls.
    pub fn ledger_bytes(&self) -> Option<u64> {
        let mut state = self.lock();
        let Some(Entry::File(number)) = state.names.get(Path::new(".kvtier/ledger")) else {
            return None;
        };
        let file = state.files.get(&number)?;
        let (place, changes) = (file.place, file.changes);
        if let Some(known) = state.counted
            && (known.place, known.changes) == (place, changes)
        {
            return known.bytes;
        }
        let bytes = ledger_bytes(self.root()).ok().flatten();
        state.counted = Some(CountedBytes { place, changes, bytes });
        bytes
    }
}
