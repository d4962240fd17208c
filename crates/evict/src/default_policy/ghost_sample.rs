//! A sample of the evicted chunks in a bounded table: which of them return, and after how long. The
//! constants of this file bound the number of ghosts.

use alloc::boxed::Box;
use alloc::vec;

use super::reuse_class::ReuseClass;
use crate::ghosts::hash;

/// Ghosts of a bucket: a cache line of 64 bytes.
const WAYS: usize = 8;
/// The table has at most one ghost for this many chunks that are resident when it is made,
const RESIDENTS_PER_GHOST: usize = 2;
/// but never fewer than this: 512 KiB.
const GHOSTS_MIN: usize = 1 << 16;
/// The table remembers about this many times as many chunks as are resident.
const REACH: usize = 4;
/// A new table is made once there are more than this many times the residents it was made for.
const REMAKE_AT: usize = 4;

/// An evicted chunk: its last use and its class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ghost {
    pub stamp: u32,
    pub class: ReuseClass,
}

/// A ghost in 8 bytes; all 0 means none.
#[derive(Clone, Copy, Debug, Default)]
struct HistoryBucket {
    stamp: u32,
    /// From the lowest: class 9 bits, fingerprint 23, never 0 where there is a ghost.
    word: u32,
}

impl HistoryBucket {
    fn ghost(self) -> Ghost {
        Ghost { stamp: self.stamp, class: ReuseClass::from_bits(self.word as u16) }
    }
}

/// The table: 8 bytes a ghost, in buckets of one cache line; a new ghost replaces the oldest of its
/// bucket. With many chunks, only tags in the sample are remembered, and each stands for several.
#[derive(Clone, Debug)]
pub(crate) struct ReuseHistory {
    buckets: Box<[[HistoryBucket; WAYS]]>,
    /// One in 2^shift is remembered.
    shift: u32,
    /// The residents that the table was made for.
    made_for: usize,
}

impl ReuseHistory {
    /// An empty table, without memory.
    pub fn new() -> Self {
        ReuseHistory { buckets: Box::default(), shift: 0, made_for: 0 }
    }

    /// The number of chunks that one ghost stands for.
    pub fn weight(&self) -> f32 {
        (1u32 << self.shift) as f32
    }

    /// Whether the table is too small for this many residents.
    pub fn is_small_for(&self, residents: usize) -> bool {
        residents > REMAKE_AT * self.made_for
    }

    /// Whether a tag is in the sample. Does not read the table.
    pub fn samples(&self, tag: u64) -> bool {
        self.place(tag).is_some()
    }

    /// Remembers a tag, if it is in the sample. Returns the ghost that it replaced.
    pub fn push(&mut self, tag: u64, ghost: Ghost) -> Option<Ghost> {
        let (at, print) = self.place(tag)?;
        let old = |line: &HistoryBucket| {
            // A free place counts as the oldest.
            if line.word == 0 { u32::MAX } else { ghost.stamp.wrapping_sub(line.stamp) }
        };
        let line =
            self.buckets[at].iter_mut().max_by_key(|line| old(line)).expect("a bucket has ways");
        let gone = (line.word != 0).then(|| line.ghost());
        let word = u32::from(ghost.class.bits()) | print << 9;
        *line = HistoryBucket { stamp: ghost.stamp, word };
        gone
    }

    /// Removes a tag and returns its ghost.
    pub fn take(&mut self, tag: u64) -> Option<Ghost> {
        let (at, print) = self.place(tag)?;
        // Another tag may have this fingerprint: in a full bucket about one lookup in a million. It
        // is one wrong observation, and never a wrong chunk.
        let line = self.buckets[at].iter_mut().find(|line| line.word >> 9 == print)?;
        Some(core::mem::take(line).ghost())
    }

    /// The number of buckets.
    pub fn buckets(&self) -> usize {
        self.buckets.len()
    }

    /// The ghosts of some buckets.
    pub fn ghosts(&self, buckets: core::ops::Range<usize>) -> impl Iterator<Item = Ghost> + '_ {
        self.buckets[buckets]
            .iter()
            .flatten()
            .filter(|line| line.word != 0)
            .map(|line| line.ghost())
    }

    pub fn memory_bytes(&self) -> usize {
        size_of_val(&*self.buckets)
    }

    /// Starts again with a table for this many residents: between a quarter and half as many ghosts,
    /// for [`REACH`] times as many chunks.
    pub fn make(&mut self, residents: usize) {
        // Rounded down to a power of two, for the mask in `place`.
        let ghosts =
            (residents / RESIDENTS_PER_GHOST + 1).next_power_of_two().max(2 * GHOSTS_MIN) / 2;
        // The ghosts so far are dropped: in this table they would be in other buckets and another
        // sample.
        self.buckets = vec![[HistoryBucket::default(); WAYS]; ghosts / WAYS].into_boxed_slice();
        self.shift = (REACH * residents).div_ceil(ghosts).next_power_of_two().trailing_zeros();
        self.made_for = residents;
    }

    /// Bucket and fingerprint of a tag that is in the sample.
    fn place(&self, tag: u64) -> Option<(usize, u32)> {
        if self.buckets.is_empty() || tag == 0 {
            return None;
        }
        let hash = hash(tag);
        // Three parts of the hash that share no bits, so that a bucket or a sample has all
        // fingerprints: sample from bit 56, bucket from 32, fingerprint from 9.
        let sampled = hash >> 56 & ((1 << self.shift) - 1) == 0;
        let print = (hash as u32 >> 9).max(1);
        sampled.then(|| ((hash >> 32) as usize & (self.buckets.len() - 1), print))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ghost_is_taken_once() {
        let mut history = ReuseHistory::new();
        assert_eq!(history.take(5), None);
        history.make(100);
        let ghost = |stamp| Ghost { stamp, class: ReuseClass::from_bits(0x1FF) };
        assert_eq!(history.push(5, ghost(9)), None);
        assert_eq!((history.take(5), history.take(5)), (Some(ghost(9)), None));
        assert_eq!((history.push(0, ghost(9)), history.take(0)), (None, None), "0 is no tag");
    }

    #[test]
    fn the_oldest_ghost_is_replaced_and_memory_is_bounded() {
        let mut history = ReuseHistory::new();
        history.make(10_000);
        for tag in 1..=1_000_000u32 {
            history.push(u64::from(tag), Ghost { stamp: tag, class: ReuseClass::default() });
        }
        assert_eq!(history.memory_bytes(), GHOSTS_MIN * 8);
        assert!((1..=500_000).all(|tag| history.take(tag).is_none()), "long forgotten");
        assert!((990_000..=1_000_000).filter(|tag| history.take(*tag).is_some()).count() > 9_990);
    }

    #[test]
    fn a_large_table_samples() {
        let mut history = ReuseHistory::new();
        history.make(1_000_000);
        for tag in 1..=1_000_000u32 {
            history.push(u64::from(tag), Ghost { stamp: tag, class: ReuseClass::default() });
        }
        assert!(history.memory_bytes() <= 4_000_000, "{}", history.memory_bytes());
        let found = (1..=1_000_000).filter(|tag| history.take(*tag).is_some()).count() as f32;
        assert!(
            (found * history.weight() / 1e6 - 1.0).abs() < 0.05,
            "{found} of weight {}",
            history.weight()
        );
    }

    #[test]
    fn a_table_has_a_quarter_to_half_as_many_ghosts_as_there_are_chunks() {
        let mut history = ReuseHistory::new();
        let made = [1 << 17, (1 << 18) - 1, (1 << 19) - 2, 1 << 19, 1_000_000].map(|residents| {
            history.make(residents);
            (history.memory_bytes() / 8, history.weight())
        });
        let expected = [(16, 8.0), (16, 16.0), (17, 16.0), (18, 8.0), (18, 16.0)]
            .map(|(bits, weight)| (1 << bits, weight));
        assert_eq!(made, expected);
    }

    #[test]
    fn a_table_is_too_small_for_more_than_four_times_as_many() {
        let mut history = ReuseHistory::new();
        assert_eq!([0, 1].map(|residents| history.is_small_for(residents)), [false, true]);
        history.make(100);
        assert_eq!([400, 401].map(|residents| history.is_small_for(residents)), [false, true]);
    }

    #[test]
    fn only_tags_of_the_sample_are_in_it() {
        let mut history = ReuseHistory::new();
        assert!(!history.samples(5), "there is no table");
        history.make(1_000_000);
        let sampled = (1..=16_000).filter(|tag| history.samples(*tag)).count();
        assert!((800..1200).contains(&sampled), "{sampled}");
        assert!(!history.samples(0));
    }
}
