//! Four processes on one directory: no promise is broken.

#![allow(clippy::unwrap_used)]

use kvtier_faultsim::{Scope, run};

/// How many seeds are run. `cargo xtask faultsim --scope directory` runs more.
const SEEDS: u64 = 25;

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
    for seed in [7, 16, 143] {
        let report = run(Scope::Directory, seed);
        assert!(report.findings.is_empty(), "{report}");
    }
}

/// After a crash a file had the names of two chunks, and the ledger counted it once.
#[test]
fn a_file_that_a_crash_left_under_two_names_is_counted_twice() {
    for seed in [85, 975] {
        let report = run(Scope::Directory, seed);
        assert!(report.findings.is_empty(), "{report}");
    }
}
