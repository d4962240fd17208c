//! What goes wrong around the stack: requests, the network, the medium, the process, the machine.

use std::time::Duration;

use tokio::time::sleep;

use super::Machine;
use crate::conditions::Conditions;
use crate::directory::medium::Faults;

/// How long faults happen.
const FAULTS: Duration = Duration::from_secs(40);
/// How long a process lives on that is to be killed in some calls and makes fewer.
const KILL_WITHIN: Duration = Duration::from_secs(2);

/// Lets things go wrong. Afterwards a process runs and nothing fails.
pub async fn run(machine: &mut Machine) {
    let world = machine.shared.world.clone();
    while world.elapsed() < FAULTS {
        sleep(world.between_ms(200, 3000)).await;
        match world.below(14) {
            0..2 => {
                let storm = Conditions::storm(&mut world.lock().rng);
                set_conditions(machine, storm);
            }
            2 => set_conditions(machine, Conditions { is_down: true, ..Conditions::default() }),
            3..5 => set_conditions(machine, Conditions::default()),
            5 => set_partitioned(machine, true),
            6 => set_partitioned(machine, false),
            7 => jump(machine),
            8..10 => change_medium(machine),
            10..12 => kill(machine, false).await,
            12 => kill(machine, true).await,
            _ => close(machine).await,
        }
    }
    set_conditions(machine, Conditions::default());
    machine.shared.medium.set_faults(Faults::default());
    set_partitioned(machine, false);
    machine.shared.is_calm.store(true, std::sync::atomic::Ordering::Relaxed);
    world.event(format_args!("all faults end"));
}

fn set_conditions(machine: &Machine, conditions: Conditions) {
    let world = &machine.shared.world;
    world.event(format_args!("conditions: {conditions}"));
    world.lock().conditions = conditions;
}

/// Cuts the machine from the store, or connects it.
fn set_partitioned(machine: &Machine, partitioned: bool) {
    let Some(process) = machine.process() else { return };
    machine.shared.world.event(format_args!("partitioned {partitioned}"));
    process.host.set_partitioned(partitioned);
}

/// Moves the machine's wall clock, as the bucket's tier sees it, by up to an hour.
fn jump(machine: &Machine) {
    let Some(process) = machine.process() else { return };
    let ahead_ms = machine.shared.world.below(7_200_000).cast_signed() - 3_600_000;
    machine.shared.world.event(format_args!("the clock is {ahead_ms} ms ahead"));
    process.host.set_clock(ahead_ms);
}

fn change_medium(machine: &Machine) {
    let world = &machine.shared.world;
    let mut faults = Faults::default();
    match world.below(5) {
        0 => faults.is_full = true,
        1 => faults.errors_per_mille = world.below(100),
        2 => faults.slow = world.between_ms(1, 300),
        _ => {}
    }
    world.event(format_args!("{faults:?}"));
    machine.shared.medium.set_faults(faults);
}

/// Kills the process before one of its next calls, and starts another; in between the machine may
/// lose power.
async fn kill(machine: &mut Machine, crashes: bool) {
    let world = machine.shared.world.clone();
    if let Some(process) = machine.process().cloned() {
        let calls = world.below(60);
        world.event(format_args!("kill {} in {calls} calls", process.host.name()));
        process.kill_in(calls);
        let until = world.elapsed() + KILL_WITHIN;
        while !process.is_dead() && world.elapsed() < until {
            sleep(Duration::from_millis(5)).await;
        }
        process.kill("while it waits");
    }
    machine.end(false).await;
    if crashes {
        machine.crash();
    }
    sleep(world.between_ms(10, 1500)).await;
    machine.start().await;
}

/// Closes the stack in the middle of faults, and starts another process.
async fn close(machine: &mut Machine) {
    machine.shared.world.event(format_args!("the stack is closed"));
    machine.end(false).await;
    machine.start().await;
}
