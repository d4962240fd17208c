//! The faults of a run of the fleet.

use std::fmt;
use std::time::Duration;

use super::{FAULTS, NODES};
use crate::conditions::Conditions;
use crate::schedule::{self, between_ms, last_until_next};

/// A fault of the fleet.
pub type Fault = schedule::Fault<What>;

#[derive(Clone, Debug)]
pub enum What {
    /// Requests of all nodes fail. No two of these overlap.
    Conditions(Conditions),
    /// The node at this place is killed, and starts again at the end.
    Killed(usize),
    /// The node at this place does not reach the store.
    Partitioned(usize),
    /// The wall clock of the node at this place moves. It stays so.
    Clock { place: usize, ahead_ms: i64 },
    /// Another program writes an object among the leases, with the highest of all numbers. It stays.
    ForeignLease,
}

/// The faults of this seed, in order of their times.
pub fn of_seed(seed: u64) -> Vec<Fault> {
    let rng = &mut schedule::rng(seed);
    let mut faults: Vec<Fault> = Vec::new();
    let mut at = Duration::ZERO;
    while at < FAULTS {
        let place = rng.usize(..NODES);
        let lasts = between_ms(rng, 200, 12_000).min(FAULTS - at);
        let what = match rng.u64(..10) {
            0..3 => What::Conditions(Conditions::storm(rng)),
            3 => What::Conditions(Conditions { is_down: true, ..Conditions::default() }),
            6 => What::Killed(place),
            7 => What::Partitioned(place),
            8 => What::Clock { place, ahead_ms: rng.i64(-3_600_000..3_600_000) },
            9 => What::ForeignLease,
            _ => What::Conditions(Conditions::default()),
        };
        let lasts = match &what {
            What::Clock { .. } | What::ForeignLease => Duration::ZERO,
            _ => lasts,
        };
        faults.push(Fault { at, lasts, what });
        at += between_ms(rng, 500, 5000);
    }
    last_until_next(&mut faults, FAULTS, |what| matches!(what, What::Conditions(_)));
    faults.retain(|fault| !matches!(&fault.what, What::Conditions(now) if now.are_good()));
    faults
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            What::Conditions(conditions) => write!(f, "the store: {conditions}"),
            What::Killed(place) => write!(f, "node{place} is killed"),
            What::Partitioned(place) => write!(f, "node{place} does not reach the store"),
            What::Clock { place, ahead_ms } => {
                write!(f, "the clock of node{place} is {ahead_ms} ms ahead")
            }
            What::ForeignLease => write!(f, "another program writes a lease"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_do_not_overlap_and_all_faults_end_in_time() {
        for seed in 0..200 {
            let faults = of_seed(seed);
            assert!(faults.is_sorted_by_key(|fault| fault.at));
            assert!(faults.iter().all(|fault| fault.end() <= FAULTS));
            let mut conditions = faults.clone();
            conditions.retain(|fault| matches!(fault.what, What::Conditions(_)));
            assert!(conditions.is_sorted_by(|one, two| one.end() <= two.at));
        }
    }
}
