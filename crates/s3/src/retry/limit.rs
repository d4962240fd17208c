//! How many requests are in flight: grows by one a round of successes, is cut when the store asks to slow down.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::counters::Counters;

/// One cut in this time: the answers to one overload arrive together.
const CUT_EVERY: Duration = Duration::from_millis(100);
/// A cut leaves this many eighths.
const CUT_TO_EIGHTHS: usize = 6;
/// First bytes slower than this many times the usual, and than [`SLOW_MIN`], count as overload.
const SLOW_TIMES: u32 = 8;
const SLOW_MIN: Duration = Duration::from_millis(500);

/// The gate of one endpoint.
#[derive(Debug)]
pub struct Limit {
    gate: Arc<Semaphore>,
    max: usize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    limit: usize,
    /// Permits to swallow when they come back, because they were out when the limit was cut.
    debt: usize,
    successes: usize,
    last_cut: Option<Instant>,
    usual: Duration,
}

/// Leave to have one request in flight.
#[derive(Debug)]
pub struct Permit {
    limit: Arc<Limit>,
    permit: Option<OwnedSemaphorePermit>,
}

impl Limit {
    /// At most `max` (at least one) at any time.
    pub fn new(max: usize) -> Arc<Self> {
        let max = max.clamp(1, Semaphore::MAX_PERMITS);
        let state = State { limit: max, debt: 0, successes: 0, last_cut: None, usual: Duration::ZERO };
        Arc::new(Limit { gate: Arc::new(Semaphore::new(max)), max, state: Mutex::new(state) })
    }

    /// Waits for its turn.
    pub async fn acquire(self: &Arc<Self>) -> Permit {
        let permit = Arc::clone(&self.gate).acquire_owned().await.ok();
        Permit { limit: Arc::clone(self), permit }
    }

    /// Leave beyond the limit, for the one request that looks whether the endpoint is back.
    pub fn bypass(self: &Arc<Self>) -> Permit {
        Permit { limit: Arc::clone(self), permit: None }
    }

    /// A permit, if one is free.
    pub fn try_acquire(self: &Arc<Self>) -> Option<Permit> {
        let permit = Arc::clone(&self.gate).try_acquire_owned().ok()?;
        Some(Permit { limit: Arc::clone(self), permit: Some(permit) })
    }

    /// How many may be in flight now.
    pub fn current(&self) -> usize {
        self.state().limit
    }

    /// A request went well; its first byte took so long.
    pub fn succeeded(&self, now: Instant, first_byte: Duration, counters: &Counters) {
        let mut state = self.state();
        if !state.usual.is_zero() && first_byte > (state.usual * SLOW_TIMES).max(SLOW_MIN) {
            drop(state);
            return self.overloaded(now, counters);
        }
        state.usual = if state.usual.is_zero() { first_byte } else { (state.usual * 15 + first_byte) / 16 };
        state.successes += 1;
        if state.successes >= state.limit && state.limit < self.max {
            state.successes = 0;
            state.limit += 1;
            match state.debt {
                0 => self.gate.add_permits(1),
                _ => state.debt -= 1,
            }
        }
    }

    /// The store asks to slow down, or does not keep up.
    pub fn overloaded(&self, now: Instant, counters: &Counters) {
        let mut state = self.state();
        if state.last_cut.is_some_and(|last| now.duration_since(last) < CUT_EVERY) {
            return;
        }
        let limit = (state.limit * CUT_TO_EIGHTHS / 8).max(1);
        let cut = state.limit - limit;
        state.debt += cut - self.gate.forget_permits(cut);
        (state.limit, state.successes, state.last_cut) = (limit, 0, Some(now));
        counters.limit_cuts.one();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Some(permit) = self.permit.take() else { return };
        let mut state = self.limit.state();
        if state.debt > 0 {
            state.debt -= 1;
            permit.forget();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_cut_grows_back_and_loses_no_permit() {
        let (limit, counters) = (Limit::new(16), Counters::default());
        let start = Instant::now();
        let mut held: Vec<_> = (0..16).map(|_| limit.try_acquire().unwrap()).collect();
        assert!(limit.try_acquire().is_none());
        limit.overloaded(start, &counters);
        limit.overloaded(start, &counters);
        assert_eq!((limit.current(), counters.read().limit_cuts), (12, 1));
        held.truncate(12);
        assert!(limit.try_acquire().is_none(), "the cut swallowed four");
        held.clear();
        for n in 1..20 {
            limit.overloaded(start + CUT_EVERY * n, &counters);
        }
        assert_eq!(limit.current(), 1);
        let only = limit.try_acquire().unwrap();
        assert!(limit.try_acquire().is_none());
        drop(only);
        for _ in 0..1000 {
            limit.succeeded(start, Duration::from_millis(1), &counters);
        }
        assert_eq!(limit.current(), 16);
        let held: Vec<_> = std::iter::from_fn(|| limit.try_acquire()).collect();
        assert_eq!(held.len(), 16);
    }

    #[test]
    fn slow_first_bytes_cut_it_too() {
        let (limit, counters) = (Limit::new(16), Counters::default());
        (0..10).for_each(|_| limit.succeeded(Instant::now(), Duration::from_millis(5), &counters));
        limit.succeeded(Instant::now(), Duration::from_secs(1), &counters);
        assert_eq!(limit.current(), 12);
    }
}
