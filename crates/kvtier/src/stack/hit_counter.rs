//! Counts how often chunks were found below a tier recently, for `admit: N`.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use kvtier_core::Digest;

/// The fewest chunks that are remembered; the most is twice that.
const REMEMBERED_MIN: usize = 1 << 15;

/// Counts of hits in two generations. When the young one is full it becomes the old one, and the
/// old one is dropped.
#[derive(Debug, Default)]
pub struct HitCounter(Mutex<[HashMap<u64, u8>; 2]>);

impl HitCounter {
    /// Counts a hit; returns how many there were, this one included.
    pub fn count(&self, key: &Digest) -> u8 {
        // Eight bytes of a digest: two keys that share them share a count, which promotes one a
        // little early.
        let [a, b, c, d, e, f, g, h, ..] = *key.as_bytes();
        let tag = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let [young, old] = &mut *all;
        let hits =
            young.get(&tag).or_else(|| old.get(&tag)).copied().unwrap_or(0).saturating_add(1);
        // Two generations bound the memory without a list in order of use: when the young one is
        // full, the old one is forgotten as a whole.
        if young.len() >= REMEMBERED_MIN && !young.contains_key(&tag) {
            *old = std::mem::take(young);
        }
        young.insert(tag, hits);
        hits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hits_are_counted_and_forgotten_in_time() {
        let seen = HitCounter::default();
        let key = |n: u64| Digest::derive("test", &n.to_le_bytes());
        assert_eq!([1, 2, 1].map(|n| seen.count(&key(n))), [1, 1, 2]);
        (10..10 + 3 * REMEMBERED_MIN as u64).for_each(|n| assert_eq!(seen.count(&key(n)), 1));
        assert_eq!(seen.count(&key(1)), 1);
        assert!(
            seen.0.lock().unwrap().iter().map(HashMap::len).sum::<usize>() <= 2 * REMEMBERED_MIN
        );
    }
}
