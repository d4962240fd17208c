//! Flat memory for policies: one node per slot, linked into lists, in segments so that growing
//! neither copies nor wastes memory.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::{Index, IndexMut};

use crate::SLOTS_MAX;

/// Ends a list on either side.
pub(crate) const NIL: u32 = u32::MAX;
/// In `colder`: the slot is not tracked.
const UNTRACKED: u32 = u32::MAX - 1;
/// In `colder`: the slot is tracked, and in no list.
const UNLISTED: u32 = u32::MAX - 2;

/// Few enough segments that the pointers to them stay in the first-level cache.
const SEGMENT: usize = 8192;

/// What a policy keeps of one slot: its links in a list, and the policy's own facts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListNode<T> {
    colder: u32,
    hotter: u32,
    pub of: T,
}

/// All nodes of a policy.
#[derive(Clone, Debug)]
pub(crate) struct Slots<T> {
    segments: Vec<Box<[ListNode<T>; SEGMENT]>>,
    len: usize,
}

/// One list: the coldest end goes first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotList {
    pub coldest: u32,
    pub hottest: u32,
}

impl SlotList {
    pub const EMPTY: SlotList = SlotList { coldest: NIL, hottest: NIL };

    pub fn is_empty(self) -> bool {
        self.coldest == NIL
    }
}

impl<T: Copy + Default> Slots<T> {
    pub fn new() -> Self {
        Slots { segments: Vec::new(), len: 0 }
    }

    /// How many slots are tracked.
    pub fn len(&self) -> usize {
        self.len
    }

    fn node(&self, slot: u32) -> Option<&ListNode<T>> {
        self.segments.get(slot as usize / SEGMENT).map(|segment| &segment[slot as usize % SEGMENT])
    }

    fn node_mut(&mut self, slot: u32) -> &mut ListNode<T> {
        &mut self.segments[slot as usize / SEGMENT][slot as usize % SEGMENT]
    }

    /// What is kept of a slot, or was when it was last tracked.
    pub fn of_any(&self, slot: u32) -> Option<T> {
        self.node(slot).map(|node| node.of)
    }

    /// Every tracked slot is below this.
    pub fn end(&self) -> usize {
        self.segments.len() * SEGMENT
    }

    pub fn is_tracked(&self, slot: u32) -> bool {
        self.node(slot).is_some_and(|node| node.colder != UNTRACKED)
    }

    /// Whether the slot is tracked and in a list.
    pub fn is_listed(&self, slot: u32) -> bool {
        self.node(slot).is_some_and(|node| node.colder != UNTRACKED && node.colder != UNLISTED)
    }

    /// What is kept of a slot that is tracked.
    pub fn tracked(&self, slot: u32) -> Option<T> {
        self.node(slot).filter(|node| node.colder != UNTRACKED).map(|node| node.of)
    }

    /// What is kept of a slot that is tracked and in a list.
    pub fn listed(&self, slot: u32) -> Option<T> {
        let is_listed = |node: &&ListNode<T>| node.colder != UNTRACKED && node.colder != UNLISTED;
        self.node(slot).filter(is_listed).map(|node| node.of)
    }

    /// Begins to track a slot, in no list.
    pub fn track(&mut self, slot: u32, of: T) {
        self.put(slot, ListNode { colder: UNLISTED, hotter: NIL, of });
    }

    /// Begins to track a slot that is in no list, as the hottest of a list.
    pub fn track_hottest(&mut self, list: &mut SlotList, slot: u32, of: T) {
        self.put(slot, ListNode { colder: list.hottest, hotter: NIL, of });
        match list.hottest {
            NIL => list.coldest = slot,
            last => self.node_mut(last).hotter = slot,
        }
        list.hottest = slot;
    }

    fn put(&mut self, slot: u32, node: ListNode<T>) {
        // The highest numbers are markers in `colder`.
        assert!(slot < SLOTS_MAX, "slots are numbered below SLOTS_MAX");
        if self.segments.len() <= slot as usize / SEGMENT {
            self.grow(slot);
        }
        let there = self.node_mut(slot);
        // A slot may be tracked twice (`Noop` does that at each insert), and counts once.
        let is_new = there.colder == UNTRACKED;
        *there = node;
        self.len += usize::from(is_new);
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self, slot: u32) {
        while self.segments.len() <= slot as usize / SEGMENT {
            let vacant = ListNode { colder: UNTRACKED, hotter: NIL, of: T::default() };
            // Made as a vector: an array of this size would be on the stack first.
            let segment = vec![vacant; SEGMENT].into_boxed_slice();
            self.segments.push(segment.try_into().ok().expect("a segment has its length"));
        }
    }

    /// Forgets a slot that is in no list.
    pub fn untrack(&mut self, slot: u32) {
        debug_assert!(self.is_tracked(slot) && !self.is_listed(slot));
        // `of` stays as it is: `of_any` reads what the last chunk of a slot left there.
        self.node_mut(slot).colder = UNTRACKED;
        self.len -= 1;
    }

    pub fn push_hottest(&mut self, list: &mut SlotList, slot: u32) {
        debug_assert!(self.is_tracked(slot) && !self.is_listed(slot));
        let node = self.node_mut(slot);
        (node.colder, node.hotter) = (list.hottest, NIL);
        match list.hottest {
            NIL => list.coldest = slot,
            last => self.node_mut(last).hotter = slot,
        }
        list.hottest = slot;
    }

    pub fn push_coldest(&mut self, list: &mut SlotList, slot: u32) {
        debug_assert!(self.is_tracked(slot) && !self.is_listed(slot));
        let node = self.node_mut(slot);
        (node.colder, node.hotter) = (NIL, list.coldest);
        match list.coldest {
            NIL => list.hottest = slot,
            first => self.node_mut(first).colder = slot,
        }
        list.coldest = slot;
    }

    /// Takes a slot out of the list that it is in.
    pub fn unlink(&mut self, list: &mut SlotList, slot: u32) {
        debug_assert!(self.is_listed(slot));
        let node = self.node_mut(slot);
        let colder = node.colder;
        let hotter = node.hotter;
        (node.colder, node.hotter) = (UNLISTED, NIL);
        match colder {
            NIL => list.coldest = hotter,
            slot => self.node_mut(slot).hotter = hotter,
        }
        match hotter {
            NIL => list.hottest = colder,
            slot => self.node_mut(slot).colder = colder,
        }
    }

    /// Issues the reads that moving these slots needs all at once: one after the other, each would
    /// wait for memory.
    pub fn prefetch(&self, slots: &[u32]) {
        // Unlinking a slot writes it and those on both sides. No read depends on that of another
        // slot, so the processor waits for all of them at once. Without `black_box` the compiler
        // would drop reads whose result is not used.
        let stamp = |slot| self.node(slot).map_or(0, |node| node.colder);
        let near = |slot| self.node(slot).map_or(0, |node| stamp(node.colder) ^ stamp(node.hotter));
        core::hint::black_box(slots.iter().fold(0, |all, slot| all ^ near(*slot)));
    }

    /// The next slot on the hotter side; [`NIL`] at the end.
    pub fn hotter(&self, slot: u32) -> u32 {
        self.node(slot).map_or(NIL, |node| node.hotter)
    }

    /// The slots of a list, the coldest first.
    pub fn iter(&self, list: SlotList) -> impl Iterator<Item = u32> + '_ {
        let next = |slot: u32| (slot != NIL).then_some(slot);
        core::iter::successors(next(list.coldest), move |slot| next(self.hotter(*slot)))
    }

    /// The slots that are tracked and in no list.
    pub fn unlisted(&self) -> impl Iterator<Item = u32> + '_ {
        (0..)
            .zip(self.segments.iter().flat_map(|segment| segment.iter()))
            .filter(|(_, node)| node.colder == UNLISTED)
            .map(|(slot, _)| slot)
    }

    pub fn memory_bytes(&self) -> usize {
        self.segments.len() * SEGMENT * size_of::<ListNode<T>>()
            + self.segments.capacity() * size_of::<Box<[ListNode<T>; SEGMENT]>>()
    }
}

impl<T: Copy + Default> Index<u32> for Slots<T> {
    type Output = T;

    fn index(&self, slot: u32) -> &T {
        &self.segments[slot as usize / SEGMENT][slot as usize % SEGMENT].of
    }
}

impl<T: Copy + Default> IndexMut<u32> for Slots<T> {
    fn index_mut(&mut self, slot: u32) -> &mut T {
        &mut self.node_mut(slot).of
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_that_of_all_nodes_and_of_the_pointers_to_their_segments() {
        let mut slots = Slots::<u32>::new();
        assert_eq!(slots.memory_bytes(), 0);
        (0..5).for_each(|segment| slots.track(segment * SEGMENT as u32, 0));
        let pointers = slots.memory_bytes() - 5 * SEGMENT * 12;
        assert!((5 * 8..=2 * 5 * 8).contains(&pointers), "{pointers} bytes of pointers");
    }

    #[test]
    fn all_slots_end_with_the_last_segment() {
        let mut slots = Slots::<u32>::new();
        let ends = [0, 1, SEGMENT as u32, 5 * SEGMENT as u32 - 1].map(|slot| {
            slots.track(slot, 0);
            slots.end() / SEGMENT
        });
        assert_eq!((ends, slots.end() % SEGMENT, slots.len()), ([1, 1, 2, 5], 0, 4));
    }

    #[test]
    fn of_a_slot_that_is_gone_its_last_facts_stay() {
        let mut slots = Slots::<u32>::new();
        assert_eq!(slots.of_any(3), None);
        slots.track(3, 7);
        assert_eq!(
            [2, 3].map(|slot| (slots.of_any(slot), slots.tracked(slot))),
            [(Some(0), None), (Some(7), Some(7))]
        );
        slots.untrack(3);
        assert_eq!((slots.of_any(3), slots.tracked(3)), (Some(7), None));
    }
}
