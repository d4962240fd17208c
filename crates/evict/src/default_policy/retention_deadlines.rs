//! The deadlines of retained slots: until when each is kept, and which of them are over.

use alloc::collections::BTreeSet;

/// With more entries than this many times the slots (or [`SLOTS_MIN`]), those without effect are
/// dropped.
const ENTRIES_PER_SLOT: usize = 2;
/// This many slots are assumed at least.
const SLOTS_MIN: usize = 1024;

/// Slots by the time until which they are kept. A slot that is retained again is there twice, and
/// kept until the first time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Retained {
    now_ms: u64,
    by_deadline: BTreeSet<(u64, u32)>,
}

impl Retained {
    /// Sets the time, from which the next retentions count.
    pub fn set_time(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
    }

    /// Keeps a slot for this long from now on. If there are too many entries, those that `is_kept`
    /// denies are dropped.
    pub fn keep_for(
        &mut self,
        slot: u32,
        retention_ms: u64,
        slots: usize,
        is_kept: impl Fn(u32) -> bool,
    ) {
        // An entry stays until its time, whatever becomes of its slot. Without this bound hints of
        // long retention would take more and more memory.
        if self.by_deadline.len() > ENTRIES_PER_SLOT * slots.max(SLOTS_MIN) {
            let mut seen = BTreeSet::new();
            let latest = core::mem::take(&mut self.by_deadline);
            self.by_deadline = latest
                .into_iter()
                // From the latest, which is the entry that stays of each slot.
                .rev()
                .filter(|(_, slot)| is_kept(*slot) && seen.insert(*slot))
                .collect();
        }
        self.by_deadline.insert((self.now_ms.saturating_add(retention_ms), slot));
    }

    /// Takes out the next slot whose time is over.
    pub fn next_expired(&mut self) -> Option<u32> {
        let first = *self.by_deadline.first().filter(|(until_ms, _)| *until_ms <= self.now_ms)?;
        self.by_deadline.remove(&first);
        Some(first.1)
    }

    pub fn memory_bytes(&self) -> usize {
        2 * self.by_deadline.len() * size_of::<(u64, u32)>()
    }
}
