//! A shadow LRU: which chunks LRU would hold in the same capacity.
//!
//! It keeps no chunk. A chunk's node or ghost has its last use, so it suffices to
//! count the chunks by the time of their last use, in windows: LRU holds the newest windows, as
//! many as fill the capacity. Each window holds a small share of the capacity, and of the
//! oldest one LRU holds the newer part, so the age at which LRU would evict is exact to a fraction
//! of a window.

/// The most windows: 1 KiB.
const WINDOWS: usize = 128;
/// A new window opens when the newest one holds more than one part in this many of all chunks.
const PARTS: f32 = 32.0;

/// The chunks whose last use was between the begin of this window and that of the next one.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    begin: u32,
    chunks: f32,
}

/// The windows of a shadow LRU, the oldest first. Stamps are times as the policy counts them, and
/// wrap around.
#[derive(Clone, Debug)]
pub(super) struct ShadowLru {
    windows: [Window; WINDOWS],
    len: usize,
    /// How many chunks all windows hold.
    chunks: f64,
    /// How many chunks LRU has space for.
    capacity: f64,
    /// The window that was found last: the chunks of one request were used together before,
    /// mostly.
    found: usize,
    /// LRU held what was used since this time when [`begin_request`](ShadowLru::begin_request) was
    /// called last.
    held_since: u32,
}

impl ShadowLru {
    /// A shadow without chunks, and without a limit until
    /// [`set_capacity`](ShadowLru::set_capacity).
    pub fn new() -> Self {
        ShadowLru {
            windows: [Window::default(); WINDOWS],
            len: 1,
            chunks: 0.0,
            capacity: f64::INFINITY,
            found: 0,
            held_since: 0,
        }
    }

    /// LRU has space for this many chunks.
    pub fn set_capacity(&mut self, chunks: usize) {
        self.capacity = chunks as f64;
    }

    /// LRU has space for at least this many chunks.
    pub fn grow(&mut self, chunks: usize) {
        self.capacity = self.capacity.max(chunks as f64);
    }

    /// A request begins: from here on [`take`](ShadowLru::take) answers what LRU holds now,
    /// whatever the chunks of this request displace. A request looks all of its chunks up
    /// before it saves any.
    pub fn begin_request(&mut self) {
        self.held_since = self.windows[0].begin;
    }

    /// Takes out a chunk (`weight` of them) that was used last at `stamp`. Answers whether LRU held
    /// it when the request began.
    pub fn take(&mut self, stamp: u32, now: u32, weight: f32) -> bool {
        let age = now.wrapping_sub(stamp);
        if let Some(window) = self.find(age, now) {
            // A ghost stands for several chunks, and the window may have lost some of them since.
            let taken = weight.min(self.windows[window].chunks);
            self.windows[window].chunks -= taken;
            self.chunks -= f64::from(taken);
        }
        // Not by the windows: chunks that this request has put in may have displaced it.
        age <= now.wrapping_sub(self.held_since)
    }

    /// Puts in a chunk (`weight` of them) that is used now. What does not fit goes, the oldest
    /// first.
    pub fn put(&mut self, now: u32, weight: f32) {
        // There is always a newest window: `evict` and `merge` leave at least one. The last summand
        // lets it hold a chunk in the smallest caches too.
        if self.windows[self.len - 1].chunks * PARTS > self.chunks as f32 + PARTS {
            self.open_window(now);
        }
        self.windows[self.len - 1].chunks += weight;
        self.chunks += f64::from(weight);
        if self.chunks > self.capacity {
            self.evict();
        }
    }

    fn open_window(&mut self, now: u32) {
        // At most about half of the windows remain after a merge, so merges are rare.
        if self.len == WINDOWS {
            self.merge();
        }
        self.windows[self.len] = Window { begin: now, chunks: 0.0 };
        self.len += 1;
    }

    /// The window of an age, if LRU still holds chunks of it.
    fn find(&mut self, age: u32, now: u32) -> Option<usize> {
        let begins_before = |window: &Window| now.wrapping_sub(window.begin) >= age;
        // The windows are in the order of their begin, so those of this age or older come first.
        // Ages are compared and not stamps, which wrap around.
        let windows = &self.windows[..self.len];
        let is_found = windows.get(self.found).is_some_and(begins_before)
            && !windows.get(self.found + 1).is_some_and(begins_before);
        if !is_found {
            // Older than the oldest window: LRU has evicted it.
            self.found = windows.partition_point(begins_before).checked_sub(1)?;
        }
        Some(self.found)
    }

    fn evict(&mut self) {
        let mut gone = 0;
        while self.chunks > self.capacity && gone + 1 < self.len {
            let excess = (self.chunks - self.capacity) as f32;
            let end = self.windows[gone + 1].begin;
            let oldest = &mut self.windows[gone];
            if oldest.chunks > excess {
                // Its uses are assumed to be spread evenly over the window, so its begin moves in
                // proportion to what goes.
                let span = end.wrapping_sub(oldest.begin) as f32;
                oldest.begin = oldest.begin.wrapping_add((span * excess / oldest.chunks) as u32);
                oldest.chunks -= excess;
                self.chunks -= f64::from(excess);
                break;
            }
            self.chunks -= f64::from(oldest.chunks);
            gone += 1;
        }
        if gone > 0 {
            self.windows.copy_within(gone..self.len, 0);
            self.len -= gone;
        }
    }

    /// Merges adjacent windows that together hold no more than a new one may. At most `2 *
    /// PARTS + 1` remain, since any two adjacent ones hold more then.
    fn merge(&mut self) {
        let most = self.chunks as f32 / PARTS;
        let mut last = 0;
        for at in 1..self.len {
            let window = self.windows[at];
            if self.windows[last].chunks + window.chunks <= most {
                self.windows[last].chunks += window.chunks;
            } else {
                last += 1;
                self.windows[last] = window;
            }
        }
        self.len = last + 1;
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;
    use alloc::vec::Vec;

    use super::*;
    use crate::{Lru, Policy, SlotInfo};

    /// The hits of the real policy and of its shadow.
    struct Hits {
        lru: u32,
        shadow: u32,
    }

    /// Uses keys of a skewed distribution, one at a time.
    fn hits(capacity: u32, keys: u64, uses: u32) -> Hits {
        let mut lru = Lru::new();
        let mut slot_of = BTreeMap::new();
        let mut vacant: Vec<u32> = (0..capacity).collect();
        let mut shadow = ShadowLru::new();
        let mut last_use = BTreeMap::new();
        let mut random = 7u64;
        let mut hits = Hits { lru: 0, shadow: 0 };
        for now in 1..=uses {
            random = random.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
            let uniform = (random >> 33) as f64 / (1u64 << 31) as f64;
            let key = (keys as f64 * uniform * uniform) as u64;
            if let Some(slot) = slot_of.get(&key) {
                lru.touch(*slot);
                hits.lru += 1;
            } else {
                if vacant.is_empty() {
                    let victim = lru.victim().unwrap();
                    lru.evict(victim, 0);
                    slot_of.retain(|_, slot| *slot != victim);
                    vacant.push(victim);
                }
                let slot = vacant.pop().unwrap();
                lru.insert(SlotInfo::new(slot, 1));
                slot_of.insert(key, slot);
            }
            shadow.begin_request();
            if last_use.insert(key, now).is_some_and(|stamp| shadow.take(stamp, now, 1.0)) {
                hits.shadow += 1;
            }
            shadow.set_capacity(capacity as usize);
            shadow.put(now, 1.0);
        }
        hits
    }

    #[test]
    fn the_shadow_has_the_hits_of_lru() {
        for (capacity, keys) in [(100, 1000), (500, 700), (300, 20_000)] {
            let Hits { lru, shadow } = hits(capacity, keys, 30_000);
            let error = (f64::from(lru) - f64::from(shadow)) / 30_000.0;
            assert!(lru > 0 && error.abs() < 0.002, "{capacity} of {keys}: {lru} and {shadow}");
        }
    }

    #[test]
    fn the_windows_stay_few_and_hold_all_chunks() {
        let mut shadow = ShadowLru::new();
        shadow.set_capacity(10_000);
        // Half of the uses are of chunks that were used before, so that windows become small.
        for now in 1..=1_000_000u32 {
            if now % 2 == 0 {
                shadow.take(now.wrapping_sub(now % 9973), now, 1.0);
            }
            shadow.put(now, 1.0);
            let sum: f32 = shadow.windows[..shadow.len].iter().map(|window| window.chunks).sum();
            assert!(
                (f64::from(sum) - shadow.chunks).abs() < 1.0 && shadow.chunks <= 10_000.0,
                "{sum} at {now}"
            );
        }
    }

    #[test]
    fn time_that_wraps_around_changes_nothing() {
        let mut shadow = ShadowLru::new();
        let first = u32::MAX - 500;
        for n in 0..1000u32 {
            shadow.set_capacity(100);
            shadow.put(first.wrapping_add(n), 1.0);
        }
        shadow.begin_request();
        let now = first.wrapping_add(1000);
        assert!(shadow.clone().take(now.wrapping_sub(90), now, 1.0));
        assert!(!shadow.clone().take(now.wrapping_sub(110), now, 1.0));
    }

    #[test]
    fn the_newest_window_stays_whole_in_the_smallest_cache() {
        let mut shadow = ShadowLru::new();
        shadow.set_capacity(1);
        shadow.put(5, 4.0);
        assert_eq!((shadow.len, shadow.chunks), (1, 4.0));
    }

    /// A shadow with these windows, each its begin and its chunks.
    fn shadow(capacity: f64, windows: &[(u32, f32)]) -> ShadowLru {
        let mut shadow = ShadowLru { capacity, len: windows.len(), ..ShadowLru::new() };
        for (window, (begin, chunks)) in shadow.windows.iter_mut().zip(windows) {
            *window = Window { begin: *begin, chunks: *chunks };
            shadow.chunks += f64::from(*chunks);
        }
        shadow
    }

    fn windows(shadow: &ShadowLru) -> Vec<(u32, f32)> {
        shadow.windows[..shadow.len].iter().map(|window| (window.begin, window.chunks)).collect()
    }

    #[test]
    fn a_window_opens_when_the_newest_holds_more_than_its_part_and_one() {
        let mut shadow = ShadowLru::new();
        (1..=33).for_each(|now| shadow.put(now, 1.0));
        // Of 32 chunks two are the part of one window and one more, so the last chunk goes to them.
        let mut expected: Vec<(u32, f32)> = (0..16).map(|n| (2 * n + 1, 2.0)).collect();
        (expected[0].0, expected[15].1) = (0, 3.0);
        assert_eq!(windows(&shadow), expected);
        shadow.put(34, 1.0);
        expected.push((34, 1.0));
        assert_eq!(windows(&shadow), expected);
    }

    #[test]
    fn the_capacity_grows_and_does_not_fall_with_the_chunks() {
        let mut shadow = ShadowLru::new();
        shadow.set_capacity(3);
        let capacities = [5, 2].map(|chunks| {
            shadow.grow(chunks);
            shadow.capacity
        });
        assert_eq!(capacities, [5.0, 5.0]);
    }

    #[test]
    fn what_does_not_fit_goes_from_the_oldest_windows() {
        let full = [(100, 4.0), (200, 3.0), (250, 0.0), (300, 1.0), (400, 1.0)];
        let left = |capacity: f64| {
            let mut shadow = shadow(capacity, &full);
            shadow.put(500, 0.5);
            assert_eq!(shadow.chunks, capacity.min(9.5));
            windows(&shadow)
        };
        let last = [(300, 1.0), (400, 1.5)];
        let behind = |first: &[(u32, f32)]| [first, &last].concat();
        assert_eq!(left(9.5), behind(&[(100, 4.0), (200, 3.0), (250, 0.0)]), "all fit");
        assert_eq!(left(6.5), behind(&[(175, 1.0), (200, 3.0), (250, 0.0)]));
        assert_eq!(left(5.5), behind(&[(200, 3.0), (250, 0.0)]), "the first exactly");
        assert_eq!(left(4.0), behind(&[(225, 1.5), (250, 0.0)]));
        assert_eq!(left(2.5), behind(&[(250, 0.0)]), "an empty one stays");
        assert_eq!(left(2.0), [(350, 0.5), (400, 1.5)]);
    }

    #[test]
    fn windows_are_merged_only_where_there_is_no_place_for_another() {
        let mut full: Vec<(u32, f32)> = (0..127).map(|n| (n, 1.0)).collect();
        let mut shadow = shadow(f64::INFINITY, &full);
        shadow.open_window(1000);
        full.push((1000, 0.0));
        assert_eq!((windows(&shadow), shadow.len), (full, WINDOWS));
        // Three of them together are no more than a part of all chunks, and four are.
        shadow.open_window(2000);
        let merged = (0..42).map(|n| (3 * n, 3.0));
        let expected: Vec<(u32, f32)> = merged.chain([(126, 1.0), (2000, 0.0)]).collect();
        assert_eq!(windows(&shadow), expected);
    }
}
