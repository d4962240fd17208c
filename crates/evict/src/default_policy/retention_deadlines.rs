//! The deadlines of retained slots: until when each is kept, and which of them are over.

use alloc::collections::{BTreeMap, BTreeSet};

/// The deadlines of the slots whose class is retention, one for each.
#[derive(Clone, Debug, Default)]
pub(crate) struct Retained {
    now_ms: u64,
    until_ms: BTreeMap<u32, u64>,
    /// The same, by deadline.
    by_deadline: BTreeSet<(u64, u32)>,
}

impl Retained {
    /// Sets the time, from which the next retentions count.
    pub fn set_time(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
    }

    /// Keeps a slot for at least this long from now on.
    pub fn keep_for(&mut self, slot: u32, retention_ms: u64) {
        // Several callers may retain one chunk, and each of them may rely on its time.
        let before = self.until_ms.get(&slot).copied().unwrap_or(0);
        let until_ms = self.now_ms.saturating_add(retention_ms).max(before);
        self.release(slot);
        self.until_ms.insert(slot, until_ms);
        self.by_deadline.insert((until_ms, slot));
    }

    /// Ends the retention of a slot, if there is one. The next chunk in the slot does not inherit it.
    pub fn release(&mut self, slot: u32) {
        if let Some(until_ms) = self.until_ms.remove(&slot) {
            self.by_deadline.remove(&(until_ms, slot));
        }
    }

    /// Takes out the next slot whose time is over.
    pub fn next_expired(&mut self) -> Option<u32> {
        let (until_ms, slot) = *self.by_deadline.first()?;
        if until_ms > self.now_ms {
            return None;
        }
        self.release(slot);
        Some(slot)
    }

    pub fn memory_bytes(&self) -> usize {
        4 * self.by_deadline.len() * size_of::<(u64, u32)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_that_of_two_entries_for_each_slot_in_trees_that_are_half_full() {
        let mut retained = Retained::default();
        let bytes = [3, 5, 5, 9].map(|slot| {
            retained.keep_for(slot, 7);
            retained.memory_bytes()
        });
        assert_eq!(bytes, [64, 128, 128, 192]);
    }
}
