//! Four processes on one directory: no promise is broken.

#![allow(clippy::unwrap_used)]

use kvtier_faultsim::{Scope, run};

/// How many seeds are run. `cargo xtask faultsim --scope directory` runs more.
const SEEDS: u64 = 25;

fn breaks_no_promise(seeds: impl IntoIterator<Item = u64>) {
    for seed in seeds {
        let report = run(Scope::Directory, seed);
        assert!(report.findings.is_empty(), "{report}");
    }
}

#[test]
fn no_seed_breaks_a_promise() {
    breaks_no_promise(0..SEEDS);
}

/// Unfinished files that could not be deleted stayed until their process ended, and the ledger did not
/// count them.
#[test]
fn files_that_cannot_be_deleted_at_first_are_deleted_later() {
    breaks_no_promise([7]);
}

/// After a crash a file had the names of two chunks, and the ledger counted it once.
#[test]
fn a_file_that_a_crash_left_under_two_names_is_counted_twice() {
    breaks_no_promise([129]);
}

/// A journal was forgotten where `.kvtier` was created again in part.
#[test]
fn journals_are_bounded() {
    breaks_no_promise([127]);
}

/// The file of a chunk that was removed could not be deleted, and files that a crash had cut were
/// released by their names.
#[test]
fn what_is_removed_stays_removed_and_cut_files_are_released_right() {
    breaks_no_promise([53, 176]);
}
