//! Features of the store, learned from its responses. A response may come from a proxy, from one
//! node of many, or from an overloaded store. So a lack is learned only from several operations
//! that did not overlap, or from S3's own error code, and it expires.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::local_clock::Instant;

/// How long a store counts as one without conditional PUTs before they are tried again.
pub const CONDITIONAL_PUTS_RECHECK: Duration = Duration::from_secs(600);

/// Whether the store supports a feature, by its recent responses.
#[derive(Debug)]
pub struct FeatureSupport {
    began: Instant,
    /// The number of operations in a row that must lack it.
    lacks_min: u32,
    /// How long it counts as lacking; then it is asked for again.
    lacks_for: Duration,
    /// Operations that lacked it since the last that had it.
    lacked: AtomicU32,
    /// When the last of them was counted, in nanoseconds since `began`.
    counted_ns: AtomicU64,
    /// In milliseconds since `began`; 0 when it was there last.
    lacking_until_ms: AtomicU64,
}

impl FeatureSupport {
    /// Ranges: three objects in a row, each read in ranges, must come as a whole. What one request
    /// learns is for its object alone.
    pub fn ranges() -> Self {
        FeatureSupport::new(3, Duration::from_secs(60))
    }

    /// The request that deletes many.
    pub fn bulk_delete() -> Self {
        FeatureSupport::new(3, Duration::from_secs(60))
    }

    /// Uploads that ask the store to keep what is there already.
    pub fn conditional_puts() -> Self {
        FeatureSupport::new(3, CONDITIONAL_PUTS_RECHECK)
    }

    /// Uploads whose hash is not signed: what was refused so and taken with its hash signed. To ask
    /// again costs a body that is sent twice.
    pub fn unsigned_bodies() -> Self {
        FeatureSupport::new(3, Duration::from_secs(600))
    }

    fn new(lacks_min: u32, lacks_for: Duration) -> Self {
        let (lacked, counted_ns, lacking_until_ms) = Default::default();
        FeatureSupport {
            began: Instant::now(),
            lacks_min,
            lacks_for,
            lacked,
            counted_ns,
            lacking_until_ms,
        }
    }

    /// An operation that began then lacked it just now. Operations at the same time, such as the
    /// parts of an upload, may all have met one bad node: they count once.
    pub fn note_unsupported(&self, op_began: Instant, now: Instant) {
        let ns = |at: Instant| at.saturating_duration_since(self.began).as_nanos() as u64;
        let is_after = |counted_ns: u64| (ns(op_began) >= counted_ns).then(|| ns(now));
        if self.counted_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, is_after).is_err() {
            return;
        }
        let before = self.lacked.fetch_add(1, Ordering::Relaxed);
        if before + 1 >= self.lacks_min {
            self.note_refused(now);
        }
    }

    /// The store itself said, by a code of S3's, that it lacks it.
    pub fn note_refused(&self, now: Instant) {
        // The next one after that time is the first again.
        self.lacked.store(0, Ordering::Relaxed);
        self.lacking_until_ms.store(self.ms(now + self.lacks_for), Ordering::Relaxed);
    }

    /// A response showed support.
    pub fn note_supported(&self) {
        self.lacked.store(0, Ordering::Relaxed);
        self.lacking_until_ms.store(0, Ordering::Relaxed);
    }

    /// Whether the last answer lacked it.
    pub fn last_unsupported(&self) -> bool {
        self.lacked.load(Ordering::Relaxed) > 0
    }

    /// Whether it is not worth asking for.
    pub fn is_unsupported(&self, now: Instant) -> bool {
        self.ms(now) < self.lacking_until_ms.load(Ordering::Relaxed)
    }

    fn ms(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.began).as_millis() as u64
    }
}

/// When something was last so.
#[derive(Debug)]
pub struct LastSeen {
    began: Instant,
    /// In milliseconds since `began`, and one; 0 for never.
    at_ms: AtomicU64,
}

impl LastSeen {
    /// Never yet.
    pub fn never() -> Self {
        LastSeen { began: Instant::now(), at_ms: AtomicU64::new(0) }
    }

    /// It is so now.
    pub fn note(&self, now: Instant) {
        self.at_ms.store(self.ms(now) + 1, Ordering::Relaxed);
    }

    /// Whether it was so within this time.
    pub fn is_within(&self, now: Instant, time: Duration) -> bool {
        let at = self.at_ms.load(Ordering::Relaxed);
        at > 0 && u128::from((self.ms(now) + 1).saturating_sub(at)) < time.as_millis()
    }

    fn ms(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.began).as_millis() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_seen_is_forgotten() {
        let seen = LastSeen::never();
        let now = Instant::now();
        let time = Duration::from_secs(60);
        assert!(!seen.is_within(now, time));
        seen.note(now);
        assert!(seen.is_within(now, time) && seen.is_within(now + time / 2, time));
        assert!(!seen.is_within(now + time, time));
        seen.note(now + time);
        assert!(seen.is_within(now + time, time));
    }

    #[test]
    fn one_object_says_nothing_of_others_and_what_was_learned_expires() {
        let support = FeatureSupport::ranges();
        let now = Instant::now();
        support.note_unsupported(now, now);
        support.note_unsupported(now, now);
        assert!(!support.is_unsupported(now));
        support.note_supported();
        support.note_unsupported(now, now);
        support.note_unsupported(now, now);
        assert!(!support.is_unsupported(now), "not in a row");
        support.note_unsupported(now, now);
        assert!(support.is_unsupported(now) && support.is_unsupported(now + support.lacks_for / 2));
        let after = now + support.lacks_for + Duration::from_millis(1);
        assert!(!support.is_unsupported(after));
        support.note_unsupported(after, after);
        assert!(!support.is_unsupported(after));
        support.note_unsupported(after, after);
        support.note_unsupported(after, after);
        assert!(support.is_unsupported(after));
        support.note_supported();
        assert!(!support.is_unsupported(after));
    }

    #[test]
    fn operations_at_the_same_time_count_once() {
        let support = FeatureSupport::unsigned_bodies();
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        // One bad node is met by all that are under way, and by what began before the first failed.
        (10..30).for_each(|ms| support.note_unsupported(at(9), at(ms)));
        assert!(!support.is_unsupported(at(30)));
        support.note_unsupported(at(10), at(40));
        support.note_unsupported(at(39), at(41));
        assert!(!support.is_unsupported(at(41)), "two of them");
        support.note_unsupported(at(40), at(42));
        assert!(support.is_unsupported(at(42)), "one after the other");
    }
}
