//! A fleet on one bucket: no promise is broken.

#![allow(clippy::unwrap_used)]

use kvtier_faultsim::{Scope, run};

/// How many seeds are run. `examples/seeds.rs` runs more.
const SEEDS: u64 = 4;

#[test]
fn no_seed_breaks_a_promise_and_each_gives_another_run() {
    let mut digests = Vec::new();
    for seed in 0..SEEDS {
        let report = run(Scope::Fleet, seed);
        assert!(report.findings.is_empty(), "{report}");
        digests.push(report.digest);
    }
    digests.sort();
    digests.dedup();
    assert_eq!(digests.len() as u64, SEEDS);
}

/// Seeds with a store whose listings lag, on which nodes that took themselves for alone wrote almost
/// twice the cap.
#[test]
fn nodes_that_start_together_keep_to_the_cap_where_listings_lag() {
    for seed in [1, 79, 149] {
        let report = run(Scope::Fleet, seed);
        assert!(report.findings.is_empty(), "{report}");
    }
}
