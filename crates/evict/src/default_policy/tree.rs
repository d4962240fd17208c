//! The prefix tree: which slot is the child of which.

use crate::slots::NIL;

use super::KvPolicy;
use super::node::TreeNode;
use super::reuse_class::RETAINED;

/// The longest path to the head of a chain that is followed; a deeper chunk is not
/// attached.
const WAY_UP_MAX: usize = 1 << 14;

impl KvPolicy {
    /// Makes a slot a child of `parent`, if that is tracked and not below it itself.
    pub(super) fn attach(&mut self, slot: u32, parent: u32) {
        if self.nodes.is_tracked(parent) && !self.leads_to(parent, slot) {
            self.nodes[parent].add_child();
            let generation = self.nodes[parent].generation();
            self.nodes[slot].set_parent(parent, generation);
        }
    }

    /// Whether `ancestor` is among those before `slot`, or `slot` itself. Callers that name parents
    /// in a ring would keep it from ever having a leaf. A chunk without children is no
    /// ancestor, so the path up is followed only for those that have some.
    pub(super) fn leads_to(&self, slot: u32, ancestor: u32) -> bool {
        // A new slot has no children, so a save along a chain ends here.
        if slot == ancestor || self.nodes[ancestor].children() == 0 {
            return slot == ancestor;
        }
        let mut at = slot;
        for _ in 0..WAY_UP_MAX {
            let Some(parent) = self.parent_of(at) else { return false };
            if parent == ancestor {
                return true;
            }
            at = parent;
        }
        // Too deep to check: taken for a ring.
        true
    }

    /// The parent of a slot, if that is still the one it was.
    pub(super) fn parent_of(&self, slot: u32) -> Option<u32> {
        let node = self.nodes[slot];
        let is_there = node.parent != NIL && self.nodes.is_tracked(node.parent);
        let is_same = is_there && self.nodes[node.parent].generation() == node.parent_generation();
        is_same.then_some(node.parent)
    }

    /// Removes a slot from its parent. A parent without children returns to its position before it was
    /// parked.
    pub(super) fn detach(&mut self, slot: u32) {
        let TreeNode { parent, .. } = self.nodes[slot];
        if parent == NIL {
            return;
        }
        // The slot of the parent may hold another chunk by now, which does not count this one.
        let same = self.nodes[parent].generation() == self.nodes[slot].parent_generation();
        self.nodes[slot].parent = NIL;
        let alone = same && self.nodes.is_tracked(parent) && self.nodes[parent].remove_child();
        if alone && self.nodes[parent].is_parked() {
            self.unlink(parent);
            // It was the coldest of its list when it was parked, and what came later is hotter.
            self.push_coldest(parent);
        }
    }

    /// Stops tracking a slot.
    pub(super) fn untrack(&mut self, slot: u32, node: TreeNode) {
        if node.class().is(RETAINED) {
            self.retained.release(slot);
        }
        self.unlink(slot);
        if node.parent != NIL {
            self.detach(slot);
        }
        if node.children() > 0 {
            // What follows it stays, without a predecessor in the cache.
            self.nodes[slot].orphan();
        }
        self.nodes.untrack(slot);
    }
}
