//! The same seed gives the same run in every process, in every scope.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::process::Command;

use kvtier_faultsim::{Scope, run, run_and_shorten, run_traced};

const SEED: u64 = 1;
/// Set in the process that only reports its digests.
const CHILD: &str = "KVTIER_FAULTSIM_CHILD";

#[test]
fn the_same_seed_gives_the_same_run() {
    if std::env::var_os(CHILD).is_some() {
        return Scope::ALL.iter().for_each(|scope| println!("{}", run(*scope, SEED)));
    }
    let program = std::env::current_exe().unwrap();
    let child = Command::new(program)
        .args(["--exact", "the_same_seed_gives_the_same_run", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let printed = String::from_utf8(child.stdout).unwrap();
    for scope in Scope::ALL {
        let one = run_traced(scope, SEED);
        let two = run_traced(scope, SEED);
        let differs = one.trace.iter().zip(&two.trace).find(|(one, two)| one != two);
        assert_eq!(differs, None, "the first event of {scope:?} that differs");
        assert_eq!(one, two);
        assert!(one.events > 1000 && one.trace.len() as u64 == one.events);
        assert!(printed.contains(&one.digest), "another process: {printed}");
    }
}

#[test]
fn to_shorten_changes_nothing_of_the_report() {
    for scope in Scope::ALL {
        let (one, two) = (run(scope, SEED), run_and_shorten(scope, SEED));
        assert_eq!((one.digest, one.findings), (two.digest, two.findings));
    }
}
