//! Limits what the default policy loses to LRU.
//!
//! Where nothing but recency predicts a return, differences between classes are chance, and to act
//! on them costs hits. The guard compares the hits of the policy with those of a [shadow
//! LRU](ShadowLru) while the policy runs. When LRU is ahead, the policy gives less weight to what
//! it learnt of single classes; at weight 0 it evicts in the order of LRU. A small weight costs
//! little where the classes mean nothing. It is kept for a while before the weight becomes 0, since
//! it still shows whether they mean something.

use super::shadow::ShadowLru;

/// Up to this many slots all are watched, of more a sample of about this many.
const WATCHED_MAX: usize = 1 << 13;
/// By how many of all uses LRU may be ahead before the weight falls,
const AHEAD_MIN: f64 = 0.0005;
/// when it has fallen to [`WEIGHT_LOW`],
const AHEAD_LOW: f64 = 0.0015;
/// and when it is 0.
const AHEAD_MAX: f64 = 0.0025;
/// A weight at which the classes still show in the hits.
const WEIGHT_LOW: f64 = 0.15;
/// Before the first use LRU and policy are assumed equal for as many uses as there are
/// chunks, times this.
const USES_BEFORE: f64 = 16.0;
/// Hits are compared over about as many uses as there are chunks, times this.
const USES_COMPARED: f64 = 64.0;
/// For this many chunks at least.
const CHUNKS_MIN: usize = 1 << 16;

/// The comparison with LRU.
#[derive(Clone, Debug)]
pub(super) struct Guard {
    shadow: ShadowLru,
    /// One slot is watched for each this many: a power of two.
    stride: u32,
    /// How many hits LRU is ahead, and of how many uses. Both decay.
    ahead: f64,
    uses: f64,
}

impl Guard {
    pub fn new() -> Self {
        Guard { shadow: ShadowLru::new(), stride: 1, ahead: 0.0, uses: 0.0 }
    }

    /// There are `chunks` in the cache, in slots below `slots`.
    pub fn grow(&mut self, chunks: usize, slots: usize) {
        self.shadow.grow(chunks);
        self.stride = slots.div_ceil(WATCHED_MAX).next_power_of_two() as u32;
    }

    /// The cache is full with this many chunks.
    pub fn set_capacity(&mut self, chunks: usize) {
        self.shadow.set_capacity(chunks);
    }

    /// A request begins: what it hits is compared with what LRU holds now.
    pub fn begin_request(&mut self) {
        self.shadow.begin_request();
    }

    /// A request used this many chunks.
    pub fn count_uses(&mut self, chunks: usize) {
        self.uses += chunks as f64;
    }

    /// Whether a slot is watched.
    pub fn watches(&self, slot: u32) -> bool {
        // A hash and no modulus: a request fills slots that follow each other, and a sample of it
        // must be watched.
        slot.wrapping_mul(0x9E37_79B1) >> 16 & (self.stride - 1) == 0
    }

    /// The chunk of a watched slot, used last at `stamp`, is used `now`. It was a hit of the policy
    /// unless its saving just became complete.
    pub fn used(&mut self, stamp: u32, now: u32, is_hit: bool) {
        let weight = self.stride as f32;
        let is_hit_of_lru = self.shadow.take(stamp, now, weight);
        // If LRU held it and the policy did not, `missed` has counted that before it was saved.
        if is_hit && !is_hit_of_lru {
            self.ahead -= f64::from(weight);
        }
        self.shadow.put(now, weight);
    }

    /// A chunk was saved into a watched slot.
    pub fn saved(&mut self, now: u32) {
        self.shadow.put(now, self.stride as f32);
    }

    /// The chunk of a watched slot was deleted.
    pub fn removed(&mut self, stamp: u32, now: u32) {
        self.shadow.take(stamp, now, self.stride as f32);
    }

    /// An absent chunk was requested, and was used last at `stamp`. It stands for
    /// `weight`.
    pub fn missed(&mut self, stamp: u32, now: u32, weight: f32) {
        if self.shadow.take(stamp, now, weight) {
            self.ahead += f64::from(weight);
        }
    }

    /// A chunk was requested now that LRU would have saved and the policy did not. It stands for
    /// `weight`.
    pub fn shed(&mut self, now: u32, weight: f32) {
        self.shadow.put(now, weight);
    }

    /// What the differences between classes count, from 0 to 1, in a cache of this many chunks.
    pub fn class_weight(&mut self, chunks: usize) -> f32 {
        // Halved together, so that the lead stays and older uses count less: a load that changes is
        // noticed, and the classes get another try.
        if self.uses > USES_COMPARED * chunks.max(CHUNKS_MIN) as f64 {
            self.uses /= 2.0;
            self.ahead /= 2.0;
        }
        // Uses in which neither was ahead are assumed, so that the first few requests decide
        // nothing. One more, since an empty cache has none.
        let ahead = self.ahead / (self.uses + USES_BEFORE * chunks as f64 + 1.0);
        let share = |from: f64, to: f64| ((ahead - from) / (to - from)).clamp(0.0, 1.0);
        let weight = if ahead < AHEAD_LOW {
            1.0 - (1.0 - WEIGHT_LOW) * share(AHEAD_MIN, AHEAD_LOW)
        } else {
            WEIGHT_LOW * (1.0 - share(AHEAD_LOW, AHEAD_MAX))
        };
        weight as f32
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn the_weight_falls_as_lru_gets_ahead_and_rises_as_it_falls_back() {
        let mut guard = Guard::new();
        guard.count_uses(1_000_000);
        assert_eq!(guard.class_weight(10), 1.0);
        let mut weights = Vec::new();
        for _ in 0..30 {
            guard.missed(0, 100, 100.0);
            weights.push(guard.class_weight(10));
        }
        assert!(weights.is_sorted_by(|before, after| before >= after), "{weights:?}");
        assert_eq!((weights[4], weights[29]), (1.0, 0.0));
        assert!((0.14..0.16).contains(&weights[14]), "{weights:?}");
        guard.count_uses(10_000_000);
        assert!(guard.class_weight(10) > 0.9, "what LRU gained is little of what was used since");
    }

    #[test]
    fn before_the_first_use_the_classes_count_in_full() {
        assert_eq!(Guard::new().class_weight(0), 1.0);
    }

    #[test]
    fn of_many_slots_a_sample_is_watched() {
        let mut guard = Guard::new();
        guard.grow(1 << 20, 1 << 20);
        let watched = (0..1 << 20).filter(|slot| guard.watches(*slot)).count();
        assert!((7_500..9_000).contains(&watched), "{watched}");
    }

    #[test]
    fn only_what_one_of_both_would_have_kept_counts() {
        let mut guard = Guard::new();
        guard.set_capacity(10);
        (1..=100).for_each(|now| guard.saved(now));
        guard.begin_request();
        let mut lead = Vec::new();
        guard.missed(5, 101, 3.0);
        lead.push(guard.ahead);
        guard.missed(97, 101, 3.0);
        lead.push(guard.ahead);
        guard.used(96, 101, true);
        lead.push(guard.ahead);
        guard.used(5, 101, false);
        lead.push(guard.ahead);
        guard.used(6, 101, true);
        lead.push(guard.ahead);
        assert_eq!(lead, [0.0, 3.0, 3.0, 3.0, 2.0]);
    }

    #[test]
    fn the_weight_falls_in_two_straight_lines() {
        let weights = [0.0, 500.0, 1000.0, 1500.0, 2000.0, 2500.0, 9000.0].map(|ahead| {
            // The uses that are assumed are as many as those that were.
            let mut guard = Guard { ahead, uses: 499_999.0, ..Guard::new() };
            (guard.class_weight(31_250) * 1000.0).round()
        });
        assert_eq!(weights, [1000.0, 1000.0, 575.0, 150.0, 75.0, 0.0, 0.0]);
    }

    #[test]
    fn uses_fade_once_there_are_more_than_are_compared() {
        let most = 64.0 * 65536.0;
        let mut guard = Guard { ahead: 8.0, uses: most, ..Guard::new() };
        guard.class_weight(10);
        assert_eq!((guard.uses, guard.ahead), (most, 8.0));
        guard.count_uses(2);
        guard.class_weight(10);
        assert_eq!((guard.uses, guard.ahead), (most / 2.0 + 1.0, 4.0));
    }

    #[test]
    fn what_was_shed_displaces_others_and_what_was_deleted_gives_space() {
        let lead = |change: fn(&mut Guard)| {
            let mut guard = Guard::new();
            guard.set_capacity(10);
            (1..=10).for_each(|now| guard.saved(now));
            change(&mut guard);
            guard.begin_request();
            guard.missed(1, 20, 3.0);
            guard.ahead
        };
        let save = |guard: &mut Guard| (11..=13).for_each(|now| guard.saved(now));
        assert_eq!(lead(|_| ()), 3.0, "LRU holds all");
        assert_eq!(lead(|guard| guard.shed(11, 4.0)), 0.0);
        assert_eq!(lead(save), 0.0);
        let delete_and_save = |guard: &mut Guard| {
            (6..=8).for_each(|stamp| guard.removed(stamp, 10));
            (11..=13).for_each(|now| guard.saved(now));
        };
        assert_eq!(lead(delete_and_save), 3.0);
    }

    #[test]
    fn an_empty_cache_counts_one_use_more_than_there_were() {
        let mut guard = Guard { ahead: 0.002, ..Guard::new() };
        assert_eq!((guard.class_weight(0) * 1000.0).round(), 75.0);
        guard.count_uses(1);
        assert_eq!((guard.class_weight(0) * 1000.0).round(), 575.0);
    }
}
