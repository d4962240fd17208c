//! Faults that are made before a run, by random numbers of their own: to leave one out changes no other.

use std::fmt;
use std::time::Duration;

use fastrand::Rng;

/// Something that goes wrong, of the kinds of a scope.
#[derive(Clone, Debug)]
pub struct Fault<W> {
    /// When it begins, since the first node or process serves.
    pub at: Duration,
    /// Zero for what happens at once, or stays.
    pub lasts: Duration,
    pub what: W,
}

/// The beginning or the end of a fault. Ends come first: what lasts until the next of its kind has one
/// place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Edge {
    End,
    Begin,
}

/// A moment of a schedule.
#[derive(Clone, Debug)]
pub struct Moment<W> {
    pub at: Duration,
    pub edge: Edge,
    pub what: W,
}

/// One run of a seed.
#[derive(Debug)]
pub struct Plan<'a, W> {
    pub seed: u64,
    pub faults: &'a [Fault<W>],
    /// What everything but the faults and the setup is drawn from; the seed, unless a schedule is
    /// shortened.
    pub draws: u64,
    /// Every event is kept.
    pub traced: bool,
}

impl<W> Fault<W> {
    pub fn end(&self) -> Duration {
        self.at + self.lasts
    }
}

impl<'a, W> Plan<'a, W> {
    /// The run of a seed with these faults, which are all that it has.
    pub fn of_seed(seed: u64, faults: &'a [Fault<W>], traced: bool) -> Self {
        Plan { seed, faults, draws: seed, traced }
    }
}

/// The beginnings and ends of faults in the order of their times.
pub fn moments<W: Clone>(faults: &[Fault<W>]) -> Vec<Moment<W>> {
    let mut moments = Vec::new();
    for fault in faults {
        let what = || fault.what.clone();
        moments.push(Moment { at: fault.at, edge: Edge::Begin, what: what() });
        if fault.lasts > Duration::ZERO {
            moments.push(Moment { at: fault.end(), edge: Edge::End, what: what() });
        }
    }
    moments.sort_by_key(|moment| (moment.at, moment.edge));
    moments
}

/// Lets each fault of a kind last until the next of the kind, and the last one until `end`.
pub fn last_until_next<W>(faults: &mut [Fault<W>], end: Duration, is_it: impl Fn(&W) -> bool) {
    let mut until = end;
    for fault in faults.iter_mut().rev().filter(|fault| is_it(&fault.what)) {
        fault.lasts = until.saturating_sub(fault.at);
        until = fault.at;
    }
}

/// The random numbers that make the faults of a seed.
pub fn rng(seed: u64) -> Rng {
    Rng::with_seed(seed ^ 0x7363_6865_6475_6c65)
}

/// Those that choose what a whole run has: the same also where faults are left out.
pub fn setup_rng(seed: u64) -> Rng {
    Rng::with_seed(seed ^ 0x7365_7475_705f_6f66)
}

pub fn between_ms(rng: &mut Rng, from: u64, to: u64) -> Duration {
    Duration::from_millis(rng.u64(from..=to))
}

impl<W: fmt::Display> fmt::Display for Fault<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at {:.3} s", self.at.as_secs_f64())?;
        if self.lasts > Duration::ZERO {
            write!(f, ", for {:.3} s", self.lasts.as_secs_f64())?;
        }
        write!(f, ": {}", self.what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(at_s: u64, what: char) -> Fault<char> {
        Fault { at: Duration::from_secs(at_s), lasts: Duration::ZERO, what }
    }

    #[test]
    fn a_kind_lasts_until_the_next_and_ends_before_it_begins() {
        let mut faults = [fault(1, 'a'), fault(2, 'b'), fault(4, 'a')];
        last_until_next(&mut faults, Duration::from_secs(9), |what| *what == 'a');
        assert_eq!(faults.clone().map(|fault| fault.lasts.as_secs()), [3, 0, 5]);
        let order: Vec<_> =
            moments(&faults).iter().map(|moment| (moment.at.as_secs(), moment.edge)).collect();
        use Edge::{Begin, End};
        assert_eq!(order, [(1, Begin), (2, Begin), (4, End), (4, Begin), (9, End)]);
        assert_eq!(faults[0].to_string(), "at 1.000 s, for 3.000 s: a");
        assert_eq!(faults[1].to_string(), "at 2.000 s: b");
    }
}
