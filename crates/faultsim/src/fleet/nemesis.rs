//! What goes wrong around the fleet: bad conditions of the store, killed nodes, partitions, wrong
//! clocks.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, sleep_until};

use super::Fleet;
use super::node::{Node, PREFIX};
use crate::conditions::Conditions;
use crate::world::World;

/// Lets things go wrong for so long. Afterwards all nodes run and nothing fails.
pub async fn run(fleet: &Arc<Fleet>, time: Duration) {
    let world = &fleet.world;
    let end = tokio::time::Instant::now() + time;
    while tokio::time::Instant::now() < end {
        let place = world.below(fleet.nodes().len() as u64) as usize;
        let until = end.min(tokio::time::Instant::now() + world.between_ms(200, 12_000));
        match world.below(10) {
            0..3 => storm(fleet),
            3 => set_conditions(fleet, Conditions { is_down: true, ..Conditions::default() }),
            4..6 => set_conditions(fleet, Conditions::default()),
            6 => drop(tokio::spawn(restart(Arc::clone(fleet), place, until))),
            7 => drop(tokio::spawn(partition(Arc::clone(fleet), place, until))),
            8 => jump(fleet, place),
            _ => foreign_lease(fleet),
        }
        sleep(world.between_ms(500, 5000)).await;
    }
    set_conditions(fleet, Conditions::default());
    world.event(format_args!("all faults end"));
    // Restarts and partitions end with the time, in the same millisecond.
    sleep(Duration::from_millis(2)).await;
}

fn set_conditions(fleet: &Fleet, conditions: Conditions) {
    fleet.world.event(format_args!("conditions: {conditions}"));
    fleet.world.lock().conditions = conditions;
}

/// Some kinds of faults, some of them often.
fn storm(fleet: &Fleet) {
    set_conditions(fleet, storm_conditions(&fleet.world));
}

/// Some kinds of failing requests, some of them often.
pub fn storm_conditions(world: &World) -> Conditions {
    let rate = |max: u64| if world.below(3) == 0 { world.below(max) } else { 0 };
    Conditions {
        is_down: false,
        throttled: rate(300),
        errors: rate(200),
        late_errors: rate(100),
        lost_answers: rate(150),
        closed: rate(150),
        hanging: rate(50),
        cut_answers: rate(100),
        pages: rate(200),
        slow: rate(300),
    }
}

/// Kills a node and starts it again at this time.
async fn restart(fleet: Arc<Fleet>, place: usize, at: tokio::time::Instant) {
    let restarts = {
        let mut nodes = fleet.nodes();
        if nodes[place].tier.is_none() {
            return;
        }
        nodes[place].kill();
        nodes[place].restarts + 1
    };
    sleep_until(at).await;
    let node = Node::start(&fleet.world, place, restarts);
    fleet.nodes()[place] = node;
}

/// Cuts a node from the store until this time.
async fn partition(fleet: Arc<Fleet>, place: usize, until: tokio::time::Instant) {
    let host = fleet.node(place).host;
    fleet.world.event(format_args!("partition of {}", host.name()));
    host.set_partitioned(true);
    sleep_until(until).await;
    fleet.world.event(format_args!("no partition of {}", host.name()));
    host.set_partitioned(false);
}

/// Moves a node's wall clock by up to an hour.
fn jump(fleet: &Fleet, place: usize) {
    let ahead_ms = fleet.world.below(7_200_000).cast_signed() - 3_600_000;
    let host = fleet.node(place).host;
    fleet.world.event(format_args!("clock of {} is {ahead_ms} ms ahead", host.name()));
    host.set_clock(ahead_ms);
}

/// Another program writes an object among the leases, with the highest of all numbers.
fn foreign_lease(fleet: &Fleet) {
    let name = format!("{PREFIX}/.kvtier/lease/{:016x}", u64::MAX);
    fleet.world.event(format_args!("from outside: {name}"));
    let now_s = fleet.world.store_s();
    fleet.world.lock().bucket.put_foreign(&name, b"foreign".to_vec(), now_s);
}
