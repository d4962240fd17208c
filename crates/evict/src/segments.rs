//! Several lists of slots, with pinned ones out of the way: the basis of S3-FIFO, SIEVE and
//! W-TinyLFU.

use alloc::vec::Vec;

use crate::slots::{NIL, SlotList, Slots};

/// What is kept of a slot: its list, and the policy's facts.
#[derive(Clone, Copy, Debug, Default)]
struct Member<T> {
    of: T,
    list: u8,
    pinned: bool,
}

/// `N` lists. A pinned slot stays in place until a search reaches it. Then it is parked; when it is
/// unpinned it returns to the cold end of its list.
#[derive(Clone, Debug)]
pub(crate) struct Segments<T, const N: usize> {
    members: Slots<Member<T>>,
    lists: [SlotList; N],
    /// Slots of each list, parked ones counted.
    lens: [usize; N],
}

impl<T: Copy + Default, const N: usize> Segments<T, N> {
    pub fn new() -> Self {
        Segments { members: Slots::new(), lists: [SlotList::EMPTY; N], lens: [0; N] }
    }

    pub fn is_tracked(&self, slot: u32) -> bool {
        self.members.is_tracked(slot)
    }

    /// Tracks a slot at the hot end of a list.
    pub fn insert(&mut self, slot: u32, list: usize, of: T) {
        self.members.track(slot, Member { of, list: list as u8, pinned: false });
        self.lens[list] += 1;
        self.members.push_hottest(&mut self.lists[list], slot);
    }

    /// The list of a tracked slot.
    pub fn list_of(&self, slot: u32) -> usize {
        usize::from(self.members[slot].list)
    }

    pub fn of(&mut self, slot: u32) -> &mut T {
        &mut self.members[slot].of
    }

    /// Moves a tracked slot to the hot end of a list.
    pub fn renew(&mut self, slot: u32, list: usize) {
        self.unlink(slot);
        // A parked slot counts in its list, so the count changes whether it was linked or not.
        self.lens[self.list_of(slot)] -= 1;
        self.lens[list] += 1;
        // Set before the slot is linked: later calls find its list by this.
        self.members[slot].list = list as u8;
        self.members.push_hottest(&mut self.lists[list], slot);
    }

    /// Forgets a tracked slot.
    pub fn remove(&mut self, slot: u32) {
        self.unlink(slot);
        self.lens[self.list_of(slot)] -= 1;
        self.members.untrack(slot);
    }

    pub fn pin(&mut self, slot: u32) {
        if self.is_tracked(slot) {
            self.members[slot].pinned = true;
        }
    }

    pub fn unpin(&mut self, slot: u32) {
        if !self.is_tracked(slot) {
            return;
        }
        self.members[slot].pinned = false;
        if !self.members.is_listed(slot) {
            // Parked by a search from the cold end, or from SIEVE's hand.
            let list = self.list_of(slot);
            self.members.push_coldest(&mut self.lists[list], slot);
        }
    }

    /// The coldest slot of a list that is not pinned.
    pub fn coldest(&mut self, list: usize) -> Option<u32> {
        self.from(list, self.lists[list].coldest)
    }

    /// The first slot that is not pinned, from this one towards the hot end.
    pub fn from(&mut self, list: usize, mut slot: u32) -> Option<u32> {
        while slot != NIL && self.members[slot].pinned {
            // Read first: unlinking clears the links.
            let hotter = self.hotter(slot);
            debug_assert_eq!(self.list_of(slot), list);
            self.unlink(slot);
            slot = hotter;
        }
        (slot != NIL).then_some(slot)
    }

    /// The next slot on the hotter side; `NIL` at the end.
    pub fn hotter(&self, slot: u32) -> u32 {
        self.members.hotter(slot)
    }

    pub fn len_of(&self, list: usize) -> usize {
        self.lens[list]
    }

    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// All slots, list after list, pinned ones last.
    pub fn eviction_order(&self) -> Vec<u32> {
        let listed = || self.lists.iter().flat_map(|list| self.members.iter(*list));
        let mut order: Vec<u32> = listed().filter(|slot| !self.members[*slot].pinned).collect();
        order.extend(listed().filter(|slot| self.members[*slot].pinned));
        order.extend(self.members.unlisted());
        order
    }

    pub fn memory_bytes(&self) -> usize {
        self.members.memory_bytes()
    }

    fn unlink(&mut self, slot: u32) {
        if self.members.is_listed(slot) {
            let list = self.list_of(slot);
            self.members.unlink(&mut self.lists[list], slot);
        }
    }
}

/// The calls of [`Policy`](crate::Policy) that a policy around [`Segments`] answers by them alone.
macro_rules! calls_of_segments {
    ($field:ident) => {
        fn pin(&mut self, slot: u32) {
            self.$field.pin(slot);
        }

        fn unpin(&mut self, slot: u32) {
            self.$field.unpin(slot);
        }

        fn len(&self) -> usize {
            self.$field.len()
        }

        fn eviction_order(&mut self) -> alloc::vec::Vec<u32> {
            self.$field.eviction_order()
        }
    };
}
pub(crate) use calls_of_segments;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_that_of_the_members() {
        let mut segments = Segments::<u32, 2>::new();
        segments.insert(0, 1, 7);
        assert!(segments.memory_bytes() >= 8192 * 16, "{}", segments.memory_bytes());
        assert_eq!(segments.memory_bytes(), segments.members.memory_bytes());
    }
}
