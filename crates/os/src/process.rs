//! The process: its name, its time, pauses, and what it runs later.

use std::time::{Duration, Instant, SystemTime};

use crate::identity::Identity;

/// The simulated process of this thread; `None` for a real one.
#[inline]
pub fn identity() -> Option<Identity> {
    #[cfg(feature = "simulate")]
    return crate::simulated::current().map(|process| process.identity());
    #[cfg(not(feature = "simulate"))]
    None
}

/// Whether this thread is a simulated process, which has no other thread.
#[inline]
pub fn is_simulated() -> bool {
    #[cfg(feature = "simulate")]
    return crate::simulated::current().is_some();
    #[cfg(not(feature = "simulate"))]
    false
}

/// The time for intervals.
#[inline]
pub fn now() -> Instant {
    #[cfg(feature = "simulate")]
    if let Some(process) = crate::simulated::current() {
        return process.now();
    }
    Instant::now()
}

/// The time of day.
#[inline]
pub fn wall() -> SystemTime {
    #[cfg(feature = "simulate")]
    if let Some(process) = crate::simulated::current() {
        return process.wall();
    }
    SystemTime::now()
}

/// Random bytes of a simulated process; `None` for a real one.
#[inline]
pub fn random_bytes() -> Option<[u8; 32]> {
    #[cfg(feature = "simulate")]
    return crate::simulated::current().map(|process| process.random_bytes());
    #[cfg(not(feature = "simulate"))]
    None
}

/// Lets this thread pause.
#[inline]
pub fn sleep(time: Duration) {
    #[cfg(feature = "simulate")]
    if let Some(process) = crate::simulated::current() {
        return process.sleep(time);
    }
    std::thread::sleep(time);
}

/// Runs `job` after this time, on the one thread of a simulated process. A real process has threads
/// for that: it drops the job.
pub fn later(after: Duration, job: impl FnOnce() + Send + 'static) {
    #[cfg(feature = "simulate")]
    if let Some(process) = crate::simulated::current() {
        return process.later(after, Box::new(job));
    }
    drop((after, job));
}
