//! Which faults of a seed are left in a shortened schedule, as text that can be run again.

use std::error::Error;
use std::fmt;
use std::str::FromStr;

use crate::schedule::{Fault, Plan};

/// Some faults of a seed by their numbers, counted from 0 in the order of its schedule, and which of several
/// draws the run has. As text: `3,7,12`, with other draws `3,7,12/2`, and `none` for no fault.
///
/// [`run_and_shorten`](crate::run_and_shorten) finds them, and [`run_some`](crate::run_some) runs
/// them again: so a shortened schedule becomes a test.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SomeFaults {
    pub(crate) numbers: Vec<usize>,
    pub(crate) draws: u16,
}

/// Why [`run_some`](crate::run_some) cannot run these faults, or this text does not name any.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InvalidFaults(String);

impl SomeFaults {
    /// The faults of `whole` with these numbers.
    pub(crate) fn of<W: Clone>(&self, whole: &[Fault<W>]) -> Result<Vec<Fault<W>>, InvalidFaults> {
        let one = |number: &usize| {
            whole.get(*number).cloned().ok_or_else(|| {
                let count = whole.len();
                InvalidFaults(format!(
                    "there is no fault {number}: this seed has {count}, from 0 on"
                ))
            })
        };
        self.numbers.iter().map(one).collect()
    }

    /// The run of a seed with these faults alone, which are `faults`.
    pub(crate) fn plan<'a, W>(&self, seed: u64, faults: &'a [Fault<W>]) -> Plan<'a, W> {
        Plan { draws: draws_of(seed, self.draws), ..Plan::of_seed(seed, faults, true) }
    }
}

/// What a run with these draws is drawn from.
pub(crate) fn draws_of(seed: u64, draws: u16) -> u64 {
    seed ^ (u64::from(draws) << 48)
}

impl fmt::Display for SomeFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.numbers.is_empty() {
            f.write_str("none")?;
        }
        for (at, number) in self.numbers.iter().enumerate() {
            write!(f, "{}{number}", if at > 0 { "," } else { "" })?;
        }
        if self.draws > 0 { write!(f, "/{}", self.draws) } else { Ok(()) }
    }
}

impl FromStr for SomeFaults {
    type Err = InvalidFaults;

    fn from_str(text: &str) -> Result<Self, InvalidFaults> {
        let (faults, draws) = text.split_once('/').unwrap_or((text, "0"));
        let numbers = match faults {
            "none" => Ok(Vec::new()),
            some => some.split(',').map(str::parse::<usize>).collect::<Result<Vec<_>, _>>(),
        };
        let is_ascending = |numbers: &Vec<usize>| numbers.is_sorted_by(|one, next| one < next);
        match (numbers.ok().filter(is_ascending), draws.parse()) {
            (Some(numbers), Ok(draws)) => Ok(SomeFaults { numbers, draws }),
            _ => Err(InvalidFaults(format!(
                "{text:?} names no faults: give ascending numbers as in 3,7,12 or 3,7,12/1, or none"
            ))),
        }
    }
}

impl fmt::Display for InvalidFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for InvalidFaults {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_names_the_same_faults_again() {
        for text in ["3,7,12", "0/2", "none", "none/1"] {
            assert_eq!(text.parse::<SomeFaults>().unwrap().to_string(), text);
        }
        let some: SomeFaults = "3,7/2".parse().unwrap();
        assert_eq!(some, SomeFaults { numbers: vec![3, 7], draws: 2 });
        for text in ["", "x", "1,", "1/x", "1/", "-1", "none,1", "1/70000", "3,3", "7,3"] {
            let said = text.parse::<SomeFaults>().unwrap_err().to_string();
            assert!(said.contains("as in 3,7,12"), "{said}");
        }
    }

    #[test]
    fn the_faults_of_a_seed_go_by_their_numbers() {
        let fault = |what| Fault { at: std::time::Duration::ZERO, lasts: <_>::default(), what };
        let whole = ['a', 'b', 'c'].map(fault);
        let some = |text: &str| text.parse::<SomeFaults>().unwrap().of(&whole);
        let whats: Vec<char> = some("0,2").unwrap().iter().map(|fault| fault.what).collect();
        assert_eq!(whats, ['a', 'c']);
        let said = some("1,3").unwrap_err().to_string();
        assert!(said.contains("no fault 3: this seed has 3"), "{said}");
    }
}
