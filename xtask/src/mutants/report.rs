//! What became of the mutants.

use std::collections::BTreeMap;

use anyhow::{Result, bail};

use super::config::Judged;
use super::mutant::Mutant;

/// What became of one mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// A fast test failed.
    Caught,
    /// A test failed that runs only for survivors.
    CaughtLater,
    /// The tests did not end.
    Timeout,
    /// It does not compile.
    Unviable,
    /// All tests passed.
    Missed,
}

/// The outcome of a run.
#[derive(Debug, Default)]
pub struct Report {
    /// Each mutant with its module, in order.
    mutants: Vec<(String, Mutant)>,
    verdicts: BTreeMap<String, Verdict>,
    /// Mutants that no test can catch.
    judged: Vec<Judged>,
}

/// How many mutants had which outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    caught: usize,
    timeout: usize,
    unviable: usize,
    missed: usize,
    /// Survivors that no test can catch.
    judged: usize,
}

impl Counts {
    /// The share of the mutants that a test can catch, and did, in percent; `None` without any.
    fn percent(self) -> Option<usize> {
        let caught = self.caught + self.timeout;
        (caught * 100).checked_div(caught + self.missed)
    }
}

impl Report {
    pub fn new(judged: Vec<Judged>) -> Report {
        Report { judged, ..Report::default() }
    }

    pub fn add(&mut self, module: &str, mutant: &Mutant) {
        self.mutants.push((module.to_owned(), mutant.clone()));
    }

    /// Notes an outcome; gives a mutant back that survived.
    pub fn note<'a>(&mut self, mutant: &'a Mutant, verdict: Verdict) -> Option<&'a Mutant> {
        self.verdicts.insert(mutant.name.clone(), verdict);
        (verdict == Verdict::Missed).then_some(mutant)
    }

    /// The table for docs/TESTING.md, and the survivors.
    pub fn print(&self) {
        println!("\n| module | tried | caught | timeout | unviable | missed | of them judged |");
        println!("|---|---|---|---|---|---|---|");
        let mut modules: Vec<&str> = self.mutants.iter().map(|(name, _)| name.as_str()).collect();
        modules.dedup();
        for module in modules {
            print_row(module, self.counts(Some(module)));
        }
        print_row("all", self.counts(None));
        for mutant in self.of(Verdict::Missed) {
            let why = mutant.judgement(&self.judged).unwrap_or("not judged");
            println!("survivor: {}\n    {}\n    {why}", mutant.name, mutant.line);
        }
        for mutant in self.of(Verdict::Timeout) {
            println!("timeout: {}", mutant.name);
        }
    }

    /// Fails if too few of the mutants that can be caught were.
    pub fn check(&self, percent_min: usize) -> Result<String> {
        let counts = self.counts(None);
        let Some(percent) = counts.percent() else { bail!("no mutant was tried") };
        let Counts { caught, timeout, missed, .. } = counts;
        let what =
            format!("{} of {} caught ({percent} %)", caught + timeout, caught + timeout + missed);
        match percent >= percent_min {
            true => Ok(what),
            false => bail!("{what}, fewer than {percent_min} %"),
        }
    }

    fn of(&self, verdict: Verdict) -> impl Iterator<Item = &Mutant> {
        let is_it = move |mutant: &&Mutant| self.verdicts.get(&mutant.name) == Some(&verdict);
        self.mutants.iter().map(|(_, mutant)| mutant).filter(is_it)
    }

    fn counts(&self, module: Option<&str>) -> Counts {
        let mut counts = Counts::default();
        for (of, mutant) in &self.mutants {
            if module.is_some_and(|module| module != of) {
                continue;
            }
            match self.verdicts.get(&mutant.name) {
                None => {}
                Some(Verdict::Caught | Verdict::CaughtLater) => counts.caught += 1,
                Some(Verdict::Timeout) => counts.timeout += 1,
                Some(Verdict::Unviable) => counts.unviable += 1,
                Some(Verdict::Missed) if mutant.judgement(&self.judged).is_some() => {
                    counts.judged += 1
                }
                Some(Verdict::Missed) => counts.missed += 1,
            }
        }
        counts
    }
}

fn print_row(name: &str, counts: Counts) {
    let Counts { caught, timeout, unviable, missed, judged } = counts;
    let tried = caught + timeout + unviable + missed + judged;
    println!(
        "| {name} | {tried} | {caught} | {timeout} | {unviable} | {} | {judged} |",
        missed + judged
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutant(line: usize) -> Mutant {
        Mutant::parse(&format!("a.rs:{line}:1: change"), |_, line| Some(line.to_string())).unwrap()
    }

    #[test]
    fn survivors_count_unless_no_test_can_catch_them() {
        let mut report = Report::default();
        let mutants: Vec<Mutant> = (1..=5).map(mutant).collect();
        let verdicts = [
            Verdict::Caught,
            Verdict::CaughtLater,
            Verdict::Unviable,
            Verdict::Missed,
            Verdict::Missed,
        ];
        for (mutant, verdict) in mutants.iter().zip(verdicts) {
            report.add("module", mutant);
            let survives = report.note(mutant, verdict).is_some();
            assert_eq!(survives, verdict == Verdict::Missed);
        }
        let error = report.check(85).unwrap_err().to_string();
        assert!(error.contains("2 of 4 caught (50 %)"), "{error}");
        let judged = |line: &str| Judged {
            file: "a.rs".into(),
            change: "change".into(),
            line: line.into(),
            why: "equal".into(),
        };
        report.judged = vec![judged("4"), judged("5")];
        let text = report.check(85).unwrap();
        assert_eq!(text, "2 of 2 caught (100 %)");
    }

    #[test]
    fn a_run_without_mutants_proves_nothing() {
        assert!(Report::default().check(85).is_err());
    }

    #[test]
    fn a_later_outcome_replaces_an_earlier_one() {
        let mut report = Report::default();
        report.add("module", &mutant(1));
        report.note(&mutant(1), Verdict::Missed);
        report.note(&mutant(1), Verdict::CaughtLater);
        assert!(report.check(100).is_ok());
    }
}
