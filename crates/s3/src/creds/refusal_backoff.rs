//! Bounds the requests to a store that refuses what signs them, whatever their callers repeat.
//!
//! The first [`FREE`] refusals in a row cost nothing: requests that were under way together are
//! refused together. From then on one request passes in a pause, which doubles to [`PAUSE_MAX`];
//! the others get the last refusal at once. A request that passes and is dropped reports nothing,
//! so the pause begins when it passes. A success ends it, and new credentials are tried at once.
//!
//! Nothing lasts without new refusals: where the credentials work again, a request that passes may
//! get an answer that is neither success nor refusal, such as 404. After [`FORGOTTEN_AFTER`] without
//! a refusal all requests pass, and the next refusal is the first in a row.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::local_clock::Instant;

/// This many refusals in a row are no reason to pause.
const FREE: u32 = 16;
/// The first pause.
const PAUSE_MIN: Duration = Duration::from_millis(50);
/// The longest, so that credentials that work again are noticed soon.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// RefusalBackoff that are this long ago count no more. While a store refuses, one request in
/// [`PAUSE_MAX`] is refused again, so this is a store that does not.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(10);

/// The refusals of the credentials of one cache.
#[derive(Debug, Default)]
pub struct RefusalBackoff {
    /// There was one since the last success.
    any: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    in_a_row: u32,
    /// When the last one came.
    noted: Option<Instant>,
    pause: Duration,
    /// No request passes before.
    until: Option<Instant>,
    last: Option<Error>,
}

impl RefusalBackoff {
    /// Lets a request pass.
    ///
    /// # Errors
    /// The last refusal, if the credentials are refused again and again.
    pub fn admit(&self, now: Instant) -> Result<()> {
        // The usual case takes no lock: this is asked for every request.
        if !self.any.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut state = self.state();
        state.forget_old(now);
        match (state.until, &state.last) {
            (Some(until), Some(last)) if now < until => {
                let what = "the store refuses the credentials; no request is sent for a moment";
                Err(Error::new(last.kind(), what).with_source(last.clone()))
            }
            _ => {
                // This request is the one of its pause. The next pause starts now, since its answer
                // may never come.
                if state.in_a_row >= FREE {
                    state.until = Some(now + state.pause);
                }
                Ok(())
            }
        }
    }

    /// The store refused the credentials that are used now.
    pub fn note(&self, now: Instant, error: &Error) {
        let mut state = self.state();
        state.forget_old(now);
        state.noted = Some(now);
        // Requests that were refused together count one by one; `FREE` leaves space for them.
        state.in_a_row = state.in_a_row.saturating_add(1);
        state.last = Some(error.clone());
        if state.in_a_row >= FREE {
            state.pause = (2 * state.pause).clamp(PAUSE_MIN, PAUSE_MAX);
            state.until = Some(now + state.pause);
        }
        self.any.store(true, Ordering::Relaxed);
    }

    /// There are other credentials: a request may try them now.
    pub fn renewed(&self) {
        self.state().until = None;
    }

    /// A request was a success.
    pub fn end(&self) {
        if self.any.load(Ordering::Relaxed) {
            *self.state() = State::default();
            self.any.store(false, Ordering::Relaxed);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn forget_old(&mut self, now: Instant) {
        if self.noted.is_some_and(|noted| now.saturating_duration_since(noted) > FORGOTTEN_AFTER) {
            *self = State::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn refusal() -> Error {
        Error::new(ErrorKind::Denied, "expired")
    }

    #[test]
    fn what_goes_on_being_refused_passes_less_and_less_and_at_once_when_it_works() {
        let refusals = RefusalBackoff::default();
        let mut now = Instant::now();
        let mut passed = 0;
        for _ in 0..10_000 {
            match refusals.admit(now) {
                Ok(()) => {
                    passed += 1;
                    refusals.note(now, &refusal());
                }
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::Denied);
                    assert!(e.report().contains("expired"), "{}", e.report());
                }
            }
            now += Duration::from_millis(1);
        }
        assert!((20..40).contains(&passed), "{passed} in ten seconds");
        refusals.renewed();
        assert!(refusals.admit(now).is_ok(), "others are tried at once");
        assert!(refusals.admit(now).is_err(), "by one request");
        refusals.end();
        assert!((0..100).all(|_| refusals.admit(now).is_ok()));
    }

    #[test]
    fn requests_that_pass_and_say_nothing_stop_no_others() {
        let refusals = RefusalBackoff::default();
        let now = Instant::now();
        (0..FREE).for_each(|_| refusals.note(now, &refusal()));
        assert!(refusals.admit(now).is_err());
        for n in 1..10 {
            assert!(refusals.admit(now + n * PAUSE_MAX).is_ok(), "{n}");
        }
    }

    #[test]
    fn answers_that_are_no_refusals_end_it_though_they_are_no_success() {
        let refusals = RefusalBackoff::default();
        let mut now = Instant::now();
        (0..FREE).for_each(|_| refusals.note(now, &refusal()));
        // From now on the store answers 404, which reports nothing.
        for _ in 0..20 {
            now += PAUSE_MAX;
            let _ = refusals.admit(now);
        }
        assert!((0..100).all(|_| refusals.admit(now).is_ok()));
        refusals.note(now, &refusal());
        assert!(refusals.admit(now).is_ok(), "the first of a new row");
    }

    #[test]
    fn a_few_refusals_at_once_are_none_in_a_row() {
        let refusals = RefusalBackoff::default();
        let now = Instant::now();
        (1..FREE).for_each(|_| refusals.note(now, &refusal()));
        assert!(refusals.admit(now).is_ok());
        refusals.end();
        (1..FREE).for_each(|_| refusals.note(now, &refusal()));
        assert!(refusals.admit(now).is_ok());
    }
}
