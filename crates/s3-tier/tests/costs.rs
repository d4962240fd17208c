//! What a chunk costs the tier: requests, allocations, copies, passes. The server is in another
//! process; nothing else runs here.
#![allow(clippy::unwrap_used)]

mod support;

use std::alloc::System;
use std::io::Write;

use kvtier_core::{Load, Loaded, Observe, Save, Saved, Tier};
use kvtier_s3_tier::{S3Tier, TierConfig};
use kvtier_testkit::conformance::Fixture;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use support::remote::Remote;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const SMALL: usize = 64 << 10;
const LARGE: usize = 16 << 20;
const OPS: usize = 10;

#[test]
fn serve() {
    support::remote::serve();
}

/// The fewest allocations and the fewest bytes allocated that any of several runs cost.
fn fewest(mut run: impl FnMut()) -> (usize, usize) {
    let mut fewest = (usize::MAX, usize::MAX);
    for _ in 0..OPS {
        let before = ALLOCATOR.stats();
        run();
        let after = ALLOCATOR.stats();
        let count =
            (after.allocations - before.allocations) + (after.reallocations - before.reallocations);
        fewest =
            (fewest.0.min(count), fewest.1.min(after.bytes_allocated - before.bytes_allocated));
    }
    fewest
}

struct World {
    tier: S3Tier,
    suite: Fixture,
    _remote: Remote,
}

impl World {
    fn new() -> Self {
        let remote = Remote::start(&[1]);
        let tier =
            S3Tier::open(TierConfig::new(remote.config(false)).with_capacity(1 << 30)).unwrap();
        let suite = Fixture::new(kvtier_testkit::ModelTier::open(Default::default()).unwrap());
        suite.eventually("the first listing", || tier.status().counter("sweeps") == 1);
        World { tier, suite, _remote: remote }
    }

    fn save(&self, n: u64, len: usize) {
        let op = self.suite.save_op(&self.suite.key(n), len);
        let done = self.tier.save(&self.suite.ctx(), vec![op]).wait();
        assert!(matches!(done[0].result, Ok(Saved::Stored)), "{:?}", done[0].result);
    }

    /// The leases come back, so that the next load has them again.
    fn load(&self, n: u64, into: Vec<kvtier_mem::Lease>) -> Vec<kvtier_mem::Lease> {
        let len = into.iter().map(kvtier_mem::Lease::len).sum::<usize>() as u64;
        let op = Load { key: self.suite.key(n), into };
        let done = self.tier.load(&self.suite.ctx(), vec![op]).wait().pop().unwrap();
        assert_eq!(done.result.unwrap(), Loaded::Hit { len });
        done.op.into
    }
}

#[test]
fn a_chunk_costs_one_request_a_few_allocations_and_no_copy() {
    let world = World::new();
    world.save(1, SMALL);
    world.save(2, LARGE);
    let requests = || world.tier.client().counts().requests;
    let loads = |n, len| {
        let mut into = Some(vec![world.suite.lease(len)]);
        let mut cost = u64::MAX;
        let allocated = fewest(|| {
            let before = requests();
            into = Some(world.load(n, into.take().unwrap()));
            // The tier itself may have asked for something meanwhile, though not each time.
            cost = cost.min(requests() - before);
        });
        assert_eq!(cost, 1, "requests per loaded chunk: 1.00");
        allocated
    };
    loads(1, SMALL);
    let small = loads(1, SMALL);
    let large = loads(2, LARGE);
    let mut next = 100;
    let mut saves = |len| {
        let view = world.suite.view(&world.suite.key(0), 0, len);
        fewest(|| {
            next += 1;
            let op = Save { key: world.suite.key(next), from: vec![view.clone()] };
            assert!(matches!(
                world.tier.save(&world.suite.ctx(), vec![op]).wait()[0].result,
                Ok(Saved::Stored)
            ));
        })
    };
    let save_small = saves(SMALL);
    let save_large = saves(LARGE);
    let text = format!(
        "(allocations, bytes): loads {small:?} and {large:?}, saves {save_small:?} and {save_large:?}\n"
    );
    std::io::stdout().write_all(text.as_bytes()).unwrap();
    // Facts of a large chunk have 64 sums, of a small one 1.
    assert!(large.0 <= small.0 + 4 && small.0 <= 40 && large.1 <= 16 << 10, "{text}");
    assert!(
        save_large.0 <= save_small.0 + 6 && save_small.0 <= 45 && save_large.1 <= 16 << 10,
        "{text}"
    );
    assert_eq!(world.tier.status().counter("copied_bounce_bytes"), 0);
    let counts = world.tier.client().counts();
    assert!(
        counts.copied_head_bytes <= 2048 * counts.requests,
        "{} bytes came with heads",
        counts.copied_head_bytes
    );
}

#[test]
fn a_chunk_lands_in_several_leases_without_a_copy_and_is_joined_from_several_views_with_one() {
    let world = World::new();
    let key = world.suite.key(1);
    let from = vec![world.suite.view(&key, 0, 1000), world.suite.view(&key, 1000, SMALL - 1000)];
    let done = world.tier.save(&world.suite.ctx(), vec![Save { key, from }]).wait();
    assert!(matches!(done[0].result, Ok(Saved::Stored)));
    assert_eq!(world.tier.status().counter("copied_bounce_bytes"), SMALL as u64);
    let into = world
        .load(1, vec![world.suite.lease(7), world.suite.lease(SMALL - 8), world.suite.lease(1)]);
    assert_eq!(into.iter().map(kvtier_mem::Lease::init_len).collect::<Vec<_>>(), [7, SMALL - 8, 1]);
    assert_eq!(
        world.tier.status().counter("copied_bounce_bytes"),
        SMALL as u64,
        "a load copies nothing"
    );
}

#[test]
fn a_view_that_was_summed_before_is_not_summed_again() {
    let world = World::new();
    let view = world.suite.view(&world.suite.key(0), 0, LARGE);
    for n in 1..4 {
        let op = Save { key: world.suite.key(n), from: vec![view.clone()] };
        assert!(matches!(
            world.tier.save(&world.suite.ctx(), vec![op]).wait()[0].result,
            Ok(Saved::Stored)
        ));
    }
    assert_eq!(world.tier.status().counter("summed_save_bytes"), LARGE as u64);
}
