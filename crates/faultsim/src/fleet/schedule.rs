//! The faults of a run of the fleet.

use std::fmt;
use std::time::Duration;

use fastrand::Rng;

use super::NODES;
use super::chunks::Chunks;
use crate::conditions::Conditions;
use crate::schedule::{self, between_ms, last_until_next};
use crate::wall_clock::draw_drift;

/// How long faults happen, ...
const LASTS: Duration = Duration::from_secs(40);
/// ... and how long with one seed of this number, in which a process is stopped for a minute or two.
const LASTS_LONG: Duration = Duration::from_secs(160);
const LONG_ONE_IN: u64 = 20;

/// The most answers of a thousand without their metadata.
const STRIPPED_MAX: u64 = 300;

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
    /// The wall clock of the node at this place is faster from now on by these millionths, or slower.
    Drift { place: usize, ppm: i64 },
    /// The process of the node at this place is stopped, and goes on at the end.
    Stopped(usize),
    /// Another program writes an object among the leases, with the highest of all numbers. It stays.
    ForeignLease,
}

/// The faults of this seed, in order of their times.
pub fn of_seed(seed: u64) -> Vec<Fault> {
    let rng = &mut schedule::rng(seed);
    let mut faults: Vec<Fault> = Vec::new();
    let end = end(seed);
    if end == LASTS_LONG {
        let (at, lasts) = (between_ms(rng, 5000, 30_000), between_ms(rng, 60_000, 120_000));
        faults.push(Fault { at, lasts, what: What::Stopped(rng.usize(..NODES)) });
    }
    let mut at = Duration::ZERO;
    while at < end {
        let place = rng.usize(..NODES);
        let lasts = between_ms(rng, 200, 12_000).min(end - at);
        let what = match rng.u64(..13) {
            0..3 => What::Conditions(Conditions::storm(rng)),
            3 => What::Conditions(Conditions { is_down: true, ..Conditions::default() }),
            6 => What::Killed(place),
            7 => What::Partitioned(place),
            8 => What::Clock { place, ahead_ms: rng.i64(-3_600_000..3_600_000) },
            9 => What::ForeignLease,
            10 => What::Drift { place, ppm: draw_drift(rng) },
            11..13 => What::Stopped(place),
            _ => What::Conditions(Conditions::default()),
        };
        let lasts = match &what {
            What::Clock { .. } | What::Drift { .. } | What::ForeignLease => Duration::ZERO,
            _ => lasts,
        };
        faults.push(Fault { at, lasts, what });
        at += between_ms(rng, 500, 5000);
    }
    last_until_next(&mut faults, end, |what| matches!(what, What::Conditions(_)));
    faults.retain(|fault| !matches!(&fault.what, What::Conditions(now) if now.are_good()));
    faults.sort_by_key(|fault| fault.at);
    if Chunks::of_seed(seed) == Chunks::LmcacheNames {
        strip(&mut faults, rng);
    }
    faults
}

/// Something before the store takes away metadata, while other requests fail.
fn strip(faults: &mut [Fault], rng: &mut Rng) {
    for fault in faults {
        if let What::Conditions(now) = &mut fault.what
            && !now.is_down
        {
            now.stripped = rng.u64(..STRIPPED_MAX);
        }
    }
}

/// When all faults of this seed have ended.
pub fn end(seed: u64) -> Duration {
    if schedule::setup_rng(seed).u64(..LONG_ONE_IN) == 0 { LASTS_LONG } else { LASTS }
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
            What::Drift { place, ppm } => {
                write!(f, "the clock of node{place} drifts by {ppm} millionths")
            }
            What::Stopped(place) => write!(f, "the process of node{place} is stopped"),
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
            assert!(faults.iter().all(|fault| fault.end() <= end(seed)));
            let mut conditions = faults.clone();
            conditions.retain(|fault| matches!(fault.what, What::Conditions(_)));
            assert!(conditions.is_sorted_by(|one, two| one.end() <= two.at));
        }
    }
}
