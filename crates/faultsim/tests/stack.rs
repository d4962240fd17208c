//! Host memory over a directory over a bucket, as one stack: no promise is broken.

#![allow(clippy::unwrap_used)]

use kvtier_faultsim::{Scope, run_traced};

/// How many seeds are run. `cargo xtask faultsim --scope stack` runs more.
const SEEDS: u64 = 8;

#[test]
fn no_seed_breaks_a_promise_and_all_tiers_take_part() {
    let mut seen = [false; 6];
    for seed in 0..SEEDS {
        let report = run_traced(Scope::Stack, seed);
        assert!(report.findings.is_empty(), "{report}");
        let parts = [
            "PUT /bucket/kv/",
            " rename .kvtier/tmp/",
            "Hit {",
            "is killed",
            "crash:",
            "partitioned true",
        ];
        for (seen, part) in seen.iter_mut().zip(parts) {
            *seen |= report.trace.iter().any(|event| event.contains(part));
        }
    }
    assert_eq!(seen, [true; 6]);
}
