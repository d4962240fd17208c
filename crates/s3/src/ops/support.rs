use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::time::Instant;

/// Whether the store has a feature, as seen of late. Nothing is learned for good: a proxy or a single node may have answered.
#[derive(Debug)]
pub struct Support {
    began: Instant,
    /// So many answers in a row must lack it.
    lacks_min: u32,
    /// How long it counts as lacking; then it is asked for again.
    lacks_for: Duration,
    /// Answers that lacked it since the last that had it.
    lacked: AtomicU32,
    /// In milliseconds since `began`; 0 when it was there last.
    lacking_until_ms: AtomicU64,
}

impl Support {
    /// Ranges: three objects in a row, each read in ranges, must come as a whole. What one request learns is for its object alone.
    pub fn of_ranges() -> Self {
        Support::new(3, Duration::from_secs(60))
    }

    /// The request that deletes many: a store without it answers with a status of its own.
    pub fn of_deleting_many() -> Self {
        Support::new(1, Duration::from_secs(600))
    }

    fn new(lacks_min: u32, lacks_for: Duration) -> Self {
        let (lacked, lacking_until_ms) = Default::default();
        Support { began: Instant::now(), lacks_min, lacks_for, lacked, lacking_until_ms }
    }

    /// An answer lacked it just now.
    pub fn note_lacking(&self, now: Instant) {
        let before = self.lacked.fetch_add(1, Ordering::Relaxed);
        if before + 1 >= self.lacks_min {
            // The next one after that time is the first again.
            self.lacked.store(0, Ordering::Relaxed);
            self.lacking_until_ms.store(self.ms(now + self.lacks_for), Ordering::Relaxed);
        }
    }

    /// An answer had it.
    pub fn note_there(&self) {
        self.lacked.store(0, Ordering::Relaxed);
        self.lacking_until_ms.store(0, Ordering::Relaxed);
    }

    /// Whether it is not worth asking for.
    pub fn is_lacking(&self, now: Instant) -> bool {
        self.ms(now) < self.lacking_until_ms.load(Ordering::Relaxed)
    }

    fn ms(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.began).as_millis() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_object_says_nothing_of_others_and_what_was_learned_expires() {
        let support = Support::of_ranges();
        let now = Instant::now();
        support.note_lacking(now);
        support.note_lacking(now);
        assert!(!support.is_lacking(now));
        support.note_there();
        support.note_lacking(now);
        support.note_lacking(now);
        assert!(!support.is_lacking(now), "not in a row");
        support.note_lacking(now);
        assert!(support.is_lacking(now) && support.is_lacking(now + support.lacks_for / 2));
        let after = now + support.lacks_for + Duration::from_millis(1);
        assert!(!support.is_lacking(after));
        support.note_lacking(after);
        assert!(!support.is_lacking(after));
        support.note_lacking(after);
        support.note_lacking(after);
        assert!(support.is_lacking(after));
        support.note_there();
        assert!(!support.is_lacking(after));
    }
}
