//! Lets the faults of a schedule happen around the stack: requests, the network, the medium, the process,
//! the machine.

use std::sync::atomic::Ordering;
use std::time::Duration;

use fastrand::Rng;
use tokio::time::{Instant, sleep, sleep_until};

use super::Machine;
use super::schedule::{FAULTS, Fault, What};
use crate::conditions::Conditions;
use crate::directory::medium::Faults;
use crate::schedule::{Edge, moments};
use crate::world::World;

/// How long a process lives on that is to be killed in some calls and makes fewer.
const KILL_WITHIN: Duration = Duration::from_secs(2);

/// Lets these happen, one after the other: the end of a process may put off the next. Afterwards a process
/// runs and nothing fails.
pub async fn run(machine: &mut Machine, faults: &[Fault]) {
    let world = machine.shared.world.clone();
    let began = Instant::now();
    for moment in moments(faults) {
        sleep_until(began + moment.at).await;
        match moment.edge {
            Edge::Begin => begin(machine, &moment.what).await,
            Edge::End => end(machine, &moment.what),
        }
    }
    sleep_until(began + FAULTS).await;
    machine.shared.is_calm.store(true, Ordering::Relaxed);
    world.event(format_args!("all faults end"));
}

async fn begin(machine: &mut Machine, what: &What) {
    match what {
        What::Conditions(conditions) => set_conditions(machine, *conditions),
        What::Partitioned => set_partitioned(machine, true),
        What::Clock { ahead_ms } => jump(machine, *ahead_ms),
        What::Medium(faults) => change_medium(machine, *faults),
        What::Killed { calls, pause } => {
            kill(machine, *calls).await;
            start_after(machine, *pause).await;
        }
        What::Crash { calls, pause, draws } => {
            kill(machine, *calls).await;
            machine.crash(&mut Rng::with_seed(*draws));
            start_after(machine, *pause).await;
        }
        What::Stopped => stop(machine),
        What::Closed => {
            machine.shared.world.event(format_args!("the stack is closed"));
            // It closes itself.
            go_on(machine);
            end_hang(machine);
            machine.end(false).await;
            machine.start().await;
        }
    }
}

fn end(machine: &Machine, what: &What) {
    match what {
        What::Conditions(_) => set_conditions(machine, Conditions::default()),
        What::Medium(_) => change_medium(machine, Faults::default()),
        What::Partitioned => set_partitioned(machine, false),
        What::Stopped => go_on(machine),
        _ => {}
    }
}

fn set_conditions(machine: &Machine, conditions: Conditions) {
    let world = &machine.shared.world;
    world.event(format_args!("conditions: {conditions}"));
    let mut state = world.lock();
    state.conditions = conditions;
    state.failed_until.requests = failed_until(world, !conditions.are_good());
}

/// Cuts the machine from the store, or connects it. A process that starts meanwhile is connected.
fn set_partitioned(machine: &Machine, partitioned: bool) {
    let Some(process) = machine.process() else { return };
    machine.shared.world.event(format_args!("partitioned {partitioned}"));
    process.host.set_partitioned(partitioned);
    let world = &machine.shared.world;
    world.lock().failed_until.network = failed_until(world, partitioned);
}

fn stop(machine: &Machine) {
    let Some(process) = machine.process() else { return };
    machine.shared.world.event(format_args!("stop {}", process.host.name()));
    process.host.stop();
}

/// The process goes on, if it was stopped.
fn go_on(machine: &Machine) {
    let Some(process) = machine.process().filter(|process| process.host.is_stopped()) else {
        return;
    };
    machine.shared.world.event(format_args!("{} goes on", process.host.name()));
    process.host.go_on();
}

fn jump(machine: &Machine, ahead_ms: i64) {
    machine.shared.world.event(format_args!("the clock is {ahead_ms} ms ahead"));
    machine.shared.world.set_wall(ahead_ms);
}

fn change_medium(machine: &Machine, faults: Faults) {
    machine.shared.world.event(format_args!("{faults:?}"));
    machine.shared.medium.set_faults(faults);
    let world = &machine.shared.world;
    world.lock().failed_until.medium = failed_until(world, !faults.are_none());
}

/// For how long a part failed that fails now, or does no more.
fn failed_until(world: &World, fails: bool) -> Duration {
    if fails { Duration::MAX } else { world.elapsed() }
}

/// Nothing else would: the end of a process is waited for, and it waits for its transfers. Those of a
/// killed one fail.
fn end_hang(machine: &Machine) {
    if machine.shared.medium.faults().hangs {
        change_medium(machine, Faults::default());
    }
}

/// Kills the process before one of its next calls.
async fn kill(machine: &mut Machine, calls: u64) {
    let world = machine.shared.world.clone();
    if let Some(process) = machine.process().cloned() {
        world.event(format_args!("kill {} in {calls} calls", process.host.name()));
        process.kill_in(calls);
        let until = world.elapsed() + KILL_WITHIN;
        while !process.is_dead() && world.elapsed() < until {
            sleep(Duration::from_millis(5)).await;
        }
        process.kill("while it waits");
    }
    end_hang(machine);
    machine.end(false).await;
}

async fn start_after(machine: &mut Machine, pause: Duration) {
    sleep(pause).await;
    machine.start().await;
}
