//! What the default policy keeps of a slot, packed into 12 bytes.

use crate::slots::NIL;

use super::reuse_class::ReuseClass;

// A multiple of 64, so that each weight has words of its own in the policy's bits of filled lists.
/// Lists of one weight.
pub(crate) const LIST_STRIDE: usize = 192;

const CLASS: u16 = 0x1FF;
// `bits`, from the lowest: class 9, weight 2, parked, generation, parent's generation, pinned,
// fresh.
const WEIGHT_SHIFT: u32 = 9;
/// Generations are numbers of four bits: three lie with the children, the highest here.
const GENERATION: u16 = 1 << 12;
const PARENT_GENERATION: u16 = 1 << 13;
const GENERATION_SHIFT: u32 = 10;
const PARENT_GENERATION_SHIFT: u32 = 13;
/// The most children that are counted.
pub(crate) const CHILDREN_MAX: u16 = (1 << GENERATION_SHIFT) - 1;
const PINNED: u16 = 1 << 14;
const FRESH: u16 = 1 << 15;
const PARKED: u16 = 1 << 11;

/// What the default policy keeps of a slot: 12 bytes, 20 with its links.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TreeNode {
    /// The slot before it in its chain; `NIL` where there is none.
    pub parent: u32,
    /// When it was used last.
    pub stamp: u32,
    /// From the lowest: children 10 bits, generation 3, parent's generation 3.
    family: u16,
    /// From the lowest: class 9 bits, weight 2, and flags.
    bits: u16,
}

impl Default for TreeNode {
    fn default() -> Self {
        TreeNode { parent: NIL, stamp: 0, family: 0, bits: 0 }
    }
}

impl TreeNode {
    /// A slot that was just filled, of this generation.
    pub fn fresh(stamp: u32, weight: usize, class: ReuseClass, generation: u16) -> Self {
        let mut node = TreeNode { stamp, ..TreeNode::default() };
        node.bits = FRESH | (weight as u16) << WEIGHT_SHIFT | class.bits();
        node.set_generation(generation);
        node
    }

    pub fn class(self) -> ReuseClass {
        ReuseClass::from_bits(self.bits & CLASS)
    }

    pub fn set_class(&mut self, class: ReuseClass) {
        self.bits = self.bits & !CLASS | class.bits();
    }

    pub fn weight(self) -> usize {
        usize::from(self.bits >> WEIGHT_SHIFT & 3)
    }

    pub fn set_weight(&mut self, weight: usize) {
        self.bits = self.bits & !(3 << WEIGHT_SHIFT) | (weight as u16) << WEIGHT_SHIFT;
    }

    /// The list of its class and weight.
    pub fn list(self) -> usize {
        self.weight() * LIST_STRIDE + usize::from(self.class().index())
    }

    /// How many slots have this one as parent; stays at the maximum once there.
    pub fn children(self) -> u16 {
        self.family & CHILDREN_MAX
    }

    pub fn add_child(&mut self) {
        // Stops at the maximum: one more would carry into the generation.
        self.family += u16::from(self.children() < CHILDREN_MAX);
    }

    /// One child less; whether that was the last.
    pub fn remove_child(&mut self) -> bool {
        // At the maximum the number is not known any more, so it does not fall.
        let counted = (1..CHILDREN_MAX).contains(&self.children());
        self.family -= u16::from(counted);
        counted && self.children() == 0
    }

    /// Increases when a slot with children is evicted, so that the next chunk in the slot does not
    /// become their parent.
    pub fn generation(self) -> u16 {
        self.family >> GENERATION_SHIFT & 7 | u16::from(self.bits & GENERATION != 0) << 3
    }

    fn set_generation(&mut self, generation: u16) {
        self.family = self.family & !(7 << GENERATION_SHIFT) | (generation & 7) << GENERATION_SHIFT;
        self.put(GENERATION, generation & 8 != 0);
    }

    pub fn parent_generation(self) -> u16 {
        self.family >> PARENT_GENERATION_SHIFT & 7
            | u16::from(self.bits & PARENT_GENERATION != 0) << 3
    }

    pub fn set_parent(&mut self, parent: u32, generation: u16) {
        self.parent = parent;
        self.family = self.family & !(7 << PARENT_GENERATION_SHIFT)
            | (generation & 7) << PARENT_GENERATION_SHIFT;
        self.put(PARENT_GENERATION, generation & 8 != 0);
    }

    /// Ends the generation and its children.
    pub fn orphan(&mut self) {
        if self.children() > 0 {
            // The children keep their `parent`; only the generation shows that it means another
            // chunk. It wraps around after 16 chunks with children in one slot.
            self.family &= !CHILDREN_MAX;
            self.set_generation(self.generation() + 1);
        }
    }

    pub fn is_pinned(self) -> bool {
        self.bits & PINNED != 0
    }

    pub fn set_pinned(&mut self, yes: bool) {
        self.put(PINNED, yes);
    }

    /// Whether it was saved and not yet touched.
    pub fn is_fresh(self) -> bool {
        self.bits & FRESH != 0
    }

    pub fn set_fresh(&mut self, yes: bool) {
        self.put(FRESH, yes);
    }

    pub fn is_parked(self) -> bool {
        self.bits & PARKED != 0
    }

    pub fn set_parked(&mut self, yes: bool) {
        self.put(PARKED, yes);
    }

    fn put(&mut self, bit: u16, yes: bool) {
        self.bits = if yes { self.bits | bit } else { self.bits & !bit };
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::super::reuse_class::TAIL;
    use super::*;

    #[test]
    fn all_sixteen_generations_fit_beside_the_class_and_the_children() {
        for generation in 0..16 {
            let mut node = TreeNode::fresh(5, 2, TAIL, generation);
            node.set_parent(9, 15 - generation);
            (0..3).for_each(|_| node.add_child());
            assert_eq!(
                (node.generation(), node.parent_generation()),
                (generation, 15 - generation)
            );
            assert_eq!((node.class(), node.weight(), node.children()), (TAIL, 2, 3));
            assert!(node.is_fresh() && !node.is_pinned() && !node.is_parked());
        }
    }

    #[test]
    fn generations_follow_each_other_and_begin_again() {
        let mut node = TreeNode::default();
        let generations: Vec<u16> = (0..17)
            .map(|_| {
                node.add_child();
                node.orphan();
                node.generation()
            })
            .collect();
        assert_eq!(generations, (1..16).chain([0, 1]).collect::<Vec<u16>>());
    }

    /// All that a node keeps.
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Plain {
        parent: (u32, u16),
        children: u16,
        generation: u16,
        class: ReuseClass,
        weight: usize,
        flags: [bool; 3],
    }

    impl Plain {
        fn of(node: TreeNode) -> Self {
            Plain {
                parent: (node.parent, node.parent_generation()),
                children: node.children(),
                generation: node.generation(),
                class: node.class(),
                weight: node.weight(),
                flags: [node.is_pinned(), node.is_fresh(), node.is_parked()],
            }
        }
    }

    #[test]
    fn each_part_changes_alone() {
        // Each of the sixteen bits set and not set, beside each of the others.
        for bits in 0..=u16::MAX {
            let mut node = TreeNode { family: bits.rotate_left(5), bits, ..TreeNode::default() };
            let mut plain = Plain::of(node);
            plain.class = ReuseClass::from_bits(bits.wrapping_mul(77) >> 4);
            node.set_class(plain.class);
            assert_eq!(Plain::of(node), plain);
            plain.weight = usize::from(bits.wrapping_mul(77) >> 14);
            node.set_weight(plain.weight);
            assert_eq!(Plain::of(node), plain);
            plain.parent = (u32::from(bits), bits.wrapping_mul(33) >> 12);
            node.set_parent(plain.parent.0, plain.parent.1);
            assert_eq!(Plain::of(node), plain);
            plain.flags = plain.flags.map(|is_set| !is_set);
            node.set_pinned(plain.flags[0]);
            node.set_fresh(plain.flags[1]);
            node.set_parked(plain.flags[2]);
            assert_eq!(Plain::of(node), plain);
        }
    }

    #[test]
    fn children_are_counted_up_to_the_maximum_and_fall_no_more_there() {
        let mut node = TreeNode::fresh(5, 3, TAIL, 15);
        node.set_parent(9, 15);
        let empty = Plain::of(node);
        assert_eq!((node.remove_child(), Plain::of(node)), (false, empty), "there is none");
        for children in 1..CHILDREN_MAX {
            node.add_child();
            assert_eq!(Plain::of(node), Plain { children, ..empty });
        }
        for children in (0..CHILDREN_MAX - 1).rev() {
            assert_eq!(node.remove_child(), children == 0, "{children} are left");
            assert_eq!(Plain::of(node), Plain { children, ..empty });
        }
        for _ in 0..=CHILDREN_MAX {
            node.add_child();
        }
        let full = Plain { children: CHILDREN_MAX, ..empty };
        assert_eq!(Plain::of(node), full);
        assert_eq!((node.remove_child(), Plain::of(node)), (false, full));
    }

    #[test]
    fn a_generation_ends_only_with_its_children() {
        let mut node = TreeNode::fresh(5, 2, TAIL, 7);
        node.orphan();
        assert_eq!(node.generation(), 7);
        (0..2).for_each(|_| node.add_child());
        node.orphan();
        assert_eq!((node.generation(), node.children()), (8, 0));
    }
}
