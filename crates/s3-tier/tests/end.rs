//! What a tier still writes to the bucket at its end, so that the next evictor need not wait for a
//! lease to run out.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvtier_core::Saved;
use kvtier_s3_tier::TierConfig;
use kvtier_testkit::s3::{Fault, Rule};
use support::tier::{World, close, plain_server, quick, says};

#[test]
fn a_node_that_ends_in_order_hands_over_at_once() {
    let server = plain_server();
    let first = World::over(Arc::clone(&server), quick);
    first.suite.eventually("the first evicts", || says(&first, "this node evicts"));
    close(first);
    let second = World::over(Arc::clone(&server), quick);
    second.suite.eventually("the second evicts", || says(&second, "this node evicts"));
    second
        .suite
        .eventually("older epochs are cleared up", || server.keys("kv/.kvtier/lease/").len() == 1);
}

/// A tier ends while the store takes so long for a PUT of its own: the next one evicts long before
/// the lease runs out.
fn hands_over_although(marker: &'static str, takes: Duration) {
    let server = plain_server();
    let change = |mut config: TierConfig| {
        config.sync.lease_term = Duration::from_secs(3600);
        config
    };
    let first = World::over(Arc::clone(&server), change);
    first.suite.eventually("the first evicts", || says(&first, "this node evicts"));
    assert_eq!(first.save(&first.suite.key(1), 10_000), Saved::Stored);
    server.script(Rule::next(Fault::Stall(takes)).method("PUT").containing(marker));
    close(first);
    let closed = Instant::now();
    let second = World::over(server, change);
    second.suite.eventually("the second evicts", || says(&second, "this node evicts"));
    assert!(closed.elapsed() < Duration::from_secs(300), "{:?}", closed.elapsed());
}

#[test]
fn a_slow_store_still_gets_the_last_writes_of_a_shutdown() {
    hands_over_although("/journal/", Duration::from_millis(1500));
}

#[test]
fn a_snapshot_that_takes_long_at_the_end_keeps_no_lease() {
    hands_over_although("/snapshot/", Duration::from_secs(3600));
}
