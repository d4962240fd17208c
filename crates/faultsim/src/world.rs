//! What all parts of a simulation share: virtual time, seeded random numbers, the record of events and
//! findings, and the bucket.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use kvtier_key::Digest;

use crate::bucket::Bucket;
use crate::conditions::{Conditions, Plan};
use crate::holds::{FailedUntil, WatchedObjects};
use crate::open_operations::OpenOperations;
use crate::stripped_answers::StrippedAnswers;
use crate::wall_clock::WallClock;
use crate::{Finding, Report, Scope};

/// The time of day at the start of a simulation, in seconds since 1970.
pub const EPOCH_S: u64 = 1_767_225_600;

/// The world of one simulation.
#[derive(Debug)]
pub struct World {
    time: Time,
    /// The time of day, of machines without a clock of their own.
    clock: Arc<Mutex<WallClock>>,
    state: Mutex<State>,
}

/// The virtual time.
#[derive(Debug)]
enum Time {
    /// That of a runtime with a paused clock.
    OfRuntime(tokio::time::Instant),
    /// Nanoseconds since this start, moved by the scheduler.
    Own { began: Instant, passed_ns: AtomicU64 },
}

/// Its parts that change.
#[derive(Debug)]
pub struct State {
    pub rng: fastrand::Rng,
    pub bucket: Bucket,
    pub conditions: Conditions,
    /// The objects of chunks that are held.
    pub watched: WatchedObjects,
    pub failed_until: FailedUntil,
    pub stripped_answers: StrippedAnswers,
    pub operations: OpenOperations,
    /// Files of chunks that a crash changed, until another one gets the name.
    pub torn: BTreeSet<PathBuf>,
    /// When the last answer comes that a fault delays, of journals and by node.
    late_journals: BTreeMap<String, Duration>,
    pub findings: Vec<Finding>,
    pub events: u64,
    digest: [u8; 32],
    /// What becomes part of the digest with the next event.
    noted: String,
    line: String,
    /// The digest before an event and its line, kept for its memory.
    digested: Vec<u8>,
    trace: Option<Vec<String>>,
}

impl World {
    /// A new one. Must be called inside of the runtime, whose clock is paused.
    pub fn new(seed: u64, traced: bool) -> Self {
        Self::with_time(Time::OfRuntime(tokio::time::Instant::now()), seed, traced)
    }

    /// A new one whose time passes by [`advance`](Self::advance).
    pub fn with_own_time(seed: u64, traced: bool) -> Self {
        let time = Time::Own { began: Instant::now(), passed_ns: AtomicU64::new(0) };
        Self::with_time(time, seed, traced)
    }

    fn with_time(time: Time, seed: u64, traced: bool) -> Self {
        let state = State {
            rng: fastrand::Rng::with_seed(seed ^ 0x6661_756c_7473_696d),
            bucket: Bucket::default(),
            conditions: Conditions::default(),
            watched: WatchedObjects::default(),
            failed_until: FailedUntil::default(),
            stripped_answers: StrippedAnswers::default(),
            operations: OpenOperations::default(),
            torn: BTreeSet::new(),
            late_journals: BTreeMap::new(),
            findings: Vec::new(),
            events: 0,
            digest: [0; 32],
            noted: String::new(),
            line: String::new(),
            digested: Vec::new(),
            trace: traced.then(Vec::new),
        };
        World { time, clock: Arc::default(), state: Mutex::new(state) }
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The virtual time since the start.
    pub fn elapsed(&self) -> Duration {
        match &self.time {
            Time::OfRuntime(began) => began.elapsed(),
            Time::Own { passed_ns, .. } => Duration::from_nanos(passed_ns.load(Ordering::Relaxed)),
        }
    }

    /// The virtual time as an instant.
    pub fn now(&self) -> Instant {
        match &self.time {
            Time::OfRuntime(_) => tokio::time::Instant::now().into_std(),
            Time::Own { began, .. } => *began + self.elapsed(),
        }
    }

    /// The time of day, of machines without a clock of their own.
    pub fn wall(&self) -> SystemTime {
        self.time_of_day(*self.lock_clock())
    }

    /// The same, in milliseconds since 1970.
    pub fn wall_ms(&self) -> u64 {
        self.ms_by(*self.lock_clock())
    }

    /// The time of day by this clock.
    pub fn time_of_day(&self, clock: WallClock) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(self.ms_by(clock))
    }

    fn ms_by(&self, clock: WallClock) -> u64 {
        self.store_ms().saturating_add_signed(clock.ahead_ms(self.elapsed()))
    }

    /// Sets by how much the time of day is wrong.
    pub fn set_wall(&self, ahead_ms: i64) {
        self.lock_clock().jump(self.elapsed(), ahead_ms);
    }

    /// From now on the time of day passes faster by these millionths, or slower.
    pub fn set_wall_drift(&self, drift_ppm: i64) {
        self.lock_clock().set_drift(self.elapsed(), drift_ppm);
    }

    /// The clock that shows the time of day.
    pub fn clock(&self) -> &Arc<Mutex<WallClock>> {
        &self.clock
    }

    fn lock_clock(&self) -> MutexGuard<'_, WallClock> {
        self.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets time of its own pass.
    pub fn advance(&self, by: Duration) {
        if let Time::Own { passed_ns, .. } = &self.time {
            passed_ns.fetch_add(by.as_nanos() as u64, Ordering::Relaxed);
        }
    }

    /// The store's time of day, in milliseconds since 1970.
    pub fn store_ms(&self) -> u64 {
        EPOCH_S * 1000 + self.elapsed().as_millis() as u64
    }

    /// The store's time of day, in seconds since 1970.
    pub fn store_s(&self) -> u64 {
        EPOCH_S + self.elapsed().as_secs()
    }

    /// Records an event: it becomes part of the digest.
    pub fn event(&self, what: fmt::Arguments<'_>) {
        let at = self.elapsed();
        self.lock().event(at, what);
    }

    /// Records what is no event of its own: it becomes part of the digest alone.
    pub fn note(&self, what: fmt::Arguments<'_>) {
        use fmt::Write as _;
        let _ = writeln!(self.lock().noted, "{what}");
    }

    /// The same for what is frequent.
    pub fn note_letter(&self, letter: char) {
        self.lock().noted.push(letter);
    }

    /// Records a broken promise.
    pub fn finding(&self, kind: &'static str, what: String) {
        let at = self.elapsed();
        self.event(format_args!("FINDING {kind}: {what}"));
        let mut state = self.lock();
        // One of a kind says enough; thousands would hide the others.
        if state.findings.iter().filter(|finding| finding.kind == kind).count() < 5 {
            state.findings.push(Finding { at, kind, what });
        }
    }

    /// A random number below `end`.
    pub fn below(&self, end: u64) -> u64 {
        self.lock().rng.u64(..end.max(1))
    }

    /// A random time between these, in milliseconds.
    pub fn between_ms(&self, from: u64, to: u64) -> Duration {
        Duration::from_millis(self.lock().rng.u64(from..=to))
    }

    /// What happens to the next request.
    pub fn plan_request(&self) -> Plan {
        let mut state = self.lock();
        let state = &mut *state;
        state.conditions.plan(&mut state.rng)
    }

    /// A journal object that this node reads comes then.
    pub fn note_late_journal(&self, node: &str, until: Duration) {
        let mut state = self.lock();
        let last = state.late_journals.entry(node.to_owned()).or_default();
        *last = until.max(*last);
    }

    /// How long it is until the last journal object comes that this node has asked for.
    pub fn late_journal_left(&self, node: &str) -> Duration {
        let now = self.elapsed();
        self.lock().late_journals.get(node).copied().unwrap_or_default().saturating_sub(now)
    }

    /// The same, of the node that waits the longest.
    pub fn late_journals_left(&self) -> Duration {
        let now = self.elapsed();
        self.lock().late_journals.values().max().copied().unwrap_or_default().saturating_sub(now)
    }

    /// The digest of all events and notes so far, in hex.
    pub fn digest(&self) -> String {
        let mut state = self.lock();
        state.line.clear();
        state.digest_line();
        Digest(state.digest).to_hex()
    }

    /// The report of a run that has ended.
    pub fn report(&self, scope: Scope, seed: u64) -> Report {
        let mut report = Report::of(scope, seed);
        report.virtual_time = self.elapsed();
        report.digest = self.digest();
        let mut state = self.lock();
        report.events = state.events;
        report.findings.clone_from(&state.findings);
        report.trace = state.take_trace();
        report
    }
}

impl State {
    /// The events that were kept.
    pub fn take_trace(&mut self) -> Vec<String> {
        self.trace.take().unwrap_or_default()
    }

    pub fn event(&mut self, at: Duration, what: fmt::Arguments<'_>) {
        use fmt::Write as _;
        self.events += 1;
        self.line.clear();
        write_ms(&mut self.line, at);
        let _ = write!(self.line, " {what}");
        self.digest_line();
        if let Some(trace) = &mut self.trace {
            trace.push(self.line.clone());
        }
    }

    /// Brings the line, what was noted before it and the state of the random numbers into the digest: who draws
    /// a number more has another one.
    fn digest_line(&mut self) {
        self.digested.clear();
        self.digested.extend_from_slice(&self.digest);
        self.digested.extend_from_slice(&self.rng.get_seed().to_le_bytes());
        self.digested.extend_from_slice(self.noted.as_bytes());
        self.digested.extend_from_slice(self.line.as_bytes());
        self.noted.clear();
        self.digest = Digest::derive("kvtier faultsim event", &self.digested).0;
    }
}

/// Writes a time in milliseconds with three digits after the point.
fn write_ms(line: &mut String, at: Duration) {
    use fmt::Write as _;
    // Whole numbers are written faster than fractions.
    let micros = (at.as_nanos() + 500) / 1000;
    let _ = write!(line, "{:>6}.{:03}", micros / 1000, micros % 1000);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_notes_and_draws_are_in_the_digest() {
        let digest = |what: fn(&World)| {
            let world = World::with_own_time(7, false);
            what(&world);
            world.digest()
        };
        let all = [
            digest(|_| {}),
            digest(|world| world.event(format_args!("one"))),
            digest(|world| world.event(format_args!("two"))),
            digest(|world| world.note(format_args!("one"))),
            digest(|world| world.note(format_args!("two"))),
            digest(|world| assert!(world.below(9) < 9)),
        ];
        assert_eq!(all.iter().collect::<std::collections::BTreeSet<_>>().len(), all.len());
        assert_eq!(all[3], digest(|world| world.note(format_args!("one"))));
    }

    #[test]
    fn times_are_milliseconds_with_three_digits() {
        let written = |nanos| {
            let mut line = String::new();
            write_ms(&mut line, Duration::from_nanos(nanos));
            line
        };
        for (nanos, ms) in [
            (0, "     0.000"),
            (1_499, "     0.001"),
            (1_500, "     0.002"),
            (12_034_567_890, " 12034.568"),
            (999_999_999_900, "1000000.000"),
        ] {
            assert_eq!(written(nanos), ms);
        }
    }
}
