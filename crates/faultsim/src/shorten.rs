//! The shortest schedule that still breaks a promise: delta debugging.

use std::fmt::Display;

use crate::Report;
use crate::schedule::{Fault, Plan};
use crate::some_faults::{InvalidFaults, SomeFaults, draws_of};

/// How many schedules are tried.
const SCHEDULES_MAX: usize = 150;
/// How often one is run before it counts as one that breaks nothing: to leave out a fault changes all
/// that is drawn after it, and some findings need an interleaving too.
const DRAWS: u16 = 3;
/// How many events before a finding are shown.
const LAST_EVENTS: usize = 40;

/// Runs all faults of a seed. If they break a promise, the report has the shortest schedule that was
/// found with a finding of that kind, and the first event and the last ones of its run.
pub fn run_and_shorten<W: Clone + Display>(
    seed: u64,
    whole: &[Fault<W>],
    run: impl Fn(Plan<'_, W>) -> Report,
) -> Report {
    let mut report = run(Plan::of_seed(seed, whole, false));
    let Some(kind) = report.findings.first().map(|finding| finding.kind) else { return report };
    let has_it = |report: &Report| report.findings.iter().any(|finding| finding.kind == kind);
    // What the shortest one so far was drawn from.
    let mut draws = 0;
    let numbers = shorten((0..whole.len()).collect(), SCHEDULES_MAX, |numbers| {
        let faults: Vec<_> = numbers.iter().map(|number| whole[*number].clone()).collect();
        let plan =
            |draws| Plan { draws: draws_of(seed, draws), ..Plan::of_seed(seed, &faults, false) };
        let mut tries = std::iter::once(draws).chain(1..DRAWS);
        let found = tries.find(|draws| has_it(&run(plan(*draws))));
        draws = found.unwrap_or(draws);
        found.is_some()
    });
    let some = SomeFaults { numbers, draws };
    if let Ok(faults) = some.of(whole) {
        report.schedule = Some(faults.iter().map(ToString::to_string).collect());
        report.trace = last_events(run(some.plan(seed, &faults)).trace, kind);
    }
    report.some_faults = Some(some);
    report
}

/// Runs some faults of a seed. If they break a promise, the report has their schedule, the first event,
/// and the last ones before the finding.
pub fn run_some<W: Clone + Display>(
    seed: u64,
    whole: &[Fault<W>],
    some: &SomeFaults,
    run: impl Fn(Plan<'_, W>) -> Report,
) -> Result<Report, InvalidFaults> {
    let faults = some.of(whole)?;
    let mut report = run(some.plan(seed, &faults));
    let Some(kind) = report.findings.first().map(|finding| finding.kind) else {
        report.trace.clear();
        return Ok(report);
    };
    report.schedule = Some(faults.iter().map(ToString::to_string).collect());
    report.trace = last_events(report.trace, kind);
    Ok(report)
}

/// The first event, which names what the seed chose, and the last ones before the finding.
fn last_events(mut trace: Vec<String>, kind: &str) -> Vec<String> {
    let finding = format!("FINDING {kind}");
    let end = trace.iter().position(|event| event.contains(&finding));
    trace.truncate(end.map_or(trace.len(), |end| end + 1));
    let from = trace.len().saturating_sub(LAST_EVENTS);
    trace.drain(1.min(from)..from);
    trace
}

/// Leaves out what `breaks` does not need, in at most `runs_max` calls of it: halves first, then smaller
/// parts, then one by one. The whole must break it.
fn shorten<T: Clone>(
    whole: Vec<T>,
    mut runs_max: usize,
    mut breaks: impl FnMut(&[T]) -> bool,
) -> Vec<T> {
    let mut kept = whole;
    let mut part = kept.len().div_ceil(2);
    while part > 0 {
        let before = kept.len();
        let mut from = 0;
        while from < kept.len() {
            if runs_max == 0 {
                return kept;
            }
            runs_max -= 1;
            let to = (from + part).min(kept.len());
            let rest = [&kept[..from], &kept[to..]].concat();
            // What follows the part is at its place now.
            if breaks(&rest) { kept = rest } else { from = to }
        }
        // One by one until nothing more can go: a fault may need another only while a third is there.
        part = match part {
            1 if kept.len() < before => 1,
            1 => 0,
            _ => part.div_ceil(2),
        };
    }
    kept
}

#[cfg(test)]
pub mod tests {
    use std::time::Duration;

    use super::*;

    /// How many faults a schedule has that is shortened by real runs: each takes up to [DRAWS] of them.
    const FAULTS: usize = 3;

    /// The first seed that has a fault of each of these kinds among its first ones, and those.
    pub fn short_schedule<W>(
        of_seed: impl Fn(u64) -> Vec<Fault<W>>,
        kinds: &[&dyn Fn(&Fault<W>) -> bool],
    ) -> (u64, Vec<Fault<W>>) {
        let has_all = |faults: &[Fault<W>]| kinds.iter().all(|kind| faults.iter().any(kind));
        let first = |seed| (seed, of_seed(seed).into_iter().take(FAULTS).collect::<Vec<_>>());
        let mut fit = (0..).map(first).filter(|(_, faults)| has_all(faults));
        fit.next().unwrap()
    }

    /// The shortest schedule whose run has an event with this part, as if that were a finding. To run its
    /// faults again has it, too.
    pub fn by_event<W: Clone + Display>(
        seed: u64,
        whole: &[Fault<W>],
        part: &str,
        run: impl Fn(Plan<'_, W>) -> Report,
    ) -> Vec<String> {
        let run = &|plan: Plan<'_, W>| {
            let mut report = run(Plan { traced: true, ..plan });
            report.findings.clear();
            if report.trace.iter().any(|event| event.contains(part)) {
                let what = part.to_owned();
                report.findings.push(crate::Finding { at: Duration::ZERO, kind: "event", what });
            }
            report
        };
        let report = run_and_shorten(seed, whole, run);
        let named = report.some_faults.unwrap().to_string().parse().unwrap();
        let again = run_some(seed, whole, &named, run).unwrap();
        assert_eq!((again.trace, &again.schedule), (report.trace, &report.schedule));
        report.schedule.unwrap()
    }

    #[test]
    fn only_what_is_needed_stays() {
        let mut runs = 0;
        let kept = shorten((0..40).collect(), 200, |part| {
            runs += 1;
            part.contains(&3) && part.contains(&17) && part.contains(&18)
        });
        assert_eq!(kept, [3, 17, 18]);
        assert!(runs < 60, "{runs}");
    }

    #[test]
    fn what_needs_no_fault_has_none_and_what_needs_all_keeps_all() {
        assert_eq!(shorten(vec![1, 2, 3], 200, |_| true), [0; 0]);
        assert_eq!(shorten(vec![1, 2, 3], 200, |part| part.len() == 3), [1, 2, 3]);
        assert_eq!(shorten(Vec::<u8>::new(), 200, |_| true), [0; 0]);
    }

    #[test]
    fn the_runs_are_bounded() {
        let mut runs = 0;
        let kept = shorten((0..1000).collect(), 20, |part| {
            runs += 1;
            part.contains(&999)
        });
        assert_eq!(runs, 20);
        assert!(kept.contains(&999) && kept.len() < 1000);
    }

    /// A run whose findings depend on its faults and on what is drawn.
    fn simulated(plan: &Plan<'_, char>, is_broken: bool) -> Report {
        let mut report = Report::of(crate::Scope::Fleet, plan.seed);
        let faults: String = plan.faults.iter().map(|fault| fault.what).collect();
        report.trace = vec![format!("with {faults}"), "an event".to_owned()];
        if is_broken {
            report.findings.push(crate::Finding { at: Duration::ZERO, kind: "cap", what: faults });
            report.trace.extend(["FINDING cap: x".to_owned(), "later".to_owned()]);
        }
        report
    }

    fn faults(of: &str) -> Vec<Fault<char>> {
        of.chars().map(|what| Fault { at: Duration::ZERO, lasts: Duration::ZERO, what }).collect()
    }

    #[test]
    fn a_schedule_is_shortened_also_where_a_shorter_one_needs_other_draws() {
        let run = |plan: Plan<'_, char>| {
            let has = |what| plan.faults.iter().any(|fault| fault.what == what);
            let is_broken = has('c') && (plan.faults.len() == 5 || plan.draws != plan.seed);
            simulated(&plan, is_broken)
        };
        let report = run_and_shorten(7, &faults("abcde"), run);
        assert_eq!(report.schedule, Some(vec!["at 0.000 s: c".to_owned()]));
        assert_eq!(report.some_faults.unwrap().to_string(), "2/1");
        assert_eq!(report.trace, ["with c", "an event", "FINDING cap: x"]);
        assert_eq!(report.findings[0].what, "abcde", "the report is that of the whole run");
    }

    #[test]
    fn some_faults_run_again_with_their_draws() {
        let whole = faults("abcde");
        let again = |some: &str| {
            let run = |plan: Plan<'_, char>| simulated(&plan, plan.draws == 7 ^ (1 << 48));
            run_some(7, &whole, &some.parse().unwrap(), run)
        };
        let report = again("0,2/1").unwrap();
        assert_eq!(report.findings[0].what, "ac");
        assert_eq!(report.schedule.unwrap(), ["at 0.000 s: a", "at 0.000 s: c"]);
        assert_eq!(report.trace, ["with ac", "an event", "FINDING cap: x"]);
        let report = again("0,2").unwrap();
        assert_eq!((report.findings.len(), report.schedule, report.trace.len()), (0, None, 0));
        again("0,5").unwrap_err();
    }

    #[test]
    fn a_run_that_breaks_nothing_is_run_once() {
        let runs = std::cell::Cell::new(0);
        let report = run_and_shorten(7, &faults("abc"), |plan| {
            runs.set(runs.get() + 1);
            simulated(&plan, false)
        });
        assert_eq!((report.schedule, report.some_faults, runs.get()), (None, None, 1));
    }

    #[test]
    fn the_first_event_and_the_last_ones_are_shown() {
        let mut trace: Vec<String> = (0..100).map(|n| n.to_string()).collect();
        trace.push("FINDING cap: x".to_owned());
        trace.push("later".to_owned());
        let shown = last_events(trace, "cap");
        assert_eq!(shown.len(), 1 + LAST_EVENTS);
        assert_eq!((shown[0].as_str(), shown[1].as_str()), ("0", "61"));
        assert_eq!(shown[LAST_EVENTS], "FINDING cap: x");
    }
}
