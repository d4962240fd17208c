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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_went_in_an_older_generation_than_another_is_dropped() {
        let mut changes = PendingChanges::default();
        assert!(!changes.remove(5, 2), "there is none to drop");
        assert!(!changes.remove(3, 2));
        assert_eq!((changes.removed, changes.generation), (8, 2), "of one generation both count");
        assert!(changes.remove(1, 1));
        assert_eq!((changes.removed, changes.generation), (8, 2));
        assert!(changes.remove(4, 3), "the first two");
        assert_eq!((changes.removed, changes.generation), (4, 3));
        // None went in the newer one.
        let mut changes = PendingChanges { generation: 2, ..PendingChanges::default() };
        assert!(!changes.remove(3, 1));
        assert_eq!((changes.removed, changes.generation), (3, 1));
    }

    #[test]
    fn what_went_counts_only_in_the_generation_of_the_file() {
        let contents = LedgerContents { total: 10, generation: 2, changes: 0 };
        let applied = |added, removed, generation| {
            PendingChanges { added, removed, generation }.applied(contents)
        };
        assert_eq!(applied(0, 0, 1), (10, false), "there is none to drop");
        assert_eq!(applied(5, 0, 1), (15, false));
        assert_eq!(applied(5, 3, 1), (15, true));
        assert_eq!(applied(5, 3, 2), (12, false));
        assert_eq!(applied(0, 11, 2), (0, false));
    }
}
