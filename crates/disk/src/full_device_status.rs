//! A device that is full before the tier's cap is reached.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use kvtier_core::Clock;

/// How long the status reports a full device after it was seen last.
const REPORTED_FOR: Duration = Duration::from_secs(30);

/// When the device was full last.
#[derive(Debug, Default)]
pub struct FullDevice(Mutex<Times>);

#[derive(Debug, Default)]
struct Times {
    seen: Option<Instant>,
    shed: Option<Instant>,
}

impl FullDevice {
    /// Notes that the device had no space for a file.
    pub fn note_seen(&self, clock: &Clock) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).seen = Some(clock.now());
    }

    /// Notes that a save was shed because the device is full.
    pub fn note_shed(&self, clock: &Clock) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).shed = Some(clock.now());
    }

    /// Whether saves were shed a short while ago.
    pub fn sheds(&self, clock: &Clock) -> bool {
        let shed = self.0.lock().unwrap_or_else(PoisonError::into_inner).shed;
        shed.is_some_and(|at| clock.elapsed(at) < REPORTED_FOR)
    }

    /// A warning for the operator, while the condition lasts.
    pub fn describe(&self, clock: &Clock) -> Option<String> {
        let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner).seen;
        let since = seen.map(|at| clock.elapsed(at)).filter(|since| *since < REPORTED_FOR)?;
        Some(format!(
            "degraded: the file system was full {} s ago, below the cap of the tier; chunks are evicted for what is saved: free space there, or \
             lower the cap",
            since.as_secs()
        ))
    }
}

#[cfg(test)]
mod tests {
    use kvtier_core::ManualClock;

    use super::*;

    #[test]
    fn it_is_reported_while_it_lasts_and_no_longer() {
        let time = ManualClock::new();
        let clock = time.clock();
        let full = FullDevice::default();
        assert!(full.describe(&clock).is_none() && !full.sheds(&clock));
        full.note_seen(&clock);
        assert!(full.describe(&clock).is_some() && !full.sheds(&clock));
        full.note_shed(&clock);
        assert!(full.sheds(&clock));
        time.advance(REPORTED_FOR);
        assert!(full.describe(&clock).is_none() && !full.sheds(&clock));
    }
}
