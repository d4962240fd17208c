//! What sharing a bucket costs does not grow with the fleet, in small.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use kvtier_faultsim::scale::{RequestArea, RequestPrice, ScaleResult, ScaleSetup, measure};

/// Nodes of the small and of the large fleet.
const FEW: usize = 10;
const MANY: usize = 30;

fn full(nodes: usize) -> ScaleResult {
    let mut setup = ScaleSetup::new(nodes, 2000);
    // So that much is saved in a short time.
    setup.churn = 0.001;
    setup.start_within = Duration::from_secs(30);
    setup.warm_up = Duration::from_secs(120);
    setup.measured = Duration::from_secs(150);
    measure(&setup)
}

/// Dollars of a node for journals, leases and totals, at S3's list prices.
fn dollars(result: &ScaleResult, nodes: usize) -> f64 {
    let of = |price| {
        let areas = [RequestArea::Journals, RequestArea::Leases, RequestArea::Other];
        areas.map(|area| result.steady.of(price, area)).iter().sum::<u64>() as f64
    };
    let writes = of(RequestPrice::Put) + of(RequestPrice::List);
    (writes * 0.005 + of(RequestPrice::Get) * 0.0004) / 1000.0 / nodes as f64
}

#[test]
fn a_node_of_a_large_fleet_costs_no_more_than_twice_one_of_a_small_one() {
    let (few, many) = (full(FEW), full(MANY));
    let (small, large) = (dollars(&few, FEW), dollars(&many, MANY));
    assert!(large <= 2.0 * small, "{small} and {large} dollars a node");
    // Each journal is read by the evictor alone, and that of the evictor by all. If all read all, it would be
    // three times as many.
    let read = |result: &ScaleResult, nodes: usize| {
        result.steady.of(RequestPrice::Get, RequestArea::Journals) as f64 / nodes as f64
    };
    let (small, large) = (read(&few, FEW), read(&many, MANY));
    assert!(large <= 1.5 * small, "{small} and {large} journals a node");
    for result in [few, many] {
        assert!(result.most_of_cap <= 1.05, "{result:?}");
        assert!(result.stored > 0 && result.shed * 20 <= result.stored, "{result:?}");
        assert!(result.takeover_s.is_some_and(|seconds| seconds <= 60.0), "{result:?}");
    }
}

#[test]
fn a_large_fleet_that_fills_an_empty_bucket_keeps_to_the_cap() {
    let mut setup = ScaleSetup::new(16, 2000);
    setup.is_full = false;
    setup.start_within = Duration::from_secs(1);
    // Each node alone would fill it in eight minutes, all together in half a minute.
    setup.churn = 1.0 / 30.0;
    setup.warm_up = Duration::ZERO;
    setup.measured = Duration::from_secs(120);
    setup.kills_evictor = false;
    let result = measure(&setup);
    assert!(result.most_of_cap <= 1.1, "{result:?}");
    assert!(result.stored >= 1000, "{result:?}");
}
