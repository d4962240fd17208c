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
