//! Measures how fast tiers load, and decides whether loading is faster than computing.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The weight of earlier measurements beside a new one.
const KEEP: f64 = 0.95;
/// The fewest measurements for an estimate.
const MEASURED_MIN: f64 = 4.0;
/// The time in which the weight of a measurement halves. The speed of a tier that is not used
/// becomes unknown after a while and is measured again.
const HALF_LIFE: Duration = Duration::from_secs(10);
/// A tier that is too slow is tried again this often, for a short time: it may be faster by now.
const RETRY_EVERY: Duration = Duration::from_secs(1);
const RETRY_FOR: Duration = Duration::from_millis(100);

/// The latency of one tier's loads: a line fitted through seconds over bytes, in which older
/// measurements count less.
#[derive(Debug)]
pub struct LatencyModel {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    sums: Sums,
    /// The last measurement.
    measured: Instant,
    /// The last time that it was tried although it was too slow.
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

/// The time of a load: a delay, and a time per byte.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LoadSpeed {
    pub delay_s: f64,
    pub s_per_byte: f64,
}

impl LatencyModel {
    pub fn new(now: Instant) -> Self {
        LatencyModel {
            state: Mutex::new(State { sums: Sums::default(), measured: now, tried: now }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that loads of `bytes` together took this long.
    pub fn record(&self, now: Instant, bytes: u64, took: Duration) {
        let x = bytes as f64;
        let y = took.as_secs_f64();
        let mut state = self.state();
        // Older measurements fade by number and by time: under load after about twenty loads, at
        // rest after some half-lives.
        let old = state.sums.times(KEEP * state.decay(now));
        state.sums = Sums {
            n: old.n + 1.0,
            bytes: old.bytes + x,
            seconds: old.seconds + y,
            bytes_squared: old.bytes_squared + x * x,
            product: old.product + x * y,
        };
        state.measured = now;
    }

    /// The speed of recent loads; `None` before enough were measured.
    pub fn speed(&self) -> Option<LoadSpeed> {
        let sums = self.state().sums;
        (sums.n >= MEASURED_MIN).then(|| sums.speed())
    }

    /// Whether loading `bytes` is faster than computing them at `computed_per_s` bytes a second. A
    /// tier that is too slow is tried again now and then.
    pub fn is_faster_than_computing(&self, now: Instant, bytes: u64, computed_per_s: f64) -> bool {
        let mut state = self.state();
        // A tier that is left out gets no new measurements. The weight of the old ones decays below
        // the minimum, so no verdict lasts for ever.
        let is_known = state.sums.n * state.decay(now) >= MEASURED_MIN;
        if !is_known || state.sums.speed().takes_s(bytes) <= bytes as f64 / computed_per_s {
            return true;
        }
        // Opens a window for all loads rather than for one: a single load may be an outlier.
        if now.saturating_duration_since(state.tried) >= RETRY_EVERY {
            state.tried = now;
        }
        now.saturating_duration_since(state.tried) < RETRY_FOR
    }
}

impl State {
    /// The remaining weight of the measurements.
    fn decay(&self, now: Instant) -> f64 {
        let half_lives =
            now.saturating_duration_since(self.measured).as_secs_f64() / HALF_LIFE.as_secs_f64();
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

    fn speed(self) -> LoadSpeed {
        // The usual least-squares line: n·Σxy − Σx·Σy over n·Σx² − (Σx)².
        let spread = self.n * self.bytes_squared - self.bytes * self.bytes;
        let flat = LoadSpeed { delay_s: 0.0, s_per_byte: self.seconds / self.bytes.max(1.0) };
        // Loads of one size do not separate delay and bandwidth.
        if spread <= 1e-3 * self.n * self.bytes_squared {
            return flat;
        }
        // Noise can give a negative slope or a negative delay, neither of which exists. The other
        // part then explains all of the time.
        let s_per_byte = (self.n * self.product - self.bytes * self.seconds) / spread;
        let delay_s = (self.seconds - s_per_byte * self.bytes) / self.n;
        match (s_per_byte > 0.0, delay_s > 0.0) {
            (true, true) => LoadSpeed { delay_s, s_per_byte },
            (true, false) => flat,
            (false, _) => LoadSpeed { delay_s: self.seconds / self.n, s_per_byte: 0.0 },
        }
    }
}

impl LoadSpeed {
    pub fn takes_s(self, bytes: u64) -> f64 {
        self.delay_s + self.s_per_byte * bytes as f64
    }

    /// The size from which loading is faster than computing at `computed_per_s` bytes a second;
    /// `None` for never.
    pub fn break_even_bytes(self, computed_per_s: f64) -> Option<u64> {
        let gained = 1.0 / computed_per_s - self.s_per_byte;
        (gained > 0.0).then(|| (self.delay_s / gained).ceil() as u64)
    }
}

impl fmt::Display for LoadSpeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = if self.s_per_byte > 0.0 { 1.0 / self.s_per_byte } else { f64::INFINITY };
        match rate.is_finite() {
            true => write!(
                f,
                "{:.2} ms and {}/s",
                1e3 * self.delay_s,
                crate::byte_size::format(rate as u64)
            ),
            false => write!(f, "{:.2} ms at any size", 1e3 * self.delay_s),
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
    fn delay_and_bandwidth_are_separated_and_give_a_break_even() {
        let model = LatencyModel::new(Instant::now());
        (1..4).for_each(|n| model.record(Instant::now(), n << 20, took(n << 20)));
        assert_eq!(model.speed(), None, "too little was measured");
        (1..100).for_each(|n| model.record(Instant::now(), (n % 7) << 20, took((n % 7) << 20)));
        let speed = model.speed().unwrap();
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
        let model = LatencyModel::new(Instant::now());
        (0..50).for_each(|_| model.record(Instant::now(), 1 << 20, Duration::from_secs(1)));
        (0..200).for_each(|_| model.record(Instant::now(), 1 << 20, Duration::from_millis(1)));
        let speed = model.speed().unwrap();
        assert!(speed.delay_s == 0.0 && (speed.takes_s(1 << 20) - 0.001).abs() < 1e-4, "{speed:?}");
    }

    fn slow(now: Instant) -> LatencyModel {
        let model = LatencyModel::new(Instant::now());
        (0..20).for_each(|_| model.record(now, 1 << 20, Duration::from_secs(1)));
        model.state().tried = now;
        model
    }

    #[test]
    fn a_slow_tier_is_tried_again_whenever_the_next_load_comes() {
        let now = Instant::now();
        let ms = Duration::from_millis;
        let model = slow(now);
        assert!(
            model.is_faster_than_computing(now + ms(500), 1 << 20, 1e3),
            "computing is slower still"
        );
        let tried = |after| model.is_faster_than_computing(now + ms(after), 1 << 20, 1e9);
        // The first load after a second is a trial, and so are those shortly after it.
        assert_eq!(
            [500, 1730, 1800, 1831, 2700, 2731, 2800].map(tried),
            [false, true, true, false, false, true, true]
        );
    }

    #[test]
    fn an_unused_tier_is_measured_again_and_a_faster_one_is_used_soon() {
        let now = Instant::now();
        let model = slow(now);
        let later = now + 3 * HALF_LIFE;
        model.state().tried = later;
        assert!(model.is_faster_than_computing(later, 1 << 20, 1e9));
        (0..4).for_each(|_| model.record(later, 1 << 20, Duration::from_millis(1)));
        (4..8).for_each(|_| model.record(later + 2 * HALF_LIFE, 1 << 20, Duration::from_millis(1)));
        model.state().tried = later + 2 * HALF_LIFE;
        assert!(
            model.is_faster_than_computing(later + 2 * HALF_LIFE + RETRY_FOR, 1 << 20, 1e7),
            "{:?}",
            model.speed()
        );
    }
}
