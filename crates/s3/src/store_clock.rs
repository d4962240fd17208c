//! The store's clock, estimated from the `date` headers of its responses.

use std::sync::atomic::{AtomicI64, Ordering};

use crate::local_clock::WallClock;
use crate::time_formats::http_date;

/// Less than this is not worth correcting: a signature is good for fifteen minutes.
const CORRECT_FROM_S: i64 = 240;
/// A larger offset is ignored as wrong.
const BELIEVE_MAX_S: i64 = 24 * 3600;

/// Local time and how far the store's is from it, in seconds.
#[derive(Debug, Default)]
pub struct StoreClock {
    local: WallClock,
    measured: AtomicI64,
    applied: AtomicI64,
    learned: AtomicI64,
}

impl StoreClock {
    /// The store's clock as seen from this local clock. Nothing is known of it yet.
    pub fn seen_from(local: WallClock) -> Self {
        StoreClock { local, ..StoreClock::default() }
    }

    /// Milliseconds since 1970 by the local clock.
    pub fn local_ms(&self) -> u64 {
        self.local.since_1970().as_millis() as u64
    }

    /// The time to sign with, in seconds since 1970.
    pub fn signing(&self) -> i64 {
        self.local.unix_s() + self.applied.load(Ordering::Relaxed)
    }

    /// The store's time by its last response, in seconds since 1970.
    pub fn server(&self) -> i64 {
        self.local.unix_s() + self.measured.load(Ordering::Relaxed)
    }

    /// How far the store's clock is ahead of ours, in seconds.
    pub fn offset(&self) -> i64 {
        self.measured.load(Ordering::Relaxed)
    }

    /// Whether it is time to learn again: an answer a second is enough.
    pub fn is_due(&self) -> bool {
        self.learned.load(Ordering::Relaxed) != self.local.unix_s()
    }

    /// Learns from a `date` header; `refused` says that the store complained. Returns whether
    /// signatures are made with another offset from now on.
    pub fn learn(&self, date: Option<&str>, refused: bool) -> bool {
        let now = self.local.unix_s();
        let Some(offset) = date.and_then(http_date).map(|date| date - now) else { return false };
        // Also for an offset that is ignored, or each response would be parsed again.
        self.learned.store(now, Ordering::Relaxed);
        if offset.abs() > BELIEVE_MAX_S {
            return false;
        }
        self.measured.store(offset, Ordering::Relaxed);
        let applied = self.applied.load(Ordering::Relaxed);
        // Small differences are left alone, since a new offset changes each signature; a refusal
        // shows that they matter.
        let far = (offset - applied).abs() >= CORRECT_FROM_S;
        if far || (refused && offset != applied) {
            self.applied.store(offset, Ordering::Relaxed);
        }
        far || (refused && offset != applied)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sane_and_large_offsets_are_applied() {
        let clock = StoreClock::default();
        assert!(!clock.learn(Some("nonsense"), true));
        assert!(!clock.learn(Some("Sun, 06 Nov 1994 08:49:37 GMT"), true), "a wild date");
        assert_eq!(clock.offset(), 0);
        let date = |ahead: i64| {
            let stamp = crate::time_formats::Stamp::of(clock.local.unix_s() + ahead);
            let text = stamp.as_str();
            let months = [
                "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
            ];
            let month = months[text[4..6].parse::<usize>().unwrap() - 1];
            let year = &text[..4];
            let day = &text[6..8];
            let clock = format!("{}:{}:{}", &text[9..11], &text[11..13], &text[13..15]);
            format!("Mon, {day} {month} {year} {clock} GMT")
        };
        assert!(!clock.learn(Some(&date(60)), false));
        assert!((59..=60).contains(&clock.offset()));
        assert!(clock.signing() <= clock.local.unix_s() + 1);
        assert!(clock.learn(Some(&date(1200)), false));
        assert!(clock.signing() >= clock.local.unix_s() + 1190);
        assert!(clock.learn(Some(&date(0)), false), "and back");
    }
}
