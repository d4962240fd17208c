//! What waits to be written to lower tiers, and how much of it there may be.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// No chunk counts as less: what waits is not only bytes.
const SHARE_MIN: u64 = 4096;

/// The most chunks that wait: each takes memory of its own, however small it is.
const CHUNKS_MAX: u64 = 4096;

/// A bounded sum of bytes.
#[derive(Debug)]
pub struct Dirty {
    max: u64,
    used: AtomicU64,
}

/// A part of it, given back when dropped.
#[derive(Debug)]
pub struct Share {
    of: Arc<Dirty>,
    bytes: u64,
}

impl Dirty {
    pub fn new(max: u64) -> Arc<Self> {
        Arc::new(Dirty { max, used: AtomicU64::new(0) })
    }

    /// Room for `bytes` more; `None` when there is none.
    pub fn take(self: &Arc<Self>, bytes: u64) -> Option<Share> {
        let bytes = bytes.max(SHARE_MIN).max(self.max / CHUNKS_MAX);
        let more = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= self.max);
        self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(Share { of: Arc::clone(self), bytes })
    }

    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Acquire)
    }

    pub fn max(&self) -> u64 {
        self.max
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.of.used.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_never_more_than_the_bound_and_all_of_it_comes_back() {
        let dirty = Dirty::new(10_000);
        let (one, two) = (dirty.take(1).unwrap(), dirty.take(5000).unwrap());
        assert!(dirty.take(1).is_none() && dirty.take(u64::MAX).is_none());
        drop(two);
        let three = dirty.take(5900).unwrap();
        assert_eq!(dirty.used(), 4096 + 5900);
        drop((one, three));
        assert_eq!(dirty.used(), 0);
    }

    #[test]
    fn chunks_of_one_byte_are_bounded_too() {
        let dirty = Dirty::new(256 << 20);
        let shares: Vec<Share> = std::iter::from_fn(|| dirty.take(1)).take(100_000).collect();
        assert_eq!(shares.len() as u64, CHUNKS_MAX);
    }
}
