use std::sync::Mutex;
use std::time::{Duration, Instant};

use kvtier_core::Clock;

/// The least time between two scans of the directory.
const INTERVAL_MIN: Duration = Duration::from_millis(100);
/// A scan is followed by a pause that is this many times as long, so that scans take at most a
/// twentieth of the time.
const PAUSE_FACTOR: u32 = 20;

/// Limits how often the whole directory is scanned: each scan reads every name.
#[derive(Debug, Default)]
pub struct RelistThrottle {
    next: Mutex<Option<Instant>>,
}

impl RelistThrottle {
    /// Runs `scan` and returns its result. Returns `false` without a scan while another thread
    /// scans, and for a while after a scan.
    pub fn run(&self, clock: &Clock, scan: impl FnOnce() -> bool) -> bool {
        let Ok(mut next) = self.next.try_lock() else { return false };
        let began = clock.now();
        if next.is_some_and(|next| began < next) {
            return false;
        }
        let scanned = scan();
        let ended = clock.now();
        *next = Some(ended + INTERVAL_MIN.max((ended - began) * PAUSE_FACTOR));
        scanned
    }
}
