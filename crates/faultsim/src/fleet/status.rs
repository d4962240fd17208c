//! What the status of a node says while faults happen.

use std::sync::Arc;
use std::time::Duration;

use kvtier_core::Observe;
use tokio::time::sleep;

use super::Fleet;
use super::node::Node;
use crate::own_objects::says_it_evicts;

/// How often it is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Looks at the status of all nodes that run, for ever.
pub async fn watch(fleet: Arc<Fleet>) {
    loop {
        sleep(LOOK_EVERY).await;
        one_evicts_at_most(&fleet);
        for node in fleet.nodes().iter() {
            check_own_name(&fleet, node);
        }
    }
}

/// No two nodes say that they evict, unless they cannot agree.
fn one_evicts_at_most(fleet: &Fleet) {
    let evicts = |node: &&Node| {
        let tier = node.tier.as_deref().filter(|_| !node.host.is_stopped());
        tier.is_some_and(says_it_evicts)
    };
    let nodes = fleet.nodes();
    let evictors: Vec<&Node> = nodes.iter().filter(evicts).collect();
    evictors.iter().for_each(|node| node.host.note_evicts(fleet.world.elapsed()));
    if evictors.len() > 1 && fleet.setting.has_lease() {
        let names: Vec<&str> = evictors.iter().map(|node| node.host.name()).collect();
        fleet.world.finding("status", format!("{names:?} say that they evict"));
    }
}

/// No node takes itself for another one.
fn check_own_name(fleet: &Fleet, node: &Node) {
    let Node { host, tier: Some(tier), .. } = node else { return };
    // A tier's name begins with that of its machine, and a point.
    let takes_itself = format!("another node evicts: {}.", host.name());
    let reasons = tier.status().reasons;
    if reasons.iter().any(|reason| reason.starts_with(&takes_itself)) {
        fleet.world.finding("status", format!("{} says {takes_itself}", host.name()));
    }
}
