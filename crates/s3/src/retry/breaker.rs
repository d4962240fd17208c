//! Circuit breakers: refuse requests at once while an endpoint fails.
//!
//! A breaker opens after [`FAILURES_TO_OPEN`] failures in a row and stays open for [`OPEN_MIN`].
//! Then it admits one request as a probe. A success closes it. A failure opens it again, for twice
//! as long, at most [`OPEN_MAX`]. A probe may hang, and one whose future was dropped reports nothing. So
//! after [`PROBE_MAX`] another request becomes the probe, and a later failure of the one before counts no
//! more: a breaker never stays open for ever, and while an endpoint hangs one request in that time is sent.
//!
//! Each kind of requests has a breaker of its own, since stores fail and throttle kinds apart.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::RequestKind;
use crate::counters::Counters;
use crate::error::{Error, ErrorKind};
use crate::local_clock::Instant;

/// This many failures in a row open it.
const FAILURES_TO_OPEN: u32 = 8;
/// How long it stays open at first; doubled with every failed probe.
const OPEN_MIN: Duration = Duration::from_millis(100);
/// How long it stays open at most, so that an endpoint that is back is noticed within this time and
/// a probe.
const OPEN_MAX: Duration = Duration::from_secs(1);
/// A probe that has not come back for this long no longer keeps others from trying: it may have been
/// lost just before the endpoint recovered.
const PROBE_MAX: Duration = Duration::from_millis(500);

/// A failure is reported for this time. Requests of a kind that is in use are tried again sooner; of one that is
/// not, nothing newer is known.
const REPORTED_FOR: Duration = Duration::from_secs(30);

/// The breakers of an endpoint, one for each kind of requests.
#[derive(Debug)]
pub struct Breakers([Breaker; RequestKind::ALL.len()]);

impl Breakers {
    /// All closed.
    pub fn new() -> Self {
        Breakers(RequestKind::ALL.map(Breaker::new))
    }

    /// That of a kind.
    pub fn kind(&self, kind: RequestKind) -> &Breaker {
        &self.0[kind as usize]
    }
}

/// Refuses requests of one kind while the endpoint fails, and probes at intervals whether it has
/// recovered.
#[derive(Debug)]
pub struct Breaker {
    kind: RequestKind,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    failures: u32,
    pause: Duration,
    /// When it is open: until when, or since when a probe is out.
    open: Option<OpenState>,
    /// The failure that was counted last, and when.
    last_failure: Option<(Instant, Error)>,
    last_success: Option<Instant>,
}

/// How a request is let through.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    /// With all others.
    Usual,
    /// To see whether the endpoint is back: it must not wait for those that hang.
    Probe,
}

#[derive(Clone, Copy, Debug)]
enum OpenState {
    Until(Instant),
    Probing(Instant),
}

impl Breaker {
    /// A closed one.
    pub fn new(kind: RequestKind) -> Self {
        let state = State {
            failures: 0,
            pause: OPEN_MIN,
            open: None,
            last_failure: None,
            last_success: None,
        };
        Breaker { kind, state: Mutex::new(state) }
    }

    /// Lets a request through, as a probe or as usual, or says why not.
    pub fn admit(&self, now: Instant, counters: &Counters) -> Result<Admission, Error> {
        let mut state = self.state();
        // A probe whose future was dropped never reports. After `PROBE_MAX` the next request takes
        // its place.
        let due = match state.open {
            None => return Ok(Admission::Usual),
            Some(OpenState::Until(until)) => now >= until,
            Some(OpenState::Probing(since)) => now.duration_since(since) >= PROBE_MAX,
        };
        // The other requests go on being refused until the probe reports.
        if due {
            // Set under the lock, so exactly one request becomes the probe.
            state.open = Some(OpenState::Probing(now));
            counters.breaker_probes.one();
            return Ok(Admission::Probe);
        }
        counters.breaker_refused.one();
        let refusal = Error::new(
            ErrorKind::Unavailable,
            format!("{}; none is sent for a moment", self.failure(&state)),
        );
        Err(state
            .last_failure
            .iter()
            .fold(refusal, |refusal, (_, cause)| refusal.with_source(cause.clone())))
    }

    fn failure(&self, state: &State) -> String {
        let how = match &state.last_failure {
            Some((_, cause)) if cause.kind() == ErrorKind::Timeout => "were not answered in time",
            _ => "failed",
        };
        format!("the last {} {} {how}", state.failures, self.kind.word())
    }

    /// What an operator should know while it is open, with the last failure.
    pub fn outage(&self, now: Instant) -> Option<String> {
        let state = self.state();
        state.open?;
        let (at, cause) = state.last_failure.as_ref()?;
        let is_recent = now.duration_since(*at) < REPORTED_FOR;
        is_recent.then(|| format!("{}: {}", self.failure(&state), cause.report()))
    }

    /// The last failure, if it is not older than `then`.
    pub fn failure_since(&self, then: Instant) -> Option<Error> {
        let state = self.state();
        state.last_failure.as_ref().filter(|(at, _)| *at >= then).map(|(_, cause)| cause.clone())
    }

    /// The endpoint answered sensibly. Returns whether it is back after the breaker was open.
    pub fn succeeded(&self, now: Instant, counters: &Counters) -> bool {
        let mut state = self.state();
        let back = state.open.take().is_some();
        if back {
            counters.breaker_closed.one();
        }
        // Any success closes it, not only that of the probe: a request from before may be the first
        // to return.
        // The pause too: the next outage starts with the shortest.
        (state.failures, state.pause, state.last_success) = (0, OPEN_MIN, Some(now));
        state.last_failure = None;
        back
    }

    /// It did not, for a request that was sent at `sent_at`.
    pub fn failed(&self, now: Instant, sent_at: Instant, cause: &Error, counters: &Counters) {
        let mut state = self.state();
        // In a row: any success sets it to zero.
        state.failures = state.failures.saturating_add(1);
        state.last_failure = Some((now, cause.clone()));
        match state.open {
            None if state.failures < FAILURES_TO_OPEN => return,
            None => counters.breaker_opened.one(),
            // A late failure of a request that was sent before the breaker opened, or before the
            // probe. It must not extend the pause, or a burst of old failures would.
            Some(OpenState::Until(_)) => return,
            Some(OpenState::Probing(since)) if sent_at < since => return,
            Some(OpenState::Probing(_)) => state.pause = (state.pause * 2).min(OPEN_MAX),
        }
        state.open = Some(OpenState::Until(now + state.pause));
    }

    /// Whether nothing went well since then.
    pub fn is_silent_since(&self, then: Instant) -> bool {
        self.state().last_success.is_none_or(|last| last < then)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cause(kind: ErrorKind) -> Error {
        Error::new(kind, "http://h cannot be reached")
            .with_source(std::io::Error::other("connection refused"))
    }

    #[test]
    fn it_opens_probes_and_closes() {
        let breaker = Breaker::new(RequestKind::Read);
        let counters = Counters::default();
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        for _ in 0..FAILURES_TO_OPEN {
            assert!(breaker.admit(at(0), &counters).is_ok());
            breaker.failed(at(0), at(0), &cause(ErrorKind::Timeout), &counters);
        }
        let refused = breaker.admit(at(50), &counters).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unavailable);
        assert!(
            refused.to_string().contains("the last 8 reads were not answered in time"),
            "{refused}"
        );
        assert!(
            refused.report().ends_with("http://h cannot be reached: connection refused"),
            "{}",
            refused.report()
        );
        let outage = breaker.outage(at(29_999)).unwrap();
        assert!(outage.contains("8 reads") && outage.ends_with("connection refused"), "{outage}");
        assert_eq!(breaker.outage(at(30_000)), None, "nothing newer is known");
        assert!(breaker.failure_since(at(0)).is_some() && breaker.failure_since(at(1)).is_none());
        assert!(breaker.admit(at(100), &counters).is_ok(), "one probe");
        assert!(breaker.admit(at(100), &counters).is_err(), "only one");
        breaker.failed(at(110), at(100), &cause(ErrorKind::Io), &counters);
        assert!(breaker.admit(at(300), &counters).is_err());
        assert!(breaker.admit(at(310), &counters).is_ok(), "another, later");
        assert!(breaker.admit(at(800), &counters).is_err());
        assert!(breaker.admit(at(810), &counters).is_ok(), "a probe that hangs does not block");
        assert!(breaker.succeeded(at(820), &counters) && !breaker.succeeded(at(820), &counters));
        assert!(breaker.admit(at(820), &counters).is_ok());
        assert_eq!(breaker.outage(at(820)), None);
        let counts = counters.read();
        assert_eq!(
            (counts.breaker_opened, counts.breaker_probes, counts.breaker_closed),
            (1, 3, 1)
        );
    }

    /// Requests that hang since the outage end by their deadlines long after.
    #[test]
    fn a_late_failure_of_an_older_request_is_not_that_of_the_probe() {
        let breaker = Breaker::new(RequestKind::Read);
        let counters = Counters::default();
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        for _ in 0..FAILURES_TO_OPEN {
            breaker.failed(at(0), at(0), &cause(ErrorKind::Io), &counters);
        }
        assert!(breaker.admit(at(100), &counters).is_ok());
        breaker.failed(at(150), at(0), &cause(ErrorKind::Timeout), &counters);
        assert!(breaker.admit(at(599), &counters).is_err(), "the probe is out");
        assert!(breaker.admit(at(600), &counters).is_ok());
        breaker.failed(at(600), at(600), &cause(ErrorKind::Io), &counters);
        assert!(breaker.admit(at(799), &counters).is_err(), "this was the probe");
        assert!(breaker.admit(at(800), &counters).is_ok());
    }

    #[test]
    fn kinds_are_healthy_apart() {
        let breakers = Breakers::new();
        let counters = Counters::default();
        let now = Instant::now();
        for (at, kind) in RequestKind::ALL.into_iter().enumerate() {
            assert_eq!((kind as usize, breakers.kind(kind).kind), (at, kind));
        }
        (0..FAILURES_TO_OPEN).for_each(|_| {
            breakers.kind(RequestKind::Delete).failed(now, now, &cause(ErrorKind::Io), &counters)
        });
        for kind in RequestKind::ALL {
            assert_eq!(
                breakers.kind(kind).admit(now, &counters).is_ok(),
                kind != RequestKind::Delete,
                "{kind:?}"
            );
        }
    }

    #[test]
    fn it_never_latches() {
        let breaker = Breaker::new(RequestKind::Read);
        let counters = Counters::default();
        let mut now = Instant::now();
        for _ in 0..1000 {
            if breaker.admit(now, &counters).is_ok() {
                breaker.failed(now, now, &cause(ErrorKind::Io), &counters);
            }
            now += Duration::from_millis(37);
        }
        assert!(breaker.admit(now + OPEN_MAX, &counters).is_ok());
    }
}
