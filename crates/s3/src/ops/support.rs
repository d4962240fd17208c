use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long it counts that the store ignored a range; then the next broken body asks for a range again.
const IGNORED_FOR: Duration = Duration::from_secs(60);

/// Whether the store answers requests for a range with the whole object, as seen of late.
#[derive(Debug)]
pub struct RangeSupport {
    began: Instant,
    /// In milliseconds since `began`; 0 when no range was ever ignored.
    ignored_until_ms: AtomicU64,
}

impl Default for RangeSupport {
    fn default() -> Self {
        RangeSupport { began: Instant::now(), ignored_until_ms: AtomicU64::new(0) }
    }
}

impl RangeSupport {
    /// The store ignored a range just now.
    pub fn note_ignored(&self, now: Instant) {
        self.ignored_until_ms.store(self.ms(now + IGNORED_FOR), Ordering::Relaxed);
    }

    /// Whether ranges are not worth asking for.
    pub fn is_ignored(&self, now: Instant) -> bool {
        self.ms(now) < self.ignored_until_ms.load(Ordering::Relaxed)
    }

    fn ms(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.began).as_millis() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_learned_expires() {
        let support = RangeSupport::default();
        let now = Instant::now();
        assert!(!support.is_ignored(now));
        support.note_ignored(now);
        assert!(support.is_ignored(now) && support.is_ignored(now + IGNORED_FOR / 2));
        assert!(!support.is_ignored(now + IGNORED_FOR + Duration::from_millis(1)));
        support.note_ignored(now + 2 * IGNORED_FOR);
        assert!(support.is_ignored(now + 2 * IGNORED_FOR));
    }
}
