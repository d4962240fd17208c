//! The policy that never evicts.

use alloc::vec::Vec;

use crate::slots::Slots;
use crate::{Policy, SlotInfo};

/// Never evicts: a full medium accepts nothing more. LMCache's noop.
#[derive(Clone, Debug)]
pub struct Noop(Slots<()>);

impl Noop {
    /// A policy that never evicts.
    pub fn new() -> Self {
        Noop(Slots::new())
    }
}

impl Default for Noop {
    fn default() -> Self {
        Noop::new()
    }
}

impl Policy for Noop {
    fn name(&self) -> &'static str {
        "noop"
    }

    fn insert(&mut self, entry: SlotInfo) {
        // Tracked for `len` and the snapshot's order alone.
        self.0.track(entry.slot, ());
    }

    fn touch(&mut self, _slot: u32) {}

    fn remove(&mut self, slot: u32) {
        if self.0.is_tracked(slot) {
            self.0.untrack(slot);
        }
    }

    fn pin(&mut self, _slot: u32) {}

    fn unpin(&mut self, _slot: u32) {}

    fn victim(&mut self) -> Option<u32> {
        None
    }

    /// True: no tenant has a victim, whatever wraps this policy.
    fn tracks_tenants(&self) -> bool {
        true
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn eviction_order(&mut self) -> Vec<u32> {
        self.0.unlisted().collect()
    }

    fn memory_bytes(&self) -> usize {
        self.0.memory_bytes()
    }
}
