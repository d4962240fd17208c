//! The faults of a run of `directory` or `layouts`.

use std::fmt;
use std::time::Duration;

use fastrand::Rng;

use super::medium::Faults;
use super::{FAULTS, LATE_DELETION, PROCESSES, REOPEN};
use crate::Scope;
use crate::schedule::{self, between_ms, last_until_next};

/// The most that the time of day is wrong by: twenty days.
const CLOCK_MAX_MS: i64 = 20 * 24 * 3600 * 1000;

/// A fault of a directory.
pub type Fault = schedule::Fault<What>;

#[derive(Clone, Debug)]
pub enum What {
    /// The process at this place of those that run is killed after this number of calls.
    Killed { place: usize, calls: u64 },
    /// The process at this place stands still for a time, at once or after a number of calls.
    Stopped { place: usize, time: Duration, calls: Option<u64> },
    /// The process at this place closes its tier. Another one starts.
    Closed { place: usize },
    /// The machine loses power, and comes back. What is kept is drawn from this number.
    Crash { draws: u64 },
    /// Calls of all processes fail or are slow. No two of these overlap.
    Medium(Faults),
    /// From now on the time of day is ahead by so much, or behind.
    Clock { ahead_ms: i64 },
    /// Another program deletes about one of three chunks, drawn from this number.
    Deleted { draws: u64 },
    /// A file of `.kvtier` is damaged. Which and how is drawn from this number.
    Damaged { draws: u64 },
}

/// The faults of this seed, in order of their times.
pub fn of_seed(scope: Scope, seed: u64) -> Vec<Fault> {
    let rng = &mut schedule::rng(seed);
    let is_harmed = scope == Scope::Directory;
    let at_once = |at, what| Fault { at, lasts: Duration::ZERO, what };
    let mut faults = Vec::new();
    let mut at = Duration::from_secs(1);
    while at < FAULTS {
        let place = rng.usize(..PROCESSES);
        let what = match rng.u64(..if is_harmed { 13 } else { 11 }) {
            0..3 => What::Killed { place, calls: rng.u64(..60) },
            3..6 => {
                let time = between_ms(rng, 10, 6000);
                let calls = (is_harmed && rng.bool()).then(|| rng.u64(..60));
                What::Stopped { place, time, calls }
            }
            6 => What::Crash { draws: rng.u64(..) },
            7 => What::Closed { place },
            8..10 => What::Medium(Faults::drawn(rng, true)),
            10 => What::Clock { ahead_ms: clock(rng) },
            11 => What::Deleted { draws: rng.u64(..) },
            _ => What::Damaged { draws: rng.u64(..) },
        };
        faults.push(at_once(at, what));
        at += between_ms(rng, 50, 1500);
    }
    last_until_next(&mut faults, FAULTS, |what| matches!(what, What::Medium(_)));
    faults.retain(|fault| !matches!(&fault.what, What::Medium(faults) if faults.are_none()));
    if is_harmed {
        // What was damaged must not keep a new process away.
        faults.push(at_once(FAULTS + REOPEN, What::Closed { place: rng.usize(..PROCESSES) }));
        // Without a start, which counts anew.
        if rng.bool() {
            faults.push(at_once(FAULTS + LATE_DELETION, What::Deleted { draws: rng.u64(..) }));
        }
    }
    faults
}

/// By how much the time of day is wrong: a minute or two, days, or not.
fn clock(rng: &mut Rng) -> i64 {
    let most_ms = match rng.u64(..4) {
        0 => return 0,
        1 | 2 => 100_000,
        _ => CLOCK_MAX_MS,
    };
    rng.i64(-most_ms..=most_ms)
}

impl Faults {
    /// Some that the medium may have, or none. `can_wait`: a process can wait in a call.
    pub fn drawn(rng: &mut Rng, can_wait: bool) -> Self {
        let mut faults = Faults::default();
        match rng.u64(..if can_wait { 8 } else { 6 }) {
            0 => faults.is_full = true,
            1 => {
                faults.errors_per_mille = rng.u64(..100);
                faults.errors_on_reads = faults.errors_per_mille > 0 && rng.bool();
            }
            2 => faults.slow = between_ms(rng, 1, 300),
            3 => faults.hangs = true,
            4 => faults.short_transfers = true,
            5 if can_wait => faults.slow_names = between_ms(rng, 1, 50),
            6 => faults.names_hang = true,
            _ => {}
        }
        faults
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Faults { is_full: true, .. } => write!(f, "the medium is full"),
            Faults { errors_per_mille: 1.., .. } => {
                let reads = if self.errors_on_reads { ", reads too" } else { "" };
                write!(f, "{} of 1000 calls fail{reads}", self.errors_per_mille)
            }
            Faults { hangs: true, .. } => write!(f, "transfers hang"),
            Faults { names_hang: true, .. } => {
                write!(f, "renames, deletes, locks and listings hang")
            }
            Faults { slow_names, .. } if !slow_names.is_zero() => {
                write!(f, "renames, deletes, locks and listings take {slow_names:?} longer")
            }
            Faults { short_transfers: true, .. } => write!(f, "reads and writes move fewer bytes"),
            Faults { slow, .. } => write!(f, "transfers take {slow:?} longer"),
        }
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            What::Killed { place, calls } => {
                write!(f, "process {place} of those that run is killed after {calls} calls")
            }
            What::Stopped { place, time, calls: None } => {
                write!(f, "process {place} of those that run stands still for {time:?}")
            }
            What::Stopped { place, time, calls: Some(calls) } => write!(
                f,
                "process {place} of those that run stands still for {time:?} after {calls} calls"
            ),
            What::Closed { place } => write!(f, "process {place} of those that run closes"),
            What::Crash { .. } => write!(f, "the machine loses power"),
            What::Medium(faults) => write!(f, "{faults}"),
            What::Clock { ahead_ms } => write!(f, "the time of day is {ahead_ms} ms ahead"),
            What::Deleted { .. } => write!(f, "another program deletes chunks"),
            What::Damaged { .. } => write!(f, "a file of .kvtier is damaged"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_of_the_medium_happens_in_some_runs() {
        let kinds: [fn(&Faults) -> bool; 5] = [
            |faults| faults.errors_on_reads,
            |faults| faults.hangs,
            |faults| faults.short_transfers,
            |faults| faults.names_hang,
            |faults| !faults.slow_names.is_zero(),
        ];
        for scope in [Scope::Directory, Scope::Layouts] {
            for kind in kinds {
                let is_it =
                    |fault: &Fault| matches!(&fault.what, What::Medium(faults) if kind(faults));
                let runs = (0..200).filter(|seed| of_seed(scope, *seed).iter().any(is_it)).count();
                assert!((20..180).contains(&runs), "{runs}");
            }
        }
    }

    #[test]
    fn clocks_jump_forwards_and_backwards_in_some_runs() {
        for scope in [Scope::Directory, Scope::Layouts] {
            let jumps = (0..200).flat_map(|seed| of_seed(scope, seed));
            let ahead: Vec<i64> = jumps
                .filter_map(|fault| match fault.what {
                    What::Clock { ahead_ms } => Some(ahead_ms),
                    _ => None,
                })
                .collect();
            let day_ms = 24 * 3600 * 1000;
            let is_any = |range: std::ops::Range<i64>| ahead.iter().any(|ms| range.contains(ms));
            assert!(is_any(day_ms..i64::MAX), "{ahead:?}");
            assert!(is_any(i64::MIN..-day_ms) && is_any(1..100_000), "{ahead:?}");
        }
    }

    #[test]
    fn faults_of_the_medium_do_not_overlap_and_all_but_late_ones_end_in_time() {
        for seed in 0..200 {
            for scope in [Scope::Directory, Scope::Layouts] {
                let faults = of_seed(scope, seed);
                assert!(faults.is_sorted_by_key(|fault| fault.at));
                let is_late = |fault: &&Fault| fault.end() > FAULTS;
                let late = faults.iter().filter(is_late).count();
                assert!(if scope == Scope::Directory { late < 3 } else { late == 0 });
                let of_medium = faults.iter().filter(|fault| matches!(fault.what, What::Medium(_)));
                assert!(of_medium.is_sorted_by(|one, two| one.end() <= two.at));
            }
        }
    }
}
