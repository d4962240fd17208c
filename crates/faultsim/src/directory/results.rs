//! What each result of a caller must be.

use std::sync::atomic::Ordering;
use std::time::Duration;

use kvtier_core::{
    Done, Error, ErrorKind, Hold, HoldId, Load, Loaded, LookedUp, Observe, Presence, Removed, Save,
    Saved, ShedReason,
};

use super::callers::{Callers, Held};
use super::chunk_files::{ChunkFiles, HeldFile};
use super::expected::Expected;
use super::log_delay::may_lack_batch;
use super::setup::SWEEP_EVERY;
use crate::fleet::model::RemoveBegun;

/// A hold ends at a whole millisecond.
const HOLD_STEP: Duration = Duration::from_millis(2);

/// Within this time all processes of a foreign layout have listed its files, while all is well.
const LISTED_WITHIN: Duration = SWEEP_EVERY.saturating_add(Duration::from_secs(2));

impl Callers {
    /// A removed chunk must be no hit.
    fn check_removed(&self, expected: &Expected, op: &str) {
        let Expected { n, removed, .. } = expected;
        if removed.is_some() && *removed == self.shared.model().is_removed(*n) {
            let what =
                format!("{op} of {n} by {}, which was removed, is a hit", self.process.name());
            self.shared.world.finding("removed", what);
        }
    }

    /// A chunk that is held must be found, and so must each that was there all the time, once all is
    /// well.
    fn check_missing(&self, expected: &Expected, began: Duration, said: &str) {
        let Expected { n, file: Some(file), is_held, .. } = *expected else { return };
        let is_held =
            is_held && self.shared.chunk_files.is_held(n, self.process.number, self.now());
        if !(is_held || self.shared.is_well(began)) || !self.shared.chunk_files.is_whole(n, file) {
            return;
        }
        let kind = if is_held { "hold" } else { "lost" };
        let what =
            format!("{said} of {n} by {}, whose file is there and whole", self.process.name());
        self.shared.world.finding(kind, what);
    }

    /// Whether a lookup may answer what was: the file was deleted by another program; or others have not listed the
    /// files since, which they do every few seconds while all is well, and either the layout is foreign, or the
    /// change log may be unread: it was damaged, or reads failed. Nor has it what waits until writes
    /// succeed again.
    fn may_be_outdated(&self, n: u64, began: Duration) -> bool {
        let changed = self.shared.chunk_files.changed_at(n);
        let is_foreign = self.shared.setup.is_foreign();
        // A listing that fails is tried again less and less often while the medium fails.
        let calm_since = self.shared.calm_since().filter(|_| is_foreign).unwrap_or_default();
        let is_listed =
            self.shared.is_well(began) && began > changed.max(calm_since) + LISTED_WITHIN;
        let cut_batches = self.shared.medium.cut_batches();
        let must_list = is_foreign
            || self.shared.is_log_doubtful.load(Ordering::Relaxed)
            || self.shared.log_delay().may_lack(changed, began)
            || cut_batches.iter().any(|at| may_lack_batch(*at, changed, began));
        self.shared.chunk_files.is_deleted_outside(n) || (must_list && !is_listed)
    }

    fn now(&self) -> Duration {
        self.shared.world.elapsed()
    }

    pub(super) fn saved(&self, numbers: &[u64], done: Vec<Done<Save, Saved>>) -> (String, bool) {
        let now = self.now();
        for (n, done) in numbers.iter().zip(&done) {
            let is_stored = matches!(done.result, Ok(Saved::Stored));
            if is_stored && !self.shared.chunk_files.is_named(*n) {
                let what = format!("save of {n} by {} stored no file", self.process.name());
                self.shared.world.finding("lost", what);
            }
            self.shared.chunk_files.save_ended(*n, is_stored, now);
            match &done.result {
                Ok(_) => self.shared.model().save_ended_well(*n),
                Err(e) => {
                    self.shared.model().save_ended(*n, now);
                    self.check_fault_status(e);
                }
            }
        }
        let results: Vec<String> = done.iter().map(|done| short(&done.result)).collect();
        let has_failed = done.iter().any(|done| done.result.is_err());
        let is_shed_for = |reasons: &[ShedReason]| {
            let is_it =
                |saved: &Saved| matches!(saved, Saved::Shed(for_it) if reasons.contains(for_it));
            done.iter().any(|done| done.result.as_ref().is_ok_and(is_it))
        };
        if is_shed_for(&[ShedReason::DeviceFull]) {
            self.check_full_status();
        }
        let is_shed = is_shed_for(&[ShedReason::DeviceFull, ShedReason::Full]);
        (format!("save {numbers:?}: {}", results.join(", ")), has_failed || is_shed)
    }

    /// A tier that sheds saves because the medium is full is not healthy and says why.
    fn check_full_status(&self) {
        let status = self.tier.status();
        let is_reported = status.reasons.iter().any(|reason| reason.starts_with("degraded"));
        if (status.healthy || !is_reported) && !self.process.state().is_dead {
            let what = format!(
                "{} shed a save for a full medium, and is healthy {}: {:?}",
                self.process.name(),
                status.healthy,
                status.reasons
            );
            self.shared.world.finding("status", what);
        }
    }

    /// A tier of which an operation failed on the medium says so.
    fn check_fault_status(&self, error: &Error) {
        if error.kind() != ErrorKind::Io || self.process.state().is_dead {
            return;
        }
        let reasons = self.tier.status().reasons;
        // Another fault may have come after it, and the status has the last one.
        let (cause, faults) = (first_cause(error), self.tier.faults());
        let is_named = reasons.iter().any(|reason| reason.starts_with("last fault: "))
            && faults.iter().any(|fault| fault.contains(&cause));
        if !is_named {
            let name = self.process.name();
            let what =
                format!("an operation of {name} failed, {error:?}; faults {faults:?}, {reasons:?}");
            self.shared.world.finding("status", what);
        }
    }

    pub(super) fn loaded(
        &self,
        expected: &[Expected],
        began: Duration,
        done: Vec<Done<Load, Loaded>>,
    ) -> (String, bool) {
        for (expected, done) in expected.iter().zip(&done) {
            match &done.result {
                Ok(Loaded::Hit { len }) => self.check_hit(expected, &done.op, *len),
                Ok(Loaded::Miss(reason)) => {
                    self.check_missing(expected, began, &format!("{reason:?} is the load"));
                }
                Ok(_) => {}
                Err(e) => self.check_fault_status(e),
            }
        }
        let numbers: Vec<u64> = expected.iter().map(|expected| expected.n).collect();
        let results: Vec<String> = done.iter().map(|done| short(&done.result)).collect();
        let has_failed = done.iter().any(|done| done.result.is_err());
        (format!("load {numbers:?}: {}", results.join(", ")), has_failed)
    }

    fn check_hit(&self, expected: &Expected, op: &Load, len: u64) {
        let lease = op.into.first().and_then(|lease| lease.as_host());
        if lease.and_then(|bytes| bytes.get(..len as usize))
            != Some(&self.shared.setup.bytes(expected.n)[..])
        {
            let what = format!("load of {} by {}", expected.n, self.process.name());
            self.shared.world.finding("wrong bytes", what);
        }
        self.check_removed(expected, "load");
    }

    pub(super) fn looked_up(
        &mut self,
        expected: &[Expected],
        hold: Hold,
        began: Duration,
        found: Result<LookedUp, Error>,
    ) -> (String, bool) {
        let numbers: Vec<u64> = expected.iter().map(|expected| expected.n).collect();
        let found = match found {
            Ok(found) => found,
            Err(e) => {
                self.check_fault_status(&e);
                return (format!("lookup {numbers:?}: {:?}", e.kind()), true);
            }
        };
        for (expected, presence) in expected.iter().zip(&found.found) {
            match presence {
                Presence::Hit { len } => self.check_found(expected, began, *len),
                Presence::Miss => self.check_missing(expected, began, "a miss is the lookup"),
                _ => {}
            }
        }
        if let (Hold::For(ttl), Some(id)) = (hold, found.hold) {
            let hits = expected.iter().zip(&found.found).filter(|(_, presence)| presence.is_hit());
            let hits: Vec<&Expected> = hits.map(|(expected, _)| expected).collect();
            self.hold(&hits, id, (began + ttl).saturating_sub(HOLD_STEP));
        }
        (format!("lookup {numbers:?} with {hold:?}: {:?}", found.found), false)
    }

    fn check_found(&self, expected: &Expected, began: Duration, len: u64) {
        let Expected { n, file, .. } = *expected;
        if self.shared.model().is_removed_by(n, &self.process.name()).is_some() {
            return self.check_removed(expected, "lookup");
        }
        if self.may_be_outdated(n, began) {
            return;
        }
        if len != ChunkFiles::len(n)
            && file.is_some_and(|file| self.shared.chunk_files.is_whole(n, file))
        {
            let what = format!("lookup of {n} by {} found {len} bytes", self.process.name());
            self.shared.world.finding("wrong length", what);
        }
        self.check_removed(expected, "lookup");
    }

    fn hold(&mut self, hits: &[&Expected], hold: HoldId, until: Duration) {
        for expected in hits {
            let process = self.process.number;
            if let Some(file) = expected.file {
                let held = HeldFile { process, hold, file, until };
                self.shared.chunk_files.hold(expected.n, held);
            }
        }
        // Some are released late: they end by themselves.
        let release_at = self.now() + self.shared.world.between_ms(10, 4000);
        let numbers = hits.iter().map(|expected| expected.n).collect();
        self.held.push(Held { hold, numbers, release_at });
    }

    pub(super) fn removed(
        &self,
        expected: &Expected,
        begun: RemoveBegun,
        removed: Result<Removed, Error>,
    ) -> (String, bool) {
        let Expected { n, is_held, .. } = *expected;
        if removed.as_ref().is_ok_and(|removed| removed.held == 0) {
            let (name, now) = (self.process.name(), self.now());
            self.shared.model().removed_by(n, begun, &name, now);
            if is_held && self.shared.chunk_files.is_held(n, self.process.number, self.now()) {
                let what = format!("remove of {n} by {} found no hold", self.process.name());
                self.shared.world.finding("hold", what);
            }
        }
        let has_failed = removed.is_err();
        let said = match removed {
            Ok(removed) => {
                format!("remove {n}: {} removed, {} held", removed.removed, removed.held)
            }
            Err(e) => {
                self.check_fault_status(&e);
                format!("remove {n}: {:?}", e.kind())
            }
        };
        (said, has_failed)
    }
}

/// A result in few words, which are the same in each run.
fn short<T: std::fmt::Debug>(result: &Result<T, Error>) -> String {
    match result {
        Ok(good) => format!("{good:?}"),
        Err(e) => format!("{:?}", e.kind()),
    }
}

/// What the system answered that failed an operation.
fn first_cause(error: &Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}
