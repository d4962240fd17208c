//! The faults of a run of the fleet. All are made before it, by random numbers of their own: to leave one
//! out changes no other.

use std::fmt;
use std::time::Duration;

use fastrand::Rng;

use super::{FAULTS, NODES};
use crate::conditions::Conditions;

/// Something that goes wrong.
#[derive(Clone, Debug)]
pub struct Fault {
    /// When it begins, since the first node serves.
    pub at: Duration,
    pub lasts: Duration,
    pub what: What,
}

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

impl Fault {
    pub fn end(&self) -> Duration {
        self.at + self.lasts
    }
}

/// The faults of this seed, in order of their times.
pub fn of_seed(seed: u64) -> Vec<Fault> {
    let rng = &mut Rng::with_seed(seed ^ 0x7363_6865_6475_6c65);
    let mut faults: Vec<Fault> = Vec::new();
    // The place of the conditions that have no end yet.
    let mut open = None;
    let mut at = Duration::ZERO;
    while at < FAULTS {
        let place = rng.usize(..NODES);
        let lasts = between_ms(rng, 200, 12_000).min(FAULTS - at);
        let kind = rng.u64(..10);
        if kind < 6
            && let Some(conditions) = open.take()
        {
            let conditions: &mut Fault = &mut faults[conditions];
            conditions.lasts = at - conditions.at;
        }
        let what = match kind {
            0..3 => Some(What::Conditions(Conditions::storm(rng))),
            3 => Some(What::Conditions(Conditions { is_down: true, ..Conditions::default() })),
            6 => Some(What::Killed(place)),
            7 => Some(What::Partitioned(place)),
            8 => Some(What::Clock { place, ahead_ms: rng.i64(-3_600_000..3_600_000) }),
            9 => Some(What::ForeignLease),
            _ => None,
        };
        let lasts = match &what {
            Some(What::Conditions(_)) => {
                open = Some(faults.len());
                FAULTS - at
            }
            Some(What::Clock { .. } | What::ForeignLease) => Duration::ZERO,
            _ => lasts,
        };
        faults.extend(what.map(|what| Fault { at, lasts, what }));
        at += between_ms(rng, 500, 5000);
    }
    faults
}

fn between_ms(rng: &mut Rng, from: u64, to: u64) -> Duration {
    Duration::from_millis(rng.u64(from..=to))
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (at, lasts) = (self.at.as_secs_f64(), self.lasts.as_secs_f64());
        match &self.what {
            What::Conditions(conditions) => {
                write!(f, "at {at:.3} s, for {lasts:.3} s: the store: {conditions}")
            }
            What::Killed(place) => {
                write!(f, "at {at:.3} s, for {lasts:.3} s: node{place} is killed")
            }
            What::Partitioned(place) => {
                write!(f, "at {at:.3} s, for {lasts:.3} s: node{place} does not reach the store")
            }
            What::Clock { place, ahead_ms } => {
                write!(f, "at {at:.3} s: the clock of node{place} is {ahead_ms} ms ahead")
            }
            What::ForeignLease => write!(f, "at {at:.3} s: another program writes a lease"),
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
