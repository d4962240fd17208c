//! A simulation of your own: two machines share a bucket. One saves a chunk while requests fail, and is killed;
//! then the other one must find it. Runs 20 seeds; what breaks the promise is printed and is an error.
#![allow(clippy::print_stdout)]

use std::process::ExitCode;
use std::time::Duration;

use kvtier_core::{Load, Loaded, Save, Saved, Tier};
use kvtier_faultsim::{Conditions, Machine, Simulation};
use kvtier_key::{Key, Namespace};
use kvtier_mem::{Arena, ArenaConfig};
use kvtier_s3_tier::{S3Tier, TierConfig};

const CHUNK_BYTES: usize = 4096;

fn main() -> ExitCode {
    for seed in 0..20 {
        let outcome = Simulation::run(seed, node_is_replaced);
        println!("seed {seed}: {} events, digest {}", outcome.events, outcome.digest);
        if let Some(finding) = outcome.findings.first() {
            println!("{}\n{}", outcome.trace.join("\n"), finding.what);
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// A chunk that a node stored outlives the node.
async fn node_is_replaced(simulation: Simulation) {
    let arena = Arena::new(ArenaConfig::heap(1 << 20)).expect("a mebibyte of memory");
    let key = Key::from_name(&Namespace::from_name("example"), "chunk 0");
    let first = simulation.machine("first");
    simulation.set_conditions(failing(&simulation));
    let mut lease = arena.lease(CHUNK_BYTES).expect("the arena is larger");
    lease.write_at(0, &[7; CHUNK_BYTES]).expect("the lease is as long");
    let save = Save { key: key.clone(), from: vec![lease.freeze()] };
    let tier = open(&first);
    let saved = tier.save(&simulation.ctx(Duration::from_secs(5)), vec![save]).await;
    simulation.event(&format!("saved: {:?}", saved[0].result));
    first.kill();
    drop(tier);
    simulation.set_conditions(Conditions::default());
    let second = open(&simulation.machine("second"));
    let load = Load { key, into: vec![arena.lease(CHUNK_BYTES).expect("the arena is larger")] };
    let loaded = second.load(&simulation.ctx(Duration::from_secs(5)), vec![load]).await;
    simulation.event(&format!("loaded: {:?}", loaded[0].result));
    let is_hit = matches!(loaded[0].result, Ok(Loaded::Hit { .. }));
    if matches!(saved[0].result, Ok(Saved::Stored)) && !is_hit {
        simulation.finding("lost", format!("a stored chunk: {:?}", loaded[0].result));
    }
}

/// A third of the requests fail, some of them after their effect.
fn failing(simulation: &Simulation) -> Conditions {
    let mut conditions = Conditions::default();
    conditions.errors = 100 + simulation.random(100);
    conditions.lost_answers = 100;
    conditions.slow = 50;
    conditions
}

fn open(machine: &Machine) -> S3Tier {
    let config = TierConfig::new(machine.client()).with_capacity(1 << 20);
    S3Tier::open(config).expect("the settings are valid")
}
