//! Bounds the chunks that wait to be written to lower tiers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// No chunk counts as less: a waiting chunk takes memory besides its bytes.
const SHARE_MIN: u64 = 4096;

/// The most chunks that wait, however small they are.
const CHUNKS_MAX: u64 = 4096;

/// The bytes that wait, and their bound.
#[derive(Debug)]
pub struct DirtyBytes {
    max: u64,
    used: AtomicU64,
}

/// A reserved part of the bound, released when dropped.
#[derive(Debug)]
pub struct DirtyShare {
    of: Arc<DirtyBytes>,
    bytes: u64,
}

impl DirtyBytes {
    pub fn new(max: u64) -> Arc<Self> {
        Arc::new(DirtyBytes { max, used: AtomicU64::new(0) })
    }

    /// Reserves `bytes`; `None` if that would exceed the bound.
    pub fn take(self: &Arc<Self>, bytes: u64) -> Option<DirtyShare> {
        // So at most `CHUNKS_MAX` chunks wait, however small they are.
        let bytes = bytes.max(SHARE_MIN).max(self.max / CHUNKS_MAX);
        let more = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= self.max);
        // Check and addition are one step. With two, callers on several threads could pass the
        // bound together.
        self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(DirtyShare { of: Arc::clone(self), bytes })
    }

    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Acquire)
    }

    pub fn max(&self) -> u64 {
        self.max
    }
}

impl Drop for DirtyShare {
    fn drop(&mut self) {
        self.of.used.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_never_more_than_the_bound_and_all_of_it_comes_back() {
        let dirty = DirtyBytes::new(10_000);
        let one = dirty.take(1).unwrap();
        let two = dirty.take(5000).unwrap();
        assert!(dirty.take(1).is_none() && dirty.take(u64::MAX).is_none());
        drop(two);
        let three = dirty.take(5900).unwrap();
        assert_eq!(dirty.used(), 4096 + 5900);
        drop((one, three));
        assert_eq!(dirty.used(), 0);
    }

    #[test]
    fn chunks_of_one_byte_are_bounded_too() {
        let dirty = DirtyBytes::new(256 << 20);
        let shares: Vec<DirtyShare> = std::iter::from_fn(|| dirty.take(1)).take(100_000).collect();
        assert_eq!(shares.len() as u64, CHUNKS_MAX);
    }
}
