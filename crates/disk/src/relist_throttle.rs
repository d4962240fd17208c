use std::sync::Mutex;
use std::time::{Duration, Instant};

use kvtier_core::Clock;

/// The least time between two scans of the directory.
const INTERVAL_MIN: Duration = Duration::from_millis(100);
/// A scan is followed by a pause that is this many times as long, so that scans take at most a
/// twentieth of the time.
const PAUSE_FACTOR: u32 = 20;
/// The longest pause before a scan that a save needs which is shed otherwise. The scan before may have been
/// slow only since the medium was.
const NEEDED_PAUSE_MAX: Duration = Duration::from_secs(1);

/// Limits how often the whole directory is scanned: each scan reads every name.
#[derive(Debug, Default)]
pub struct RelistThrottle {
    last: Mutex<Option<LastScan>>,
}

/// A scan that has ended.
#[derive(Clone, Copy, Debug)]
struct LastScan {
    ended: Instant,
    took: Duration,
}

impl RelistThrottle {
    /// Runs `scan` and returns its result. Returns `false` without a scan while another thread
    /// scans, and for a while after a scan.
    pub fn run(&self, clock: &Clock, scan: impl FnOnce() -> bool) -> bool {
        self.run_after(Duration::MAX, clock, scan)
    }

    /// The same where a save is shed otherwise: a second after the last scan at most.
    pub fn run_needed(&self, clock: &Clock, scan: impl FnOnce() -> bool) -> bool {
        self.run_after(NEEDED_PAUSE_MAX, clock, scan)
    }

    fn run_after(&self, pause_max: Duration, clock: &Clock, scan: impl FnOnce() -> bool) -> bool {
        let Ok(mut last) = self.last.try_lock() else { return false };
        let began = clock.now();
        let pause = |last: LastScan| INTERVAL_MIN.max(last.took * PAUSE_FACTOR).min(pause_max);
        if last.is_some_and(|last| began < last.ended + pause(last)) {
            return false;
        }
        let scanned = scan();
        let ended = clock.now();
        *last = Some(LastScan { ended, took: ended - began });
        scanned
    }
}

#[cfg(test)]
mod tests {
    use kvtier_core::ManualClock;

    use super::*;

    /// A throttle whose last scan took this long.
    fn after(took: Duration) -> (RelistThrottle, ManualClock) {
        let (throttle, time) = (RelistThrottle::default(), ManualClock::new());
        let scan = || {
            time.advance(took);
            true
        };
        assert!(throttle.run(&time.clock(), scan));
        (throttle, time)
    }

    #[test]
    fn scans_take_a_twentieth_of_the_time_and_no_two_come_at_once() {
        for (took, pause) in [(0, 100), (4, 100), (10, 200), (7000, 140_000)] {
            let (throttle, time) = after(Duration::from_millis(took));
            let scan = || throttle.run(&time.clock(), || true);
            time.advance(Duration::from_millis(pause - 1));
            assert!(!scan(), "{took}");
            time.advance(Duration::from_millis(1));
            assert!(scan() && !scan(), "{took}");
        }
    }

    #[test]
    fn a_needed_scan_comes_a_second_after_one_that_was_slow() {
        for (took, pause) in [(0, 100), (10, 200), (7000, 1000)] {
            let (throttle, time) = after(Duration::from_millis(took));
            let scan = || throttle.run_needed(&time.clock(), || true);
            time.advance(Duration::from_millis(pause - 1));
            assert!(!scan(), "{took}");
            time.advance(Duration::from_millis(1));
            assert!(scan() && !scan(), "{took}");
        }
    }
}
