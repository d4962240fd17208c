//! Several nodes that fill an empty bucket at the same time: how far it grows above its cap, and
//! how much of their saves is kept.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kvtier_core::{Ctx, Saved, ShedReason, Tier};
use kvtier_testkit::s3::{Fault, Rule};
use support::tier::{World, plain_server, within};

const LEN: usize = 10_000;
const CAP_CHUNKS: u64 = 200;
const NODES: u64 = 4;
/// The bucket counts as filled.
const FILLED: u64 = CAP_CHUNKS * 3 / 5;
/// Saves of each node that find no space before it ends.
const SHED_MIN: u64 = 24;
/// What must not hang; no measure of speed.
const PATIENCE: Duration = Duration::from_secs(600);

/// Saves what the whole bucket holds, or until it is filled and many saves more were shed; how many
/// chunks were kept.
fn fill(world: &World, node: u64, stored: &AtomicU64) -> u64 {
    let begun = Instant::now();
    let (mut kept, mut shed) = (0, 0);
    for n in 0.. {
        let saved = world.save(&world.suite.key(node * 10_000 + n), LEN);
        let is_kept = u64::from(saved == Saved::Stored);
        kept += is_kept;
        shed += 1 - is_kept;
        let is_filled = stored.fetch_add(is_kept, Ordering::Relaxed) + is_kept >= FILLED;
        if kept == CAP_CHUNKS || is_filled && shed >= SHED_MIN || begun.elapsed() > PATIENCE {
            break;
        }
    }
    kept
}

#[test]
fn nodes_that_start_on_an_empty_bucket_fill_it_once() {
    let server = plain_server();
    // An interval longer than the whole test: without shares no node learns of others before each has
    // filled the bucket.
    let worlds: Vec<World> = (0..NODES)
        .map(|_| {
            World::over(Arc::clone(&server), |mut config| {
                config.sync.journal_every = Duration::from_secs(60);
                config.sync.sweep_every = Duration::from_secs(600);
                config.with_capacity(CAP_CHUNKS * LEN as u64)
            })
        })
        .collect();
    let stop = AtomicBool::new(false);
    let [most, stored] = [0, 0].map(AtomicU64::new);
    let in_bucket =
        || server.keys("kv/").iter().filter(|name| !name.contains("/.kvtier/")).count() as u64;
    let kept = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                most.fetch_max(in_bucket(), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        let writers: Vec<_> = worlds
            .iter()
            .zip(0..)
            .map(|(world, node)| {
                let stored = &stored;
                scope.spawn(move || fill(world, node, stored))
            })
            .collect();
        let kept: Vec<u64> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        stop.store(true, Ordering::Relaxed);
        kept
    });
    let most = most.load(Ordering::Relaxed);
    assert!(
        most <= CAP_CHUNKS * 8 / 5,
        "{most} chunks lay there, the cap is {CAP_CHUNKS}; kept by each: {kept:?}"
    );
    assert!(kept.iter().sum::<u64>() >= FILLED, "the bucket is filled: {kept:?}");
    worlds.iter().for_each(|world| world.tier().close().wait().unwrap());
}

#[test]
fn a_node_alone_takes_the_whole_cap_at_once() {
    let world = World::over(plain_server(), |mut config| {
        config.sync.journal_every = Duration::from_secs(600);
        config.with_capacity(CAP_CHUNKS * LEN as u64)
    });
    for n in 0..CAP_CHUNKS * 9 / 10 {
        assert_eq!(world.save(&world.suite.key(n), LEN), Saved::Stored, "chunk {n}");
    }
}

/// While its store fails to list the journals of others, a node may not be alone.
#[test]
fn a_node_that_cannot_look_at_others_writes_an_eighth_of_the_cap() {
    let server = plain_server();
    let failing = Rule::next(Fault::Error(500, "InternalError")).containing("journal%2F");
    server.script(failing.method("GET").times(u32::MAX));
    let world = World::over(Arc::clone(&server), |mut config| {
        config.sync.journal_every = Duration::from_secs(1);
        config.with_capacity(CAP_CHUNKS * LEN as u64)
    });
    let save = |n: u64, within: Duration| {
        let op = world.suite.save_op(&world.suite.key(n), LEN);
        world.tier().save(&Ctx::within(within), vec![op]).wait().remove(0).result.unwrap()
    };
    for n in 0..CAP_CHUNKS / 8 {
        assert_eq!(save(n, PATIENCE), Saved::Stored, "chunk {n}");
    }
    assert_eq!(save(100, PATIENCE), Saved::Shed(ShedReason::Full));
    server.heal();
    // The listing may be in a pause between two tries, which can be longer than a save waits.
    for n in 100..110 {
        within(PATIENCE, "it is stored", || save(n, PATIENCE) == Saved::Stored);
    }
}
