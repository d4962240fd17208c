//! Four processes on one directory of each layout: no promise is broken.

#![allow(clippy::unwrap_used)]

use kvtier_faultsim::{Scope, run, run_traced};
use std::collections::BTreeSet;

/// How many seeds are run. `cargo xtask faultsim --scope layouts` runs more.
const SEEDS: u64 = 16;

#[test]
fn no_seed_breaks_a_promise() {
    for seed in 0..SEEDS {
        let report = run(Scope::Layouts, seed);
        assert!(report.findings.is_empty(), "{report}");
    }
}

/// A start beside a damaged ledger took the total for 0.
#[test]
fn a_lost_total_is_counted_before_anything_is_granted() {
    for seed in [126, 134] {
        let report = run(Scope::Layouts, seed);
        assert!(report.findings.is_empty(), "{report}");
    }
}

#[test]
fn the_first_event_names_the_layout_and_few_seeds_have_them_all() {
    let mut seen = BTreeSet::new();
    for seed in 0..SEEDS {
        let first = run_traced(Scope::Layouts, seed).trace.swap_remove(0);
        let layout = first.split("layout ").nth(1).and_then(|rest| rest.split(',').next());
        seen.insert(layout.unwrap().to_owned());
    }
    assert!(seen.len() >= 5, "{seen:?}");
}
