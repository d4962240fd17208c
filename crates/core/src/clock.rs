//! The source of time of a tier.
//!
//! A tier is opened with a [`Clock`] and reads the time from nothing else: [`now`](Clock::now) for
//! deadlines and intervals, [`wall`](Clock::wall) for timestamps on a medium. Later actions are
//! timers of a [`Timekeeper`](crate::Timekeeper) with the same clock, or a thread that waits with
//! [`wait_until`](Clock::wait_until).
//!
//! The real clock is a null pointer: reading it costs one branch more than `Instant::now()`. A
//! [`ManualClock`] stands still until a test advances it. So a test can verify a promise about time
//! without waiting, and independently of the machine's speed.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime};

/// How often a thread that waits on a manual clock reads it, in real time.
// A manual clock has no way to wake such a thread, and a test notices no delay of this size.
const POLL: Duration = Duration::from_millis(1);

/// A source of time: the machine's clock, a test's [`ManualClock`], or that of a simulation. A clone
/// is the same clock.
#[derive(Clone, Default)]
pub struct Clock(Option<Arc<Source>>);

enum Source {
    Manual(Manual),
    Given(Box<dyn TimeSource>),
}

/// A source of time from outside, such as the virtual time of a simulation.
pub trait TimeSource: Send + Sync + 'static {
    /// The time on the monotonic clock.
    fn now(&self) -> Instant;

    /// The time of day.
    fn wall(&self) -> SystemTime;
}

/// A clock that moves only when a test advances it.
///
/// ```
/// use std::time::Duration;
/// use kvtier_core::ManualClock;
///
/// let time = ManualClock::new();
/// let clock = time.clock();
/// let before = clock.now();
/// time.advance(Duration::from_secs(3600));
/// assert_eq!(clock.now() - before, Duration::from_secs(3600));
/// ```
#[derive(Clone, Debug)]
pub struct ManualClock(Clock);

struct Manual {
    began: Instant,
    wall: SystemTime,
    state: Mutex<ManualTime>,
}

#[derive(Default)]
struct ManualTime {
    passed: Duration,
    /// The sum of all jumps of the wall clock.
    jumped: Duration,
    // Weak: a clock outlives the tiers that a test opens with it.
    timers: Vec<Weak<dyn Timers>>,
}

/// Timers that depend on a clock.
pub(crate) trait Timers: Send + Sync {
    /// The clock has moved: carries out what is due, and returns when that is done.
    fn carry_out(&self);
}

impl Clock {
    /// The machine's clock.
    pub const fn real() -> Self {
        Clock(None)
    }

    /// A clock that shows the time of `source`.
    pub fn given(source: impl TimeSource) -> Self {
        Clock(Some(Arc::new(Source::Given(Box::new(source)))))
    }

    /// The time on the monotonic clock, for deadlines and intervals.
    pub fn now(&self) -> Instant {
        match self.0.as_deref() {
            None => Instant::now(),
            Some(Source::Manual(manual)) => manual.began + manual.lock().passed,
            Some(Source::Given(source)) => source.now(),
        }
    }

    /// The time of day, for timestamps on a medium and comparisons with those of other machines.
    pub fn wall(&self) -> SystemTime {
        match self.0.as_deref() {
            None => SystemTime::now(),
            Some(Source::Given(source)) => source.wall(),
            Some(Source::Manual(manual)) => {
                let state = manual.lock();
                // Both under one lock, so that no reader sees a jump without the time that passed
                // before it.
                manual.wall + state.passed + state.jumped
            }
        }
    }

    /// Milliseconds since 1970; 0 before that.
    pub fn unix_ms(&self) -> u64 {
        self.wall()
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0, |since| since.as_millis() as u64)
    }

    /// The time since `since`; zero if that is in the future.
    pub fn elapsed(&self, since: Instant) -> Duration {
        self.now().saturating_duration_since(since)
    }

    /// Waits for `changed`, until `until` at the latest. Wake-ups may be spurious, as for a
    /// [`Condvar`].
    pub fn wait_until<'a, T>(
        &self,
        changed: &Condvar,
        guard: MutexGuard<'a, T>,
        until: Instant,
    ) -> MutexGuard<'a, T> {
        let left = until.saturating_duration_since(self.now());
        // Past the time: waiting with a timeout of 0 would give up the lock for nothing.
        if left.is_zero() {
            return guard;
        }
        let left = if self.is_manual() { POLL } else { left };
        changed.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Notifies `timers` when a manual clock moves. The real clock needs no notification.
    pub(crate) fn register(&self, timers: Weak<dyn Timers>) {
        if let Some(manual) = self.manual() {
            let mut state = manual.lock();
            // A test may open hundreds of tiers on one clock; those that are closed leave here.
            state.timers.retain(|timers| timers.strong_count() > 0);
            state.timers.push(timers);
        }
    }

    pub(crate) fn is_manual(&self) -> bool {
        self.manual().is_some()
    }

    fn manual(&self) -> Option<&Manual> {
        match self.0.as_deref() {
            Some(Source::Manual(manual)) => Some(manual),
            _ => None,
        }
    }
}

impl ManualClock {
    /// A clock that shows the machine's current time and stands still.
    pub fn new() -> Self {
        let manual =
            Manual { began: Instant::now(), wall: SystemTime::now(), state: Mutex::default() };
        ManualClock(Clock(Some(Arc::new(Source::Manual(manual)))))
    }

    /// The clock to open a tier with.
    pub fn clock(&self) -> Clock {
        self.0.clone()
    }

    /// Its time.
    pub fn now(&self) -> Instant {
        self.0.now()
    }

    /// Lets `time` pass. Returns when the [`Timekeeper`](crate::Timekeeper)s of this clock have
    /// carried out everything that is due, so a test can check deadlines right after it. Must not
    /// be called from a timer.
    pub fn advance(&self, time: Duration) {
        let Some(manual) = self.0.manual() else { return };
        let mut state = manual.lock();
        state.passed += time;
        let timers: Vec<_> = state.timers.iter().filter_map(Weak::upgrade).collect();
        // A timer reads this clock, so it must not be locked while they run.
        drop(state);
        timers.iter().for_each(|timers| timers.carry_out());
    }

    /// Moves the wall clock ahead; the monotonic clock stays.
    pub fn jump(&self, time: Duration) {
        if let Some(manual) = self.0.manual() {
            manual.lock().jumped += time;
        }
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        ManualClock::new()
    }
}

impl Manual {
    fn lock(&self) -> MutexGuard<'_, ManualTime> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_deref() {
            None => f.write_str("Clock(real)"),
            Some(Source::Given(_)) => f.write_str("Clock(given)"),
            Some(Source::Manual(manual)) => {
                write!(f, "Clock(manual, {:?} passed)", manual.lock().passed)
            }
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_moves_only_when_advanced() {
        let time = ManualClock::new();
        let clock = time.clock();
        let hour = Duration::from_secs(3600);
        let now = clock.now();
        let wall = clock.wall();
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!((clock.now(), clock.wall()), (now, wall));
        time.advance(hour);
        assert_eq!((clock.elapsed(now), clock.wall()), (hour, wall + hour));
        time.jump(hour);
        assert_eq!((clock.elapsed(now), clock.wall()), (hour, wall + 2 * hour));
        assert_eq!(clock.elapsed(now + 2 * hour), Duration::ZERO);
    }

    #[test]
    fn a_given_clock_shows_the_time_of_its_source() {
        struct Fixed(Instant);
        impl TimeSource for Fixed {
            fn now(&self) -> Instant {
                self.0
            }
            fn wall(&self) -> SystemTime {
                SystemTime::UNIX_EPOCH + Duration::from_secs(7)
            }
        }
        let now = Instant::now() + Duration::from_secs(3600);
        let clock = Clock::given(Fixed(now));
        assert_eq!((clock.now(), clock.unix_ms()), (now, 7000));
        assert!(!clock.is_manual());
    }

    #[test]
    fn the_real_clock_is_the_machines() {
        let before = Instant::now();
        let clock = Clock::real();
        let now = clock.now();
        let wall_ms = clock.unix_ms();
        assert!(before <= now && now <= Instant::now());
        assert!(wall_ms > 1_700_000_000_000);
        assert_eq!(
            std::mem::size_of::<Clock>(),
            std::mem::size_of::<usize>(),
            "a pointer that is null"
        );
    }

    #[test]
    fn a_thread_waits_until_the_clock_reaches_the_time() {
        let time = ManualClock::new();
        let clock = time.clock();
        let until = time.now() + Duration::from_secs(86_400);
        let waiter = std::thread::spawn(move || {
            let mutex = Mutex::new(());
            let changed = Condvar::new();
            let mut guard = mutex.lock().unwrap();
            while clock.now() < until {
                guard = clock.wait_until(&changed, guard, until);
            }
        });
        time.advance(Duration::from_secs(86_399));
        assert!(!waiter.is_finished());
        time.advance(Duration::from_secs(1));
        waiter.join().unwrap();
    }
}
