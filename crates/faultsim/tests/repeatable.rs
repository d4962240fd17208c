//! The same seed gives the same run in every process, in every scope.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::ops::Range;
use std::process::{Child, Command, Stdio};

use kvtier_faultsim::{Report, Scope, run, run_and_shorten, run_traced};

const SEED: u64 = 1;
/// Set in the process that only reports its digests.
const CHILD: &str = "KVTIER_FAULTSIM_CHILD";

/// The seeds of a scope that two processes run. Those of a fleet take four times as long.
fn seeds(scope: Scope) -> Range<u64> {
    match scope {
        Scope::Fleet => 0..1,
        _ => 0..4,
    }
}

fn runs() -> impl Iterator<Item = Report> {
    Scope::ALL.into_iter().flat_map(|scope| seeds(scope).map(move |seed| run(scope, seed)))
}

/// Starts this test in another process.
fn other_process() -> Child {
    let mut other = Command::new(std::env::current_exe().unwrap());
    other.args(["--exact", "two_processes_run_the_same", "--nocapture"]).env(CHILD, "1");
    other.stdout(Stdio::piped()).spawn().unwrap()
}

#[test]
fn two_processes_run_the_same() {
    if std::env::var_os(CHILD).is_some() {
        return runs().for_each(|report| println!("{report}"));
    }
    // Both at the same time: what the machine does meanwhile is no part of a run.
    let other = other_process();
    let here: Vec<String> = runs().map(|report| report.to_string()).collect();
    let printed = String::from_utf8(other.wait_with_output().unwrap().stdout).unwrap();
    let there = |report: &&String| printed.contains(report.as_str());
    let differs: Vec<_> = here.iter().filter(|report| !there(report)).collect();
    assert!(differs.is_empty(), "{differs:#?}, another process: {printed}");
}

#[test]
fn the_same_seed_gives_the_same_events() {
    for scope in Scope::ALL {
        let one = run_traced(scope, SEED);
        let two = run_traced(scope, SEED);
        let differs = one.trace.iter().zip(&two.trace).find(|(one, two)| one != two);
        assert_eq!(differs, None, "the first event of {scope:?} that differs");
        assert_eq!(one, two);
        assert!(one.events > 1000 && one.trace.len() as u64 == one.events);
    }
}

#[test]
fn to_shorten_changes_nothing_of_the_report() {
    for scope in Scope::ALL {
        let (one, two) = (run(scope, SEED), run_and_shorten(scope, SEED));
        assert_eq!((one.digest, one.findings), (two.digest, two.findings));
    }
}
