//! Changes of the total that wait for the ledger's lock.

use super::file_contents::LedgerContents;

/// Changes that are not in the file yet.
#[derive(Debug, Default)]
pub struct PendingChanges {
    pub added: u64,
    pub removed: u64,
    /// The generation in which `removed` was counted.
    pub generation: u64,
}

impl PendingChanges {
    /// Notes bytes that went in a generation. Generations grow: what went in an older one than
    /// another is dropped, which this answers.
    pub fn remove(&mut self, bytes: u64, generation: u64) -> bool {
        // Bytes of an older generation were either counted by the recount or are gone; in both
        // cases their release must not count.
        if generation < self.generation && self.removed > 0 {
            return true;
        }
        let is_stale = generation > self.generation && self.removed > 0;
        self.removed = if is_stale { bytes } else { self.removed + bytes };
        self.generation = generation;
        is_stale
    }

    /// The total with these changes, and whether any had to be dropped.
    pub fn applied(&self, contents: LedgerContents) -> (u64, bool) {
        let is_stale = self.removed > 0 && self.generation != contents.generation;
        let removed = if is_stale { 0 } else { self.removed };
        (contents.total.saturating_add(self.added).saturating_sub(removed), is_stale)
    }
}
