//! What the tiers of a bucket leave in it beside chunks, and what their status says when nothing fails any
//! more.

use std::collections::BTreeMap;

use kvtier_core::Observe;
use kvtier_s3_tier::S3Tier;
use kvtier_s3_tier::simulated::JOURNAL_OBJECTS_MAX;

use crate::fleet::model::PREFIX;
use crate::fleet::node::JOURNAL_EVERY;
use crate::world::World;

/// The seconds that a journal object stays at least: three intervals, and what the store cuts off times.
/// A snapshot deletes older ones.
const STAYS_S: u64 = 3 * JOURNAL_EVERY.as_secs() + 2;
/// Listings may lag by a second, and a snapshot takes a moment.
const SLACK_S: u64 = 3;
/// The most journal objects of a node: those that it remembers, and some whose answer was lost, or whose delete
/// takes effect late.
const NODE_OBJECTS_MAX: usize = JOURNAL_OBJECTS_MAX + JOURNAL_OBJECTS_MAX / 8;

/// The journals are bounded: no node has more objects than it may, and where a node evicts, no object is
/// left that the last snapshot has, but for those that were young then.
pub fn journals_are_bounded(world: &World, evicts: bool) {
    let directory = format!("{PREFIX}/.kvtier/journal/");
    let current = format!("{PREFIX}/.kvtier/snapshot/current");
    let mut by_node: BTreeMap<String, usize> = BTreeMap::new();
    let mut old = Vec::new();
    {
        let state = world.lock();
        let objects = &state.bucket.objects;
        let snapshot_s = objects.get(&current).map_or(0, |object| object.modified_s);
        for (name, object) in objects.range(directory.clone()..) {
            let Some(rest) = name.strip_prefix(&directory) else { break };
            let node = rest.split('/').next().unwrap_or_default();
            *by_node.entry(node.to_owned()).or_default() += 1;
            if evicts && object.modified_s + STAYS_S + SLACK_S < snapshot_s {
                old.push(name.clone());
            }
        }
    }
    let all: usize = by_node.values().sum();
    world.event(format_args!("{all} journal objects of {} nodes", by_node.len()));
    for (node, count) in by_node.iter().filter(|(_, count)| **count > NODE_OBJECTS_MAX) {
        world.finding("journals", format!("{count} journal objects of {node}"));
    }
    if let Some(first) = old.first() {
        let what = format!("{} journal objects are in the snapshot, such as {first}", old.len());
        world.finding("journals", what);
    }
}

/// The status of a tier names no fault that is over.
pub fn status_is_right(world: &World, name: &str, tier: &S3Tier, evicts: bool) {
    let status = tier.status();
    world.event(format_args!("{name} is healthy: {}", status.healthy));
    if !status.healthy {
        world.finding("status", format!("{name} is not healthy: {:?}", status.reasons));
    }
    let outages = tier.client().outages();
    let is_over = |reason: &&String| {
        outages.contains(reason)
            || reason.contains("still being listed")
            || evicts && reason.contains("no node evicts")
    };
    for reason in status.reasons.iter().filter(is_over) {
        world.finding("status", format!("{name} says long after the last fault: {reason}"));
    }
    if let Some(outage) = outages.iter().find(|outage| !status.reasons.contains(outage)) {
        world.finding("status", format!("{name} does not say: {outage}"));
    }
}

/// Whether the status says that the node evicts.
pub fn says_it_evicts(tier: &(impl Observe + ?Sized)) -> bool {
    tier.status().reasons.iter().any(|reason| reason.starts_with("this node evicts"))
}
