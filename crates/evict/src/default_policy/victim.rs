//! Finds the next victim: the coldest slot of the list whose coldest slot has the lowest hit density,
//! if no chunk in the cache comes after it. A slot that has children is parked.

use super::KvPolicy;
use super::chunk_weight;
use super::node::{CHILDREN_MAX, LIST_STRIDE};
use super::reuse_class::RETAINED;
use crate::slots::NIL;

/// One victim per this many chunks is taken without a new search for the cheapest list.
const CHEAP_SHARE: usize = 1 << 16;

impl KvPolicy {
    /// The next victim, found among the leaves; the first parked slot where all leaves are pinned.
    pub(super) fn find_victim(&mut self) -> Option<u32> {
        self.learn_if_due();
        while let Some(at) = self.cheap() {
            let slot = self.lists[at].coldest;
            // A count at its maximum never falls again: such a slot is evicted in its turn all the
            // same.
            if matches!(self.nodes[slot].children(), 0 | CHILDREN_MAX) {
                return Some(slot);
            }
            // Parked, it is met once for all its children and not by each search.
            self.unlink(slot);
            self.nodes[slot].set_parked(true);
            self.nodes.push_hottest(&mut self.parked, slot);
        }
        // All leaves are pinned: a hole is better than no space.
        (self.parked.coldest != NIL).then_some(self.parked.coldest)
    }

    /// The rank of a slot; among the coldest slots of all lists, the lowest is evicted first.
    pub(super) fn rank(&self, slot: u32) -> u64 {
        let node = self.nodes[slot];
        let age = self.age(node.stamp);
        let worth = self.returns.hit_density(node.class().index(), age)
            * chunk_weight::factor(node.weight());
        // The bits of floats that are not negative are in the order of the floats, and their
        // highest is free.
        u64::from(node.class().is(RETAINED)) << 63
            | u64::from(worth.to_bits()) << 32
            | u64::from(u32::MAX - age)
    }

    /// The list whose coldest slot has the lowest density, or had it a few victims ago.
    fn cheap(&mut self) -> Option<usize> {
        let (at, left) = self.cheap;
        if left > 0 && !self.lists[at].is_empty() {
            return Some(at);
        }
        let at = self.cheapest()?;
        // Nothing else may have been there but what is retained.
        let exact = at % LIST_STRIDE == usize::from(RETAINED.index());
        self.cheap = (at, if exact { 0 } else { self.nodes.len() / CHEAP_SHARE });
        Some(at)
    }

    /// The list whose coldest slot has the lowest density.
    fn cheapest(&self) -> Option<usize> {
        let mut best = None;
        for (word, filled) in self.filled.iter().enumerate() {
            let mut left = *filled;
            // Skips the lists without slots: of 768, most are empty.
            while left != 0 {
                let at = word * 64 + left.trailing_zeros() as usize;
                left &= left - 1;
                let weight = at / LIST_STRIDE;
                let class = at % LIST_STRIDE;
                let stamp = self.nodes[self.lists[at].coldest].stamp;
                let kept = class as u8 == RETAINED.index();
                let worth = self.returns.hit_density(class as u8, self.age(stamp))
                    * chunk_weight::factor(weight);
                // Retained slots last, then the lowest density, then the oldest. No density is NaN,
                // so any two can be compared.
                let found = (kept, worth, u32::MAX - self.age(stamp), at);
                if best.is_none_or(|best| found < best) {
                    best = Some(found);
                }
            }
        }
        best.map(|(.., at)| at)
    }
}
