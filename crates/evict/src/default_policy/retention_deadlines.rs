//! Slots that are kept until a time.

use alloc::collections::BTreeSet;

/// Slots by the time until which they are kept. A slot that is retained again is there twice, and
/// kept until the first time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Retained(BTreeSet<(u64, u32)>);

impl Retained {
    /// Keeps a slot until a time. If there are too many entries, those that `is_kept` denies are
    /// dropped.
    pub fn keep(&mut self, slot: u32, until_ms: u64, slots: usize, is_kept: impl Fn(u32) -> bool) {
        if self.0.len() > 2 * slots.max(1024) {
            let mut seen = BTreeSet::new();
            let latest = core::mem::take(&mut self.0);
            self.0 = latest
                .into_iter()
                .rev()
                .filter(|(_, slot)| is_kept(*slot) && seen.insert(*slot))
                .collect();
        }
        self.0.insert((until_ms, slot));
    }

    /// Takes out the next slot whose time is over.
    pub fn expired(&mut self, now_ms: u64) -> Option<u32> {
        let first = *self.0.first().filter(|(until_ms, _)| *until_ms <= now_ms)?;
        self.0.remove(&first);
        Some(first.1)
    }

    pub fn memory_bytes(&self) -> usize {
        2 * self.0.len() * size_of::<(u64, u32)>()
    }
}
