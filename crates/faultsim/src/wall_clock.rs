//! A clock that shows the time of day: it jumps and drifts.

use std::time::Duration;

/// How much faster or slower than the store's a clock is at most, in millionths.
pub const DRIFT_MAX_PPM: u64 = 50_000;

/// A wall clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct WallClock {
    /// How far it was ahead of the store's at `since`.
    ahead_ms: i64,
    /// How much faster than the store's it goes, in millionths.
    drift_ppm: i64,
    /// In virtual time.
    since: Duration,
}

impl WallClock {
    /// How far it is ahead of the store's.
    pub fn ahead_ms(&self, now: Duration) -> i64 {
        let passed_ms = now.saturating_sub(self.since).as_millis() as i64;
        self.ahead_ms + passed_ms * self.drift_ppm / 1_000_000
    }

    /// It jumps to so much ahead.
    pub fn jump(&mut self, now: Duration, ahead_ms: i64) {
        (self.ahead_ms, self.since) = (ahead_ms, now);
    }

    /// From now on it is faster by so much, or slower.
    pub fn set_drift(&mut self, now: Duration, drift_ppm: i64) {
        self.jump(now, self.ahead_ms(now));
        self.drift_ppm = drift_ppm;
    }
}

/// The drift of a machine's clock, in millionths.
pub fn draw_drift(rng: &mut fastrand::Rng) -> i64 {
    rng.u64(0..=2 * DRIFT_MAX_PPM).cast_signed() - DRIFT_MAX_PPM.cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_drifts_on_from_where_it_jumped() {
        let at = Duration::from_secs;
        let mut clock = WallClock::default();
        clock.jump(at(1), 2000);
        assert_eq!(clock.ahead_ms(at(11)), 2000);
        clock.set_drift(at(11), -50_000);
        assert_eq!(clock.ahead_ms(at(21)), 1500);
        clock.jump(at(21), -300);
        assert_eq!(clock.ahead_ms(at(31)), -800);
        clock.set_drift(at(31), 50_000);
        assert_eq!((clock.ahead_ms(at(31)), clock.ahead_ms(at(41))), (-800, -300));
    }

    #[test]
    fn drifts_go_both_ways_up_to_the_most() {
        let mut rng = fastrand::Rng::with_seed(1);
        let drawn: Vec<i64> = (0..1000).map(|_| draw_drift(&mut rng)).collect();
        assert!(drawn.iter().all(|ppm| ppm.unsigned_abs() <= DRIFT_MAX_PPM));
        assert!(drawn.iter().any(|ppm| *ppm < -40_000) && drawn.iter().any(|ppm| *ppm > 40_000));
    }
}
