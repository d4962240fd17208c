//! The order of eviction in a tier with a cap: that of the configured policy, with the hints of callers.
#![allow(clippy::unwrap_used)]

mod support;

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use kvtier_core::{
    Chain, Ctx, Hint, Hold, Key, Loaded, Mode, Namespace, Observe, Presence, Saved, ShedReason,
    Tier,
};
use kvtier_evict::PolicyKind;
use kvtier_index::Quotas;
use kvtier_s3_tier::{Compat, Evictor, TierConfig};
use kvtier_testkit::conformance::Fixture;
use kvtier_testkit::s3::{Fault, Rule};
use support::tier::World;

const LEN: usize = 10_000;

/// A full tier of this many chunks.
fn full_tier(chunks: usize, change: impl FnOnce(TierConfig) -> TierConfig) -> World {
    World::with(|mut config| {
        (config.high_mark, config.sync.evictor) = (1.0, Evictor::Single);
        // Nothing is shed because this machine is slow.
        config.space_wait_max = Duration::from_secs(600);
        change(config.with_capacity((chunks * LEN) as u64))
    })
}

/// Saves chunks `from..to` of a conversation as one batch; how many were kept.
fn save_chain(world: &World, from: u64, to: u64) -> usize {
    let parent = from.checked_sub(1).map(|n| *world.suite.key(n).digest());
    let ctx = world.suite.ctx().with_chain(Chain { parent, depth: from as u32 });
    let ops = (from..to).map(|n| world.suite.save_op(&world.suite.key(n), LEN)).collect();
    let done = world.tier.save(&ctx, ops).wait();
    done.iter().filter(|done| matches!(done.result, Ok(Saved::Stored))).count()
}

fn prefix(world: &World, n: u64) -> usize {
    let keys = (0..n).map(|n| world.suite.key(n)).collect();
    world
        .tier
        .lookup(&world.suite.ctx(), keys, Mode::Prefix, Hold::None)
        .wait()
        .unwrap()
        .prefix_len()
}

fn there(world: &World, n: u64) -> Vec<bool> {
    (0..n).map(|n| world.lookup(&world.suite.key(n)).is_hit()).collect()
}

fn save_with(world: &World, ctx: &Ctx, key: &Key) -> Saved {
    world.tier.save(ctx, vec![world.suite.save_op(key, LEN)]).wait().remove(0).result.unwrap()
}

#[test]
fn a_chain_that_is_longer_than_the_tier_keeps_its_beginning() {
    let world = full_tier(10, |config| config);
    assert_eq!(save_chain(&world, 0, 8), 8);
    assert_eq!((save_chain(&world, 8, 16), prefix(&world, 16)), (2, 10));
    assert_eq!(save_chain(&world, 16, 20), 0, "the one before is missing");
    assert_eq!((prefix(&world, 20), world.count("shed")), (10, 10));
    assert_eq!(world.in_bucket(), 10 * LEN as u64);
}

#[test]
fn saves_without_a_chain_have_that_of_an_earlier_lookup() {
    let world = full_tier(4, |config| config);
    assert_eq!(prefix(&world, 9), 0);
    let kept =
        (0..9).take_while(|n| world.save(&world.suite.key(*n), LEN) == Saved::Stored).count();
    assert_eq!((kept, prefix(&world, 9)), (4, 4));
    // Chunks that no request used before are ordered by age.
    assert_eq!(world.save(&world.suite.key(20), LEN), Saved::Stored);
    assert_eq!(prefix(&world, 9), 3, "the tail went, not the head");
}

#[test]
fn a_chain_is_known_after_a_restart() {
    let world = full_tier(10, |config| config);
    assert_eq!(save_chain(&world, 0, 8), 8);
    world.tier.close().wait().unwrap();
    let server = Arc::clone(&world.server);
    drop(world);
    let world = World::over(server, |mut config| {
        (config.high_mark, config.sync.evictor) = (1.0, Evictor::Single);
        config.space_wait_max = Duration::from_secs(600);
        config.with_capacity(10 * LEN as u64)
    });
    for n in 100..106 {
        assert_eq!(world.save(&world.suite.key(n), LEN), Saved::Stored);
    }
    world.suite.eventually("below the cap", || world.used() <= 10 * LEN as u64);
    let there = there(&world, 8);
    assert!(
        there.contains(&false) && there.is_sorted_by(|a, b| a >= b),
        "{there:?}: what is there is a prefix"
    );
}

#[test]
fn hints_reach_the_policy() {
    let world = full_tier(3, |config| config);
    let mut keep = Hint::default();
    keep.retention = Some(Duration::from_secs(3600));
    assert_eq!(
        save_with(&world, &world.suite.ctx().with_hint(keep), &world.suite.key(0)),
        Saved::Stored
    );
    (1..9).for_each(|n| assert_eq!(world.save(&world.suite.key(n), LEN), Saved::Stored));
    assert!(world.lookup(&world.suite.key(0)).is_hit(), "though it is the oldest");
    assert!(!world.lookup(&world.suite.key(6)).is_hit());
}

#[test]
fn the_policy_is_that_of_the_configuration() {
    for (policy, stays) in [(PolicyKind::Lru, true), (PolicyKind::Fifo, false)] {
        let world = full_tier(3, |config| config.with_policy(policy));
        (0..3).for_each(|n| assert_eq!(world.save(&world.suite.key(n), LEN), Saved::Stored));
        assert_eq!(world.load(&world.suite.key(0), LEN), Loaded::Hit { len: LEN as u64 });
        assert_eq!(world.save(&world.suite.key(3), LEN), Saved::Stored);
        assert_eq!(world.lookup(&world.suite.key(0)).is_hit(), stays, "{policy}");
        assert_eq!(world.lookup(&world.suite.key(1)).is_hit(), !stays, "{policy}");
    }
    let world = full_tier(3, |config| config.with_policy(PolicyKind::Noop));
    let saved: Vec<Saved> = (0..5).map(|n| world.save(&world.suite.key(n), LEN)).collect();
    assert_eq!(
        saved[2..],
        [Saved::Stored, Saved::Shed(ShedReason::Full), Saved::Shed(ShedReason::Full)]
    );
}

fn key_of(tenant: &str, n: u64) -> Key {
    Fixture::key_in(Namespace::new(tenant, Default::default()), n)
}

fn used_by(world: &World, tenant: &str) -> u64 {
    let usage = world.tier.usage();
    usage.tenants.iter().find(|one| one.tenant == tenant).map_or(0, |one| one.used_bytes)
}

fn limited(config: TierConfig) -> TierConfig {
    let quotas = Quotas::new().with("a", 5 * LEN as u64).with("none", 0);
    config.with_policy(PolicyKind::IsolatedLru).with_quotas(quotas)
}

#[test]
fn a_tenant_keeps_to_its_quota_and_spares_the_others() {
    let world = full_tier(20, |mut config| {
        config.space_wait_max = Duration::from_secs(600);
        limited(config)
    });
    // Every delete takes its time.
    world.server.script(
        Rule::next(Fault::Stall(Duration::from_millis(100))).method("POST").times(1_000_000),
    );
    (0..4).for_each(|n| assert_eq!(world.save(&key_of("b", n), LEN), Saved::Stored));
    for n in 0..12 {
        assert_eq!(world.save(&key_of("a", n), LEN), Saved::Stored);
        assert!(
            used_by(&world, "a") <= 5 * LEN as u64,
            "what goes is counted until it is deleted, and waited for"
        );
    }
    assert!(world.lookup(&key_of("a", 11)).is_hit() && !world.lookup(&key_of("a", 0)).is_hit());
    assert_eq!(used_by(&world, "b"), 4 * LEN as u64);
    assert_eq!(world.save(&key_of("none", 1), LEN), Saved::Shed(ShedReason::Quota));
}

#[test]
fn a_tenant_does_not_grow_while_what_has_to_go_cannot_be_deleted() {
    let world = full_tier(40, |mut config| {
        config.space_wait_max = Duration::from_millis(300);
        limited(config)
    });
    world
        .server
        .script(Rule::next(Fault::Error(403, "AccessDenied")).method("POST").times(1_000_000));
    let ops = (0..30).map(|n| world.suite.save_op(&key_of("a", n), LEN)).collect();
    let saved: Vec<Saved> = world
        .tier
        .save(&world.suite.ctx(), ops)
        .wait()
        .into_iter()
        .map(|done| done.result.unwrap())
        .collect();
    assert_eq!(saved.iter().filter(|saved| **saved == Saved::Stored).count(), 5, "{saved:?}");
    assert_eq!((world.in_bucket(), used_by(&world, "a")), (5 * LEN as u64, 5 * LEN as u64));
    assert_eq!(
        world.save(&key_of("b", 1), LEN),
        Saved::Stored,
        "others have nothing to do with it"
    );
    world.server.heal();
    world
        .suite
        .eventually("a save goes through", || world.save(&key_of("a", 40), LEN) == Saved::Stored);
    assert!(used_by(&world, "a") <= 5 * LEN as u64);
}

#[test]
fn a_quota_changes_at_run_time_whatever_the_policy() {
    let world = full_tier(40, |config| config);
    (0..6).for_each(|n| assert_eq!(world.save(&key_of("a", n), LEN), Saved::Stored));
    (0..4).for_each(|n| assert_eq!(world.save(&key_of("b", n), LEN), Saved::Stored));
    assert!(world.tier.set_quota("a", Some(3 * LEN as u64)));
    world.suite.eventually("below the quota, and space for the next", || {
        used_by(&world, "a") < 3 * LEN as u64
    });
    assert_eq!(world.save(&key_of("a", 6), LEN), Saved::Stored);
    assert!(world.lookup(&key_of("a", 6)).is_hit() && !world.lookup(&key_of("a", 0)).is_hit());
    assert_eq!(used_by(&world, "b"), 4 * LEN as u64);
    assert!(world.tier.set_quota("a", None));
    (10..16).for_each(|n| assert_eq!(world.save(&key_of("a", n), LEN), Saved::Stored));
    assert!(used_by(&world, "a") >= 8 * LEN as u64);
    let theirs = World::with(|mut config| {
        config.compat = Some(Compat { watermark: 0.8, ratio: 0.2 });
        config
    });
    assert!(!theirs.tier.set_quota("a", Some(1)), "LMCache's eviction has no tenants");
}

/// The eviction for the quota deleted the object while it was being read.
#[test]
fn a_load_that_shows_whose_chunk_it_is_above_a_quota_is_a_hit() {
    let key = key_of("none", 1);
    let first = full_tier(20, |config| config);
    assert_eq!(first.save(&key, LEN), Saved::Stored);
    first.tier.close().wait().unwrap();
    let server = Arc::clone(&first.server);
    let name: &str = first.name(&key).leak();
    drop(first);
    // Only a listing shows the chunk now, and not its tenant.
    for own in server.keys("kv/.kvtier/") {
        server.remove_object(&own);
    }
    let world = World::over(server, |mut config| {
        (config.high_mark, config.sync.evictor) = (1.0, Evictor::Single);
        config.client.stall_max = Duration::from_secs(600);
        limited(config.with_capacity(20 * LEN as u64))
    });
    let other = key_of("b", 1);
    assert_eq!(world.save(&other, LEN), Saved::Stored);
    world.suite.eventually("tenants have their identities", || {
        assert!(matches!(world.load(&other, LEN), Loaded::Hit { .. }));
        used_by(&world, "b") == LEN as u64
    });
    world.server.script(Rule::next(Fault::Hang).method("GET").containing(name));
    let loading = world.tier.load(&world.suite.ctx(), vec![world.suite.load_op(&key, LEN)]);
    world.suite.eventually("it is being read", || world.server.stalled() == 1);
    assert_eq!(used_by(&world, "none"), 0, "its tenant is set when it is found");
    world.server.release();
    assert_eq!(loading.wait().remove(0).result.unwrap(), Loaded::Hit { len: LEN as u64 });
    world.suite.eventually("it is evicted then", || world.server.object(name).is_none());
}

#[test]
fn a_node_that_deletes_nothing_keeps_to_quotas_and_the_evictor_frees_space_below_them() {
    let other = full_tier(20, |mut config| {
        (config.sync.evictor, config.space_wait_max) = (Evictor::Never, Duration::from_millis(50));
        config.sync.journal_every = Duration::from_millis(100);
        limited(config)
    });
    let saved: Vec<Saved> = (0..9).map(|n| other.save(&key_of("a", n), LEN)).collect();
    // One may stick out.
    assert_eq!(saved.iter().filter(|saved| **saved == Saved::Stored).count(), 6, "{saved:?}");
    assert_eq!(saved[8], Saved::Shed(ShedReason::Full));
    assert_eq!(other.save(&key_of("none", 1), LEN), Saved::Shed(ShedReason::Quota));
    let evictor = World::over(Arc::clone(&other.server), |mut config| {
        config.sync.evictor = Evictor::Single;
        config.sync.journal_every = Duration::from_millis(100);
        limited(config.with_capacity(20 * LEN as u64))
    });
    // Whose chunks it lists it learns from the other's journal.
    evictor.suite.eventually("space below the quota", || used_by(&evictor, "a") == 4 * LEN as u64);
    // What is being deleted is not counted any more.
    evictor.suite.eventually("objects gone", || evictor.in_bucket() == 4 * LEN as u64);
}

#[test]
fn a_set_that_is_not_whole_is_not_there() {
    let world = full_tier(20, |config| config);
    let keys: Vec<Key> = (0..3).map(|n| world.suite.key(n)).collect();
    let ops = keys.iter().map(|key| world.suite.save_op(key, LEN)).collect();
    let done = world.tier.save(&world.suite.ctx().with_atomic(), ops).wait();
    assert!(done.iter().all(|done| matches!(done.result, Ok(Saved::Stored))));
    drop(done);
    keys.iter().for_each(|key| assert_eq!(world.load(key, LEN), Loaded::Hit { len: LEN as u64 }));
    world.delete(&world.name(&keys[1]));
    assert!(matches!(world.load(&keys[1], LEN), Loaded::Miss(_)));
    for key in [&keys[0], &keys[2]] {
        assert!(matches!(world.load(key, LEN), Loaded::Miss(_)), "one of its set is gone");
        assert_eq!(world.lookup(key), Presence::Miss);
    }
    assert_eq!(world.save(&keys[1], LEN), Saved::Stored);
    assert!(keys.iter().all(|key| world.lookup(key).is_hit()), "whole again");
}

#[test]
fn one_of_a_set_is_a_miss_for_lookups_while_the_set_is_being_saved() {
    let world = full_tier(20, |mut config| {
        config.client.stall_max = Duration::from_secs(600);
        config
    });
    let keys: Arc<[Key]> = (0..4).map(|n| world.suite.key(n)).collect();
    // Another node has saved one of them on its own, which this one does not know.
    let other = World::over(Arc::clone(&world.server), |mut config| {
        config.sync.evictor = Evictor::Never;
        config
    });
    assert_eq!(other.save(&keys[0], LEN), Saved::Stored);
    for key in &*keys {
        let name = world.name(key).leak();
        world.server.script(Rule::next(Fault::Hang).method("PUT").containing(name));
    }
    let ops = keys.iter().map(|key| world.suite.save_op(key, LEN)).collect();
    let saving = world.tier.save(&world.suite.ctx().with_atomic(), ops);
    world.suite.eventually("all are being written", || world.server.stalled() == keys.len());
    let found = world.suite.lookup(&keys, Mode::Each);
    assert!(found.iter().all(|found| !found.is_hit()), "{found:?}");
    world.server.release();
    assert!(
        saving.wait().iter().all(|done| matches!(done.result, Ok(Saved::Stored | Saved::Present)))
    );
    assert!(keys.iter().all(|key| world.lookup(key).is_hit()), "whole");
}

#[test]
fn requests_are_counted_as_they_are_charged() {
    // Space for many tries: nothing is deleted for it.
    let world = full_tier(6000, |config| config);
    let names =
        ["requests_put", "requests_list", "requests_get", "requests_head", "requests_delete"];
    let counts = || names.map(|name| world.count(name));
    let moved = |work: &dyn Fn()| {
        let before = counts();
        work();
        let after = counts();
        std::array::from_fn::<u64, 5, _>(|n| after[n] - before[n])
    };
    // With the first tenant the key of tenants is asked for.
    assert_eq!(world.save(&world.suite.key(1000), LEN), Saved::Stored);
    // A round of maintenance may come between and ask for more, though not each time.
    let numbers = Cell::new(0);
    let charges = |what: &str, expected: [u64; 5], work: &dyn Fn(&Key)| {
        world.suite.eventually(what, || {
            numbers.set(numbers.get() + 1);
            let key = world.suite.key(numbers.get());
            let charged = moved(&|| work(&key));
            assert!(charged.iter().zip(expected).all(|(n, least)| *n >= least), "{charged:?}");
            charged == expected
        });
    };
    let save = |key: &Key| assert_eq!(world.save(key, LEN), Saved::Stored);
    let remove = |key: &Key| assert_eq!(world.suite.remove(&Arc::from([key.clone()])).removed, 1);
    let load = |key: &Key| assert!(matches!(world.load(key, LEN), Loaded::Hit { .. }));
    charges("a save", [1, 0, 0, 0, 0], &save);
    charges("a load more", [1, 0, 1, 0, 0], &|key| {
        save(key);
        load(key);
    });
    charges("a lookup", [0, 0, 0, 1, 0], &|key| assert!(!world.lookup(key).is_hit()));
    charges("a remove more", [1, 0, 0, 0, 1], &|key| {
        save(key);
        remove(key);
    });
    charges("nothing", [0; 5], &|key| drop(world.server.object(&world.name(key))));
    let before = Cell::new(0);
    charges("a save that is sent again", [2, 0, 0, 0, 0], &|key| {
        before.set(world.count("retries"));
        let name: &str = world.name(key).leak();
        world
            .server
            .script(Rule::next(Fault::Error(500, "InternalError")).method("PUT").containing(name));
        save(key);
    });
    assert_eq!(world.count("retries") - before.get(), 1);
    assert!(numbers.get() <= 40, "{} tries for six", numbers.get());
}
