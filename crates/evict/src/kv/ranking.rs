//! Finds the list whose coldest slot has the lowest hit density.

use super::KvPolicy;
use super::class::{self, RETAINED};
use super::node::LIST_STRIDE;

/// One victim per this many chunks is taken without a new search for the cheapest list.
const CHEAP_SHARE: usize = 1 << 16;

impl KvPolicy {
    /// The rank of a slot; among the coldest slots of all lists, the lowest is evicted first.
    pub(super) fn rank(&self, slot: u32) -> u64 {
        let node = self.nodes[slot];
        let age = self.age(node.stamp);
        let worth =
            self.returns.hit_density(node.class().index(), age) * class::factor(node.weight());
        // The bits of floats that are not negative are in the order of the floats, and their
        // highest is free.
        u64::from(node.class().is(RETAINED)) << 63
            | u64::from(worth.to_bits()) << 32
            | u64::from(u32::MAX - age)
    }

    /// The list whose coldest slot has the lowest density, or had it a few victims ago.
    pub(super) fn cheap(&mut self) -> Option<usize> {
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
    pub(super) fn cheapest(&self) -> Option<usize> {
        let mut best = None;
        for (word, filled) in self.filled.iter().enumerate() {
            let mut left = *filled;
            while left != 0 {
                let at = word * 64 + left.trailing_zeros() as usize;
                left &= left - 1;
                let weight = at / LIST_STRIDE;
                let class = at % LIST_STRIDE;
                let stamp = self.nodes[self.lists[at].coldest].stamp;
                let kept = class as u8 == RETAINED.index();
                let worth =
                    self.returns.hit_density(class as u8, self.age(stamp)) * class::factor(weight);
                let found = (kept, worth, u32::MAX - self.age(stamp), at);
                if best.is_none_or(|best| found < best) {
                    best = Some(found);
                }
            }
        }
        best.map(|(.., at)| at)
    }
}
