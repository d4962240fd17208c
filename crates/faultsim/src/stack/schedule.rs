//! The faults of a run of the stack.

use std::fmt;
use std::time::Duration;

use crate::conditions::Conditions;
use crate::directory::medium::Faults;
use crate::schedule::{self, between_ms, last_until_next};

/// How long faults happen.
pub const FAULTS: Duration = Duration::from_secs(40);

/// A fault of the stack.
pub type Fault = schedule::Fault<What>;

#[derive(Clone, Debug)]
pub enum What {
    /// Requests fail. No two of these overlap.
    Conditions(Conditions),
    /// The process that runs does not reach the store.
    Partitioned,
    /// The machine's wall clock jumps.
    Clock { ahead_ms: i64 },
    /// Calls fail or are slow. No two of these overlap.
    Medium(Faults),
    /// The process is killed before one of its next calls, and another one starts.
    Killed { calls: u64, pause: Duration },
    /// The same, and in between the machine loses power. What is kept is drawn from a number.
    Crash { calls: u64, pause: Duration, draws: u64 },
    /// The process that runs is stopped, and goes on at the end.
    Stopped,
    /// The stack is closed, and another process starts.
    Closed,
}

/// The faults of this seed, in order of their times.
pub fn of_seed(seed: u64) -> Vec<Fault> {
    let rng = &mut schedule::rng(seed);
    let mut faults = Vec::new();
    let mut at = between_ms(rng, 200, 3000);
    while at < FAULTS {
        let (calls, pause) = (rng.u64(..60), between_ms(rng, 10, 1500));
        let mut lasts = Duration::ZERO;
        let what = match rng.u64(..15) {
            0..2 => What::Conditions(Conditions::storm(rng)),
            2 => What::Conditions(Conditions { is_down: true, ..Conditions::default() }),
            3..5 => What::Conditions(Conditions::default()),
            5..7 => {
                lasts = between_ms(rng, 200, 12_000).min(FAULTS - at);
                What::Partitioned
            }
            7 => What::Clock { ahead_ms: rng.i64(-3_600_000..3_600_000) },
            8..10 => What::Medium(Faults::drawn(rng, false)),
            10..12 => What::Killed { calls, pause },
            13 => {
                lasts = between_ms(rng, 200, 12_000).min(FAULTS - at);
                What::Stopped
            }
            12 => What::Crash { calls, pause, draws: rng.u64(..) },
            _ => What::Closed,
        };
        faults.push(Fault { at, lasts, what });
        at += between_ms(rng, 200, 3000);
    }
    last_until_next(&mut faults, FAULTS, |what| matches!(what, What::Conditions(_)));
    last_until_next(&mut faults, FAULTS, |what| matches!(what, What::Medium(_)));
    faults.retain(|fault| match &fault.what {
        What::Conditions(conditions) => !conditions.are_good(),
        What::Medium(faults) => !faults.are_none(),
        _ => true,
    });
    faults
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            What::Conditions(conditions) => write!(f, "the store: {conditions}"),
            What::Partitioned => write!(f, "the process does not reach the store"),
            What::Clock { ahead_ms } => write!(f, "the clock is {ahead_ms} ms ahead"),
            What::Medium(faults) => write!(f, "{faults}"),
            What::Killed { calls, .. } => write!(f, "the process is killed after {calls} calls"),
            What::Crash { calls, .. } => {
                write!(f, "the process is killed after {calls} calls, and the machine loses power")
            }
            What::Stopped => write!(f, "the process is stopped"),
            What::Closed => write!(f, "the stack is closed, and another process starts"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_one_place_does_not_overlap_and_all_faults_end_in_time() {
        for seed in 0..200 {
            let faults = of_seed(seed);
            assert!(faults.is_sorted_by_key(|fault| fault.at));
            assert!(faults.iter().all(|fault| fault.end() <= FAULTS));
            let is_conditions = |what: &What| matches!(what, What::Conditions(_));
            let is_medium = |what: &What| matches!(what, What::Medium(_));
            for is_it in [&is_conditions as &dyn Fn(&What) -> bool, &is_medium] {
                let of_kind = faults.iter().filter(|fault| is_it(&fault.what));
                assert!(of_kind.is_sorted_by(|one, two| one.end() <= two.at));
            }
        }
    }
}
