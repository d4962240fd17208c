//! The eviction lease of a bucket whose node ends between its claim and the confirmation: no node
//! waits a term for a node that ended in order.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::time::Duration;

use kvtier_core::Tier;
use kvtier_s3_tier::{S3Tier, TierConfig};
use kvtier_testkit::s3::{Fault, Rule, Server};
use support::tier::{PREFIX, World, close, plain_server, says, within};
use support::{config_of, endpoint};

/// Longer than any test runs.
const FOR_EVER: Duration = Duration::from_secs(600);
/// What must not hang; no measure of speed.
const PATIENCE: Duration = Duration::from_secs(180);
const LEASES: &str = "kv/.kvtier/lease/";

fn config(server: &Server, term: Duration) -> TierConfig {
    let mut config = TierConfig::new(config_of(endpoint(server, "bucket")))
        .with_capacity(64 << 20)
        .with_prefix(PREFIX);
    config.sync.lease_term = term;
    config
}

fn claim(server: &Server) -> Option<Vec<u8>> {
    let name = server.keys(LEASES).pop()?;
    server.object(&name).map(|bytes| bytes.to_vec())
}

/// A tier whose claim is made, and that cannot see that: no listing of leases is answered after the
/// first.
fn claimed(server: &Server) -> S3Tier {
    let of_leases = |fault| Rule::next(fault).method("GET").containing("lease");
    server
        .script(of_leases(Fault::CloseAfter).times(1))
        .script(of_leases(Fault::Stall(FOR_EVER)).times(1000));
    let tier = S3Tier::open(config(server, FOR_EVER)).unwrap();
    within(PATIENCE, "the claim is made", || claim(server).is_some());
    tier
}

#[test]
fn a_claim_that_was_not_confirmed_is_released_at_close() {
    let server = plain_server();
    let tier = claimed(&server);
    assert!(claim(&server).unwrap().starts_with(b"kvtier lease"));
    tier.close().wait().unwrap();
    assert_eq!(claim(&server).unwrap(), b"free\n", "the next node need not wait");
}

/// The answer to the claim was lost, and the object could not be read yet.
fn unclear(server: &Server) -> S3Tier {
    let of_lease = |method, fault| Rule::next(fault).method(method).containing("/lease/");
    server.script(of_lease("PUT", Fault::DoneThenError(500, "InternalError")).times(1));
    server.script(of_lease("GET", Fault::Stall(FOR_EVER)).times(1));
    let tier = S3Tier::open(config(server, FOR_EVER)).unwrap();
    let repeated =
        || server.seen().iter().any(|seen| seen.status == 412 && seen.target.contains("/lease/"));
    within(PATIENCE, "the claim is made, and sent again", repeated);
    // Or the release at close would be what cannot be read.
    within(PATIENCE, "it is read", || server.stalled() == 1);
    tier
}

#[test]
fn a_claim_whose_answer_was_lost_is_released_at_close() {
    let server = plain_server();
    let tier = unclear(&server);
    tier.close().wait().unwrap();
    assert_eq!(claim(&server).unwrap(), b"free\n");
}

#[test]
fn the_lease_of_another_node_is_not_released() {
    let server = plain_server();
    let tier = unclear(&server);
    let other = b"kvtier lease\nformat: 1\nnode: other.1.1.0.00000000\nclaim: 1\n";
    server.put_object(&server.keys(LEASES)[0], other.to_vec());
    tier.close().wait().unwrap();
    assert_eq!(claim(&server).unwrap(), other);
}

#[test]
fn the_next_node_takes_over_after_a_term_when_the_first_died_before_it_could_confirm() {
    let server = plain_server();
    let tier = claimed(&server);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    // On a runtime's thread nothing is waited for, and so nothing more is written: as if the
    // process had died.
    runtime.block_on(async { drop(tier) });
    server.heal();
    let name = server.keys(LEASES).pop().unwrap();
    let world = World::over(Arc::clone(&server), |mut config| {
        config.sync.lease_term = Duration::from_secs(120);
        config
    });
    within(PATIENCE, "it follows", || says(&world, "another node evicts"));
    assert!(!says(&world, "this node evicts"), "the claim is young");
    close(world);
    // As if two terms had passed.
    assert!(server.backdate(&name, 8));
    let next = World::over(Arc::clone(&server), |mut config| {
        config.sync.lease_term = Duration::from_secs(4);
        config
    });
    within(PATIENCE, "the next node evicts", || says(&next, "this node evicts"));
}

#[test]
fn objects_that_no_node_made_as_a_lease_stop_no_eviction_and_are_named() {
    for bytes in [&b"free\n"[..], &[b'x'; 80]] {
        let server = plain_server();
        let foreign = format!("{LEASES}ffffffffffffffff");
        server.put_object(&foreign, bytes.to_vec());
        let first = World::over(Arc::clone(&server), |mut config| {
            config.sync.lease_term = Duration::from_secs(4);
            config.with_capacity(64 << 20)
        });
        first.suite.eventually("it evicts, and names the object", || {
            ["this node evicts", &*foreign, "remove it"].iter().all(|what| says(&first, what))
        });
        // It comes while a node holds the lease.
        server.put_object(&format!("{LEASES}00000000ffffffff"), bytes.to_vec());
        within(PATIENCE, "both are named", || {
            says(&first, "and 1 more") && says(&first, "this node evicts")
        });
        server.remove_object(&foreign);
        server.remove_object(&format!("{LEASES}00000000ffffffff"));
        within(PATIENCE, "what is gone is not named any more", || !says(&first, "remove"));
        close(first);
    }
}
