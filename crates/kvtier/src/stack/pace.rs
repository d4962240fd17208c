//! How fast tiers load, as measured, and whether that beats computing.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How much what was measured before counts beside a new measurement.
const KEEP: f64 = 0.95;
/// Nothing is said before so many loads were measured.
const MEASURED_MIN: f64 = 4.0;
/// In this time what was measured comes to count half. A tier that is not asked is unknown again
/// after a while, and measured anew.
const HALF_LIFE: Duration = Duration::from_secs(10);
/// A tier that is too slow is tried again with the first load after so long, and those that come
/// shortly after that: it may be faster by now.
const RETRY_EVERY: Duration = Duration::from_secs(1);
const RETRY_FOR: Duration = Duration::from_millis(100);

/// The measured pace of one tier: a line through seconds by bytes, the older measurements counting
/// less.
#[derive(Debug)]
pub struct Pace {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    sums: Sums,
    /// When something was measured last.
    heard: Instant,
    /// When it was tried last although it was too slow.
    tried: Instant,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    n: f64,
    bytes: f64,
    seconds: f64,
    bytes_squared: f64,
    product: f64,
}

/// What a load takes: a delay, and so much a byte.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Speed {
    pub delay_s: f64,
    pub s_per_byte: f64,
}

impl Pace {
    pub fn new(now: Instant) -> Self {
        Pace { state: Mutex::new(State { sums: Sums::default(), heard: now, tried: now }) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A batch of loads of so many bytes took so long.
    pub fn heard(&self, now: Instant, bytes: u64, took: Duration) {
        let (x, y, mut state) = (bytes as f64, took.as_secs_f64(), self.state());
        let old = state.sums.times(KEEP * state.faded(now));
        state.sums = Sums {
            n: old.n + 1.0,
            bytes: old.bytes + x,
            seconds: old.seconds + y,
            bytes_squared: old.bytes_squared + x * x,
            product: old.product + x * y,
        };
        state.heard = now;
    }

    /// What loads took of late; `None` before enough were measured.
    pub fn speed(&self) -> Option<Speed> {
        let sums = self.state().sums;
        (sums.n >= MEASURED_MIN).then(|| sums.speed())
    }

    /// Whether loading this much is quicker than computing it at so many bytes a second. What was
    /// too slow is tried again now and then.
    pub fn beats(&self, now: Instant, bytes: u64, computed_per_s: f64) -> bool {
        let mut state = self.state();
        let is_known = state.sums.n * state.faded(now) >= MEASURED_MIN;
        if !is_known || state.sums.speed().takes_s(bytes) <= bytes as f64 / computed_per_s {
            return true;
        }
        if now.saturating_duration_since(state.tried) >= RETRY_EVERY {
            state.tried = now;
        }
        now.saturating_duration_since(state.tried) < RETRY_FOR
    }
}

impl State {
    /// What is left by now of the weight of what was measured.
    fn faded(&self, now: Instant) -> f64 {
        let half_lives =
            now.saturating_duration_since(self.heard).as_secs_f64() / HALF_LIFE.as_secs_f64();
        0.5_f64.powf(half_lives)
    }
}

impl Sums {
    fn times(self, factor: f64) -> Self {
        Sums {
            n: factor * self.n,
            bytes: factor * self.bytes,
            seconds: factor * self.seconds,
            bytes_squared: factor * self.bytes_squared,
            product: factor * self.product,
        }
    }

    fn speed(self) -> Speed {
        let spread = self.n * self.bytes_squared - self.bytes * self.bytes;
        let flat = Speed { delay_s: 0.0, s_per_byte: self.seconds / self.bytes.max(1.0) };
        // All of one size: nothing tells delay and bandwidth apart.
        if spread <= 1e-3 * self.n * self.bytes_squared {
            return flat;
        }
        let s_per_byte = (self.n * self.product - self.bytes * self.seconds) / spread;
        let delay_s = (self.seconds - s_per_byte * self.bytes) / self.n;
        match (s_per_byte > 0.0, delay_s > 0.0) {
            (true, true) => Speed { delay_s, s_per_byte },
            (true, false) => flat,
            (false, _) => Speed { delay_s: self.seconds / self.n, s_per_byte: 0.0 },
        }
    }
}

impl Speed {
    pub fn takes_s(self, bytes: u64) -> f64 {
        self.delay_s + self.s_per_byte * bytes as f64
    }

    /// From how many bytes on loading is quicker than computing at so many bytes a second; `None`
    /// for never.
    pub fn break_even_bytes(self, computed_per_s: f64) -> Option<u64> {
        let gained = 1.0 / computed_per_s - self.s_per_byte;
        (gained > 0.0).then(|| (self.delay_s / gained).ceil() as u64)
    }
}

impl fmt::Display for Speed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = if self.s_per_byte > 0.0 { 1.0 / self.s_per_byte } else { f64::INFINITY };
        match rate.is_finite() {
            true => write!(
                f,
                "{:.2} ms and {}/s",
                1e3 * self.delay_s,
                crate::bytes::format(rate as u64)
            ),
            false => write!(f, "{:.2} ms however much", 1e3 * self.delay_s),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tier of 2 ms and 1 GB/s.
    fn took(bytes: u64) -> Duration {
        Duration::from_secs_f64(0.002 + bytes as f64 / 1e9)
    }

    #[test]
    fn delay_and_bandwidth_are_told_apart_and_give_a_break_even() {
        let pace = Pace::new(Instant::now());
        (1..4).for_each(|n| pace.heard(Instant::now(), n << 20, took(n << 20)));
        assert_eq!(pace.speed(), None, "too little was measured");
        (1..100).for_each(|n| pace.heard(Instant::now(), (n % 7) << 20, took((n % 7) << 20)));
        let speed = pace.speed().unwrap();
        assert!(
            (speed.delay_s - 0.002).abs() < 1e-5 && (speed.s_per_byte - 1e-9).abs() < 1e-12,
            "{speed:?}"
        );
        // Computed at 500 MB/s: 2 ms are gained by 2 MB.
        let even = speed.break_even_bytes(5e8).unwrap();
        assert!(even.abs_diff(2_000_000) < 20_000, "{even}");
        assert_eq!(speed.break_even_bytes(2e9), None);
        assert!(speed.takes_s(even) <= even as f64 / 5e8 * 1.01);
    }

    #[test]
    fn loads_of_one_size_are_bandwidth_alone_and_the_latest_count_most() {
        let pace = Pace::new(Instant::now());
        (0..50).for_each(|_| pace.heard(Instant::now(), 1 << 20, Duration::from_secs(1)));
        (0..200).for_each(|_| pace.heard(Instant::now(), 1 << 20, Duration::from_millis(1)));
        let speed = pace.speed().unwrap();
        assert!(speed.delay_s == 0.0 && (speed.takes_s(1 << 20) - 0.001).abs() < 1e-4, "{speed:?}");
    }

    fn slow(now: Instant) -> Pace {
        let pace = Pace::new(Instant::now());
        (0..20).for_each(|_| pace.heard(now, 1 << 20, Duration::from_secs(1)));
        pace.state().tried = now;
        pace
    }

    #[test]
    fn a_slow_tier_is_tried_again_whenever_the_next_load_comes() {
        let (now, ms) = (Instant::now(), Duration::from_millis);
        let pace = slow(now);
        assert!(pace.beats(now + ms(500), 1 << 20, 1e3), "computing is slower still");
        let asked = |after| pace.beats(now + ms(after), 1 << 20, 1e9);
        // However the loads fall: one after a second is a trial, and so is what follows shortly.
        assert_eq!(
            [500, 1730, 1800, 1831, 2700, 2731, 2800].map(asked),
            [false, true, true, false, false, true, true]
        );
    }

    #[test]
    fn a_tier_that_is_not_asked_is_unknown_again_and_one_that_is_faster_by_now_is_soon_believed() {
        let now = Instant::now();
        let (pace, later) = (slow(now), now + 3 * HALF_LIFE);
        pace.state().tried = later;
        assert!(pace.beats(later, 1 << 20, 1e9));
        (0..4).for_each(|_| pace.heard(later, 1 << 20, Duration::from_millis(1)));
        (4..8).for_each(|_| pace.heard(later + 2 * HALF_LIFE, 1 << 20, Duration::from_millis(1)));
        pace.state().tried = later + 2 * HALF_LIFE;
        assert!(pace.beats(later + 2 * HALF_LIFE + RETRY_FOR, 1 << 20, 1e7), "{:?}", pace.speed());
    }
}
