//! Lets the faults of a schedule happen: bad conditions of the store, killed and stopped nodes,
//! partitions, wrong clocks.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use super::Fleet;
use super::model::PREFIX;
use super::schedule::{Fault, What};
use crate::conditions::Conditions;
use crate::schedule::{Edge, moments};

/// Lets these happen. Afterwards all nodes run and nothing fails.
pub async fn run(fleet: &Arc<Fleet>, faults: &[Fault], all_end: Duration) {
    let began = Instant::now();
    for moment in moments(faults) {
        sleep_until(began + moment.at).await;
        match moment.edge {
            Edge::Begin => begin(fleet, &moment.what),
            Edge::End => end(fleet, &moment.what),
        }
    }
    sleep_until(began + all_end).await;
    fleet.world.event(format_args!("all faults end"));
    sleep(Duration::from_millis(2)).await;
}

fn begin(fleet: &Fleet, what: &What) {
    match what {
        What::Conditions(conditions) => set_conditions(fleet, *conditions),
        What::Killed(place) => {
            let node = &mut fleet.nodes()[*place];
            if node.tier.is_some() {
                node.kill();
            }
        }
        What::Partitioned(place) => set_partitioned(fleet, *place, true),
        What::Clock { place, ahead_ms } => {
            let host = fleet.node(*place).host;
            fleet.world.event(format_args!("clock of {} is {ahead_ms} ms ahead", host.name()));
            host.set_clock(*ahead_ms);
        }
        What::Drift { place, ppm } => {
            let host = fleet.node(*place).host;
            fleet.world.event(format_args!("clock of {} drifts by {ppm} millionths", host.name()));
            host.set_drift(*ppm);
        }
        What::Stopped(place) => {
            let host = fleet.node(*place).host;
            fleet.world.event(format_args!("stop {}", host.name()));
            host.stop();
        }
        What::ForeignLease => foreign_lease(fleet),
    }
}

fn end(fleet: &Fleet, what: &What) {
    match what {
        What::Conditions(_) => set_conditions(fleet, Conditions::default()),
        What::Killed(place) => {
            let node = fleet.node(*place);
            // Another fault may have ended it and started it again.
            if node.tier.is_none() {
                let node = fleet.start(*place, node.restarts + 1);
                fleet.nodes()[*place] = node;
            }
        }
        What::Partitioned(place) => set_partitioned(fleet, *place, false),
        What::Stopped(place) => {
            let host = fleet.node(*place).host;
            fleet.world.event(format_args!("{} goes on", host.name()));
            host.go_on();
        }
        What::Clock { .. } | What::Drift { .. } | What::ForeignLease => {}
    }
}

fn set_conditions(fleet: &Fleet, conditions: Conditions) {
    fleet.world.event(format_args!("conditions: {conditions}"));
    fleet.world.lock().conditions = conditions;
}

fn set_partitioned(fleet: &Fleet, place: usize, partitioned: bool) {
    let host = fleet.node(place).host;
    let no = if partitioned { "" } else { "no " };
    fleet.world.event(format_args!("{no}partition of {}", host.name()));
    host.set_partitioned(partitioned);
}

/// Another program writes an object among the leases, with the highest of all numbers.
fn foreign_lease(fleet: &Fleet) {
    let name = format!("{PREFIX}/.kvtier/lease/{:016x}", u64::MAX);
    fleet.world.event(format_args!("from outside: {name}"));
    let now_ms = fleet.world.store_ms();
    fleet.world.lock().bucket.put_foreign(&name, b"foreign".to_vec(), now_ms);
}
