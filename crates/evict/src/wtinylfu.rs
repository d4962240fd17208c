//! W-TinyLFU: a window by recency before a main part by frequency, with its frequency sketch.

use alloc::vec;
use alloc::vec::Vec;

use crate::ghosts::hash;
use crate::segments::{Segments, calls_of_segments};
use crate::{Policy, SlotInfo};

const WINDOW: usize = 0;
const PROBATION: usize = 1;
const PROTECTED: usize = 2;
/// The window holds one slot in this many.
const SLOTS_PER_WINDOW: usize = 100;
/// All counts of the sketch are halved after this many uses for each slot.
const USES_PER_SLOT: usize = 10;

/// A small window by recency (a hundredth) before a main part of two segments by recency. A slot
/// that leaves the window stays only if it was used more often, according to a sketch, than the
/// victim of the main part.
#[derive(Clone, Debug)]
pub struct WTinyLfu {
    /// The hash of each slot's tag.
    parts: Segments<u32, 3>,
    sketch: Sketch,
}

impl WTinyLfu {
    /// A policy without slots.
    pub fn new() -> Self {
        WTinyLfu { parts: Segments::new(), sketch: Sketch::new() }
    }

    /// The slot that has to leave the window, if any.
    fn candidate(&mut self) -> Option<u32> {
        // Of up to a hundred slots the window has one.
        let over =
            self.parts.len_of(WINDOW) * SLOTS_PER_WINDOW > self.parts.len().max(SLOTS_PER_WINDOW);
        if over { self.parts.coldest(WINDOW) } else { None }
    }

    /// While there is space, the main part takes all slots but the newest.
    fn fill_main(&mut self) {
        while let Some(slot) = self.candidate() {
            self.parts.renew(slot, PROBATION);
        }
    }

    /// Keeps the protected segment at four fifths of the main part.
    fn demote(&mut self) {
        let main = self.parts.len() - self.parts.len_of(WINDOW);
        while self.parts.len_of(PROTECTED) * 5 > main * 4 {
            // None where all of them are pinned and parked: they count, and cannot be moved.
            let Some(slot) = self.parts.coldest(PROTECTED) else { return };
            self.parts.renew(slot, PROBATION);
        }
    }
}

impl Default for WTinyLfu {
    fn default() -> Self {
        WTinyLfu::new()
    }
}

impl Policy for WTinyLfu {
    fn name(&self) -> &'static str {
        "w-tinylfu"
    }

    fn insert(&mut self, entry: SlotInfo) {
        if self.parts.is_tracked(entry.slot) {
            return self.touch(entry.slot);
        }
        // Slots without a tag are identified by their number.
        let tag = if entry.tag == 0 { u64::from(entry.slot) } else { entry.tag };
        let print = (hash(tag) >> 32) as u32;
        self.parts.insert(entry.slot, WINDOW, print);
        self.sketch.count(print, self.parts.len());
    }

    fn touch(&mut self, slot: u32) {
        if !self.parts.is_tracked(slot) {
            return;
        }
        let print = *self.parts.of(slot);
        self.sketch.count(print, self.parts.len());
        match self.parts.list_of(slot) {
            WINDOW => self.parts.renew(slot, WINDOW),
            _ => self.parts.renew(slot, PROTECTED),
        }
        self.demote();
    }

    fn remove(&mut self, slot: u32) {
        if self.parts.is_tracked(slot) {
            self.parts.remove(slot);
        }
    }

    fn victim(&mut self) -> Option<u32> {
        // The main part is empty: before the first search every slot stays in the window.
        if self.parts.len_of(WINDOW) == self.parts.len() {
            self.fill_main();
        }
        loop {
            // Each turn moves a slot out of the window, so the loop ends.
            let main = self.parts.coldest(PROBATION).or_else(|| self.parts.coldest(PROTECTED));
            let Some(main) = main else { return self.parts.coldest(WINDOW) };
            let Some(candidate) = self.candidate() else { return Some(main) };
            if self.sketch.uses(*self.parts.of(candidate)) <= self.sketch.uses(*self.parts.of(main))
            {
                return Some(candidate);
            }
            // It displaces the victim of the main part, which the next turn finds again unless the
            // window has one more candidate.
            self.parts.renew(candidate, PROBATION);
        }
    }

    calls_of_segments!(parts);

    fn memory_bytes(&self) -> usize {
        self.parts.memory_bytes() + self.sketch.words.capacity() * size_of::<u64>()
    }
}

/// How often each of many was used lately, roughly, in four bits a counter: a count-min sketch of
/// four rows.
#[derive(Clone, Debug)]
struct Sketch {
    /// A power of two of words of 16 counters.
    words: Vec<u64>,
    counted: usize,
}

impl Sketch {
    fn new() -> Self {
        Sketch { words: vec![0; 64], counted: 0 }
    }

    /// The word and the shift of one row's counter.
    fn at(&self, print: u32, row: u32) -> (usize, u32) {
        let mixed = hash(u64::from(print) + 1 + (u64::from(row) << 32));
        // A row has four of the sixteen counters in a word. The hash depends on the row, so that
        // tags that share one counter share no other by rule.
        ((mixed >> 20) as usize & (self.words.len() - 1), row * 16 + (mixed as u32 & 3) * 4)
    }

    /// Counts a use. Once there were ten for each of `residents`, all counts are halved.
    fn count(&mut self, print: u32, residents: usize) {
        if residents > 2 * self.words.len() {
            // A larger sketch starts empty.
            self.words = vec![0; 2 * self.words.len()];
        }
        for row in 0..4 {
            let (word, shift) = self.at(print, row);
            // A full counter stays: one more would carry into the next.
            if self.words[word] >> shift & 15 < 15 {
                self.words[word] += 1 << shift;
            }
        }
        self.counted += 1;
        if self.counted > USES_PER_SLOT * residents.max(64) {
            // The mask clears what the shift moves in from the counter above.
            self.words.iter_mut().for_each(|word| *word = *word >> 1 & 0x7777_7777_7777_7777);
            self.counted /= 2;
        }
    }

    fn uses(&self, print: u32) -> u64 {
        let row = |row| {
            let (word, shift) = self.at(print, row);
            self.words[word] >> shift & 15
        };
        // Other tags can only raise a counter, so the lowest is closest to the truth.
        (0..4).map(row).min().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newcomer_stays_only_if_used_more_than_the_victim() {
        let mut policy = WTinyLfu::new();
        (0..10)
            .for_each(|slot| policy.insert(SlotInfo::new(slot, 1).with_tag(u64::from(slot) + 1)));
        assert_eq!(policy.victim(), Some(0));
        assert_eq!(
            (policy.parts.len_of(WINDOW), policy.parts.list_of(9)),
            (1, WINDOW),
            "the newest"
        );
        (0..3).for_each(|_| policy.touch(9));
        policy.insert(SlotInfo::new(10, 1).with_tag(11));
        assert_eq!(
            (policy.victim(), policy.parts.list_of(9)),
            (Some(0), PROBATION),
            "used more often than 0"
        );
        policy.remove(0);
        policy.insert(SlotInfo::new(0, 1).with_tag(77));
        assert_eq!(policy.victim(), Some(10), "used no more often than 1");
    }

    #[test]
    fn the_sketch_counts_and_forgets() {
        let mut sketch = Sketch::new();
        (0..9).for_each(|_| sketch.count(7, 100));
        assert_eq!((sketch.uses(7), sketch.uses(8)), (9, 0));
        (0..1000).for_each(|n| sketch.count(1000 + n, 100));
        assert!(sketch.uses(7) < 9);
    }

    #[test]
    fn the_sketch_forgets_once_for_many_uses() {
        let mut sketch = Sketch::new();
        (0..641).for_each(|_| sketch.count(8, 64));
        assert_eq!(sketch.uses(8), 7, "half of the most that a counter holds");
        assert_eq!(sketch.counted, 320, "the uses fade with the counters");
        (0..9).for_each(|_| sketch.count(7, 64));
        assert_eq!((sketch.uses(7), sketch.uses(8)), (9, 7));
    }

    #[test]
    fn memory_is_that_of_the_segments_and_of_the_sketch() {
        let mut policy = WTinyLfu::new();
        policy.insert(SlotInfo::new(0, 1));
        assert_eq!(policy.memory_bytes(), policy.parts.memory_bytes() + 64 * 8);
    }

    #[test]
    fn each_row_has_four_counters_of_a_word() {
        let sketch = Sketch::new();
        for row in 0..4 {
            let mut shifts: Vec<u32> = (0..100).map(|print| sketch.at(print, row).1).collect();
            shifts.sort_unstable();
            shifts.dedup();
            assert_eq!(shifts, [0, 4, 8, 12].map(|shift| 16 * row + shift));
        }
    }

    #[test]
    fn the_sketch_grows_with_more_than_two_residents_a_word() {
        let mut sketch = Sketch::new();
        sketch.count(7, 128);
        assert_eq!((sketch.words.len(), sketch.uses(7)), (64, 1));
        sketch.count(7, 129);
        assert_eq!((sketch.words.len(), sketch.uses(7)), (128, 1), "starts empty");
    }

    #[test]
    fn a_chunk_is_counted_by_its_tag_or_without_one_by_its_slot() {
        let mut policy = WTinyLfu::new();
        let prints = [(1, 0), (2, 0), (3, 9), (4, 9)].map(|(slot, tag)| {
            policy.insert(SlotInfo::new(slot, 1).with_tag(tag));
            *policy.parts.of(slot)
        });
        assert_eq!(prints, [1, 2, 9, 9].map(|of: u64| (hash(of) >> 32) as u32));
    }
}
