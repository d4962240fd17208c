//! The tags of evicted slots (ghosts), and how many of them ARC and S3-FIFO keep. The default policy
//! has a table of its own, which is bounded where it is: `default_policy/ghost_sample.rs`.

use alloc::vec;
use alloc::vec::Vec;

use crate::slots::{NIL, SlotList, Slots};

/// ARC: slots and ghosts together are at most this many times its capacity.
pub(crate) const ARC_SLOTS_AND_GHOSTS: usize = 2;
/// ARC: slots that were hit once and their ghosts, times its capacity.
pub(crate) const ARC_ONCE_AND_GHOSTS: usize = 1;
/// S3-FIFO: ghosts for each slot that is present. One is kept if there is none.
pub(crate) const S3FIFO_GHOSTS_PER_SLOT: usize = 1;

/// One tag, and the next one of its bucket.
#[derive(Clone, Copy, Debug, Default)]
struct GhostTag {
    print: u32,
    next: u32,
}

/// Tags in the order of arrival, each once; the oldest is dropped first. Tags are compared by 32
/// bits, in at most 20 bytes a ghost.
#[derive(Clone, Debug)]
pub(crate) struct Ghosts {
    ghosts: Slots<GhostTag>,
    order: SlotList,
    vacant: SlotList,
    len: usize,
    /// The first of each chain: a power of two of them, at least half as many as there ever were
    /// ghosts.
    buckets: Vec<u32>,
}

impl Ghosts {
    pub fn new() -> Self {
        Ghosts {
            ghosts: Slots::new(),
            order: SlotList::EMPTY,
            vacant: SlotList::EMPTY,
            len: 0,
            buckets: vec![NIL],
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Adds a tag as the newest; 0 is no tag.
    pub fn push(&mut self, tag: u64) {
        if tag == 0 {
            return;
        }
        // Each tag once, at its latest position: `pop` relies on it, since it finds the oldest by
        // its print.
        self.remove(tag);
        let at = self.free_entry();
        let print = print(tag);
        let bucket = self.bucket(print);
        self.ghosts[at] = GhostTag { print, next: self.buckets[bucket] };
        self.buckets[bucket] = at;
        self.ghosts.push_hottest(&mut self.order, at);
        self.len += 1;
    }

    /// Removes a tag; whether it was there.
    pub fn remove(&mut self, tag: u64) -> bool {
        tag != 0 && self.remove_print(print(tag))
    }

    /// Removes the oldest; whether there was one.
    pub fn pop(&mut self) -> bool {
        self.order.coldest != NIL && self.remove_print(self.ghosts[self.order.coldest].print)
    }

    pub fn memory_bytes(&self) -> usize {
        self.ghosts.memory_bytes() + self.buckets.capacity() * size_of::<u32>()
    }

    fn bucket(&self, print: u32) -> usize {
        print as usize & (self.buckets.len() - 1)
    }

    fn remove_print(&mut self, print: u32) -> bool {
        let bucket = self.bucket(print);
        let mut before = NIL;
        let mut at = self.buckets[bucket];
        // Two tags may have one print. The later then replaces the earlier, or is taken for it:
        // ghosts shift a balance and never decide what a chunk is.
        while at != NIL && self.ghosts[at].print != print {
            (before, at) = (at, self.ghosts[at].next);
        }
        if at == NIL {
            return false;
        }
        let next = self.ghosts[at].next;
        match before {
            NIL => self.buckets[bucket] = next,
            before => self.ghosts[before].next = next,
        }
        self.ghosts.unlink(&mut self.order, at);
        // The entry is used again and never untracked: a vacant one is in no bucket.
        self.ghosts.push_hottest(&mut self.vacant, at);
        self.len -= 1;
        true
    }

    /// A free entry, in no list.
    fn free_entry(&mut self) -> u32 {
        if !self.vacant.is_empty() {
            let at = self.vacant.coldest;
            self.ghosts.unlink(&mut self.vacant, at);
            return at;
        }
        // No entry is vacant, so `len` counts all: two for each bucket on average.
        if self.len >= 2 * self.buckets.len() {
            self.spread();
        }
        let at = self.ghosts.len() as u32;
        self.ghosts.track(at, GhostTag::default());
        at
    }

    /// Doubles the buckets.
    fn spread(&mut self) {
        self.buckets = vec![NIL; 2 * self.buckets.len()];
        let all: Vec<u32> = self.ghosts.iter(self.order).collect();
        for at in all {
            let bucket = self.bucket(self.ghosts[at].print);
            self.ghosts[at].next = core::mem::replace(&mut self.buckets[bucket], at);
        }
    }
}

fn print(tag: u64) -> u32 {
    (hash(tag) >> 32) as u32
}

/// Tags may be heads of digests or small numbers: this spreads both.
pub(crate) fn hash(tag: u64) -> u64 {
    let mixed = (tag ^ (tag >> 32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed ^ (mixed >> 29)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_ghost_is_dropped_first_and_each_is_unique() {
        let mut ghosts = Ghosts::new();
        [7, 8, 0, 9, 7].into_iter().for_each(|tag| ghosts.push(tag));
        assert_eq!(ghosts.len(), 3);
        assert!(ghosts.pop() && !ghosts.remove(8) && ghosts.remove(7));
        assert!(ghosts.pop() && !ghosts.pop());
        for _ in 0..2 {
            (1..3000).for_each(|tag| ghosts.push(tag));
            assert_eq!(ghosts.len(), 2999);
            (1..3000).for_each(|tag| assert!(ghosts.remove(tag)));
            assert_eq!(ghosts.len(), 0);
        }
    }

    #[test]
    fn a_ghost_takes_at_most_20_bytes() {
        let mut ghosts = Ghosts::new();
        (1..=(1 << 17) + 1).for_each(|tag| ghosts.push(tag));
        assert!(ghosts.memory_bytes() <= 20 * ((1 << 17) + 8192), "{}", ghosts.memory_bytes());
    }

    #[test]
    fn memory_is_that_of_the_entries_and_of_a_bucket_for_each_two() {
        let mut ghosts = Ghosts::new();
        for (count, buckets) in [(5, 4), (100, 64), (129, 128)] {
            (1..=count).for_each(|tag| ghosts.push(tag));
            assert_eq!(ghosts.memory_bytes(), ghosts.ghosts.memory_bytes() + buckets * 4);
        }
    }

    #[test]
    fn every_bit_of_a_hash_depends_on_every_byte_of_a_tag() {
        for byte in 0..8 {
            let changed = (1..256).fold(0, |bits, value| bits | hash(value << (8 * byte)));
            assert_eq!(changed ^ hash(0), u64::MAX, "byte {byte}");
        }
    }
}
