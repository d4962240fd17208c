//! A simulation of one's own: the body decides what happens, and the run repeats.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use kvtier_core::{Hold, Mode, Presence, Tier};
use kvtier_faultsim::{Machine, Outcome, Simulation};
use kvtier_key::{Key, Namespace};
use kvtier_s3_tier::{S3Tier, TierConfig};

fn open(machine: &Machine) -> S3Tier {
    S3Tier::open(TierConfig::new(machine.client()).with_capacity(1 << 20)).unwrap()
}

/// What a lookup of an absent chunk that was not asked for before gives within two seconds.
async fn look(simulation: &Simulation, tier: &S3Tier) -> Option<Presence> {
    let name = format!("absent at {:?}", simulation.elapsed());
    let key = Key::from_name(&Namespace::from_name("test"), &name);
    let ctx = simulation.ctx(Duration::from_secs(2));
    let found = tier.lookup(&ctx, vec![key].into(), Mode::Each, Hold::None).await;
    found.ok().map(|found| found.found[0])
}

fn run(seed: u64) -> Outcome {
    Simulation::run(seed, |simulation| async move {
        let machine = simulation.machine("node");
        let tier = open(&machine);
        assert_eq!(look(&simulation, &tier).await, Some(Presence::Miss));
        machine.set_partitioned(true);
        let began = simulation.elapsed();
        assert_ne!(look(&simulation, &tier).await, Some(Presence::Miss));
        let took = simulation.elapsed() - began;
        assert!(took <= Duration::from_millis(2005), "{took:?}");
        machine.set_partitioned(false);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(look(&simulation, &tier).await, Some(Presence::Miss));
        simulation.event(&format!("random: {}", simulation.random(1000)));
        simulation.finding("example", format!("seed {seed}"));
    })
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let outcome = run(1);
    assert!(outcome.virtual_time > Duration::from_secs(60) && outcome.events > 5);
    assert_eq!(outcome.events, outcome.trace.len() as u64);
    assert_eq!((outcome.findings[0].kind, &*outcome.findings[0].what), ("example", "seed 1"));
    assert_eq!(run(1), outcome);
    assert_ne!(run(2).digest, outcome.digest);
}

/// Nothing of a killed machine reaches the bucket, and the clock of a machine is its own.
#[test]
fn machines_are_killed_stopped_and_have_clocks_of_their_own() {
    let outcome = Simulation::run(1, |simulation| async move {
        let [first, second] = ["first", "second"].map(|name| simulation.machine(name));
        let tier = open(&first);
        first.set_clock(3_600_000);
        let ahead = first.wall().duration_since(second.wall()).unwrap();
        assert_eq!(ahead, Duration::from_secs(3600));
        first.stop();
        let waits = tokio::time::timeout(Duration::from_secs(9), first.runs()).await;
        assert!(waits.is_err());
        first.go_on();
        first.runs().await;
        first.kill();
        assert_ne!(look(&simulation, &tier).await, Some(Presence::Miss));
        assert_eq!(look(&simulation, &open(&second)).await, Some(Presence::Miss));
    });
    assert!(outcome.findings.is_empty(), "{:?}", outcome.findings);
}
