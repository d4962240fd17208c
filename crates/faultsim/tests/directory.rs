//! Four processes on one directory: the same seed gives the same run in every process, and no promise is
//! broken.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::process::Command;

use kvtier_faultsim::{Scope, run, run_traced};

/// The seed of which another process reports the digest.
const SEED: u64 = 7;
/// Set in that process.
const CHILD: &str = "KVTIER_FAULTSIM_CHILD";
/// How many seeds are run. `cargo xtask faultsim --scope directory` runs more.
const SEEDS: u64 = 25;

#[test]
fn the_same_seed_gives_the_same_run() {
    if std::env::var_os(CHILD).is_some() {
        println!("{}", run(Scope::Directory, SEED));
        return;
    }
    let one = run_traced(Scope::Directory, SEED);
    let two = run_traced(Scope::Directory, SEED);
    let differs = one.trace.iter().zip(&two.trace).find(|(one, two)| one != two);
    assert_eq!(differs, None, "the first event that differs");
    assert_eq!(one, two);
    assert!(one.events > 1000 && one.trace.len() as u64 == one.events);

    let program = std::env::current_exe().unwrap();
    let child = Command::new(program)
        .args(["--exact", "the_same_seed_gives_the_same_run", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let printed = String::from_utf8(child.stdout).unwrap();
    assert!(printed.contains(&one.digest), "another process: {printed}");
}

#[test]
fn no_seed_breaks_a_promise() {
    for seed in 0..SEEDS {
        let report = run(Scope::Directory, seed);
        assert!(report.findings.is_empty(), "{report}");
    }
}

/// Unfinished files that could not be deleted stayed until their process ended, and the ledger did not
/// count them.
#[test]
fn files_that_cannot_be_deleted_at_first_are_deleted_later() {
    for seed in [16, 143, 158] {
        let report = run(Scope::Directory, seed);
        assert!(report.findings.is_empty(), "{report}");
    }
}

/// After a crash a file had the names of two chunks, and the ledger counted it once.
#[test]
fn a_file_that_a_crash_left_under_two_names_is_counted_twice() {
    for seed in [85, 581] {
        let report = run(Scope::Directory, seed);
        assert!(report.findings.is_empty(), "{report}");
    }
}
