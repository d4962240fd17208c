//! The defects of LMCache 0.5.6's S3 backends that its users met: each with a test that says it
//! does not recur here.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvtier_core::{Ctx, ErrorKind, Hold, Key, Loaded, Mode, Presence, Removed, Saved};
use kvtier_key::KeyId;
use kvtier_s3_tier::Layout;
use kvtier_testkit::s3::{Fault, Rule};
use support::tier::World;

const LEN: usize = 100_000;

fn hit() -> Loaded {
    Loaded::Hit { len: LEN as u64 }
}

#[test]
fn defect_1_a_get_never_overflows_its_destination_and_a_short_object_is_no_hit() {
    let world = World::with(|config| config.with_layout(Layout::LmcacheMp));
    let key = world.suite.key(1);
    world.save(&key, LEN);
    let name = world.objects()[0].0.clone();
    let bytes = world.server.object(&name).unwrap().to_vec();
    for len in [LEN + 1, 2 * LEN, LEN - 1, 1] {
        let mut other = bytes.clone();
        other.resize(len, 7);
        world.server.put_object(&name, other);
        // One region of memory: the bytes behind a lease are not its own.
        let (lease, guard) = world.suite.lease(2 * LEN + 64).split_at(LEN);
        let mut guard = guard;
        guard.as_host_mut().unwrap().fill(0x5A);
        guard.assume_filled(guard.len());
        let done = world.suite.load_with(kvtier_core::Load { key: key.clone(), into: vec![lease] });
        assert!(matches!(done.result, Ok(Loaded::Miss(_))), "{len} bytes: {:?}", done.result);
        assert!(
            guard.as_host().unwrap().iter().all(|byte| *byte == 0x5A),
            "{len} bytes: written past the memory"
        );
    }
}

#[test]
fn defect_2_a_store_that_is_back_is_used_again_for_ever() {
    let world = World::new();
    let key = world.suite.key(1);
    world.save(&key, LEN);
    for _ in 0..3 {
        world.server.script(Rule::next(Fault::Hangup).times(1_000_000));
        for _ in 0..20 {
            drop(
                world
                    .suite
                    .tier
                    .load(
                        &Ctx::within(Duration::from_millis(30)),
                        vec![world.suite.load_op(&key, LEN)],
                    )
                    .wait(),
            );
        }
        world.server.heal();
        let end = Instant::now() + Duration::from_secs(600);
        while !matches!(world.try_load(&key, LEN).result, Ok(Loaded::Hit { .. })) {
            assert!(Instant::now() < end, "not back");
        }
    }
}

#[test]
fn defect_3_a_remembered_miss_is_asked_for_again_so_that_other_nodes_writes_are_seen() {
    let world = World::with(|mut config| {
        config.fresh_miss_max = Duration::from_millis(100);
        config
    });
    let key = world.suite.key(1);
    assert_eq!(world.lookup(&key), Presence::Miss);
    World::over(Arc::clone(&world.server), |config| config).save(&key, LEN);
    world.suite.eventually("it is seen", || world.lookup(&key).is_hit());
}

#[test]
fn defect_3_submitting_a_lookup_never_blocks() {
    let world = World::new();
    world.server.script(Rule::next(Fault::Hang).times(1000));
    let keys: Arc<[Key]> = Arc::from([world.suite.key(1)]);
    let ticket = world.suite.tier.lookup(&world.suite.ctx(), keys, Mode::Each, Hold::None);
    assert!(!ticket.is_done(), "before there is any answer");
    world.server.heal();
    world.server.release();
    assert_eq!(ticket.wait().unwrap().found, [Presence::Miss]);
}

#[test]
fn defect_3_a_batch_with_misses_keeps_its_positions() {
    let world = World::new();
    let keys: Vec<Key> = (0..9).map(|n| world.suite.key(n)).collect();
    let there: Vec<Key> = keys.iter().step_by(2).cloned().collect();
    world.suite.store(&there, LEN);
    let ops = keys.iter().map(|key| world.suite.load_op(key, LEN)).collect();
    let done = world.suite.tier.load(&world.suite.ctx(), ops).wait();
    for (n, (done, key)) in done.iter().zip(&keys).enumerate() {
        assert_eq!(done.op.key, *key);
        assert_eq!(matches!(done.result, Ok(Loaded::Hit { .. })), n % 2 == 0, "number {n}");
    }
}

#[test]
fn defect_4_deleting_heeds_locks_and_says_why_it_failed() {
    let world = World::new();
    let keys: Arc<[Key]> = Arc::from([world.suite.key(1)]);
    world.suite.store(&keys, LEN);
    let hold = world.suite.hold(&keys, Duration::from_secs(3600));
    assert_eq!(world.suite.remove(&keys), Removed::new(0, 0, 1));
    assert_eq!(world.load(&keys[0], LEN), hit());
    world.suite.tier.release(hold.hold.unwrap());
    world.server.script(Rule::next(Fault::Error(403, "AccessDenied")).method("POST"));
    let error = world.suite.tier.remove(&world.suite.ctx(), Arc::clone(&keys)).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(
        std::error::Error::source(&error).unwrap().to_string().contains("AccessDenied"),
        "{error:?}"
    );
    assert_eq!(world.suite.remove(&keys), Removed::new(1, 0, 0));
}

#[test]
fn defect_8_models_that_differ_by_a_slash_never_share_an_object() {
    let world = World::with(|config| config.with_layout(Layout::Lmcache));
    let key = |text: &str| {
        Key::new(world.suite.key(1).namespace().clone(), KeyId::from_engine_text(text).unwrap())
    };
    let a = key("org/m@1@0@ab@half");
    let b = key("org_m@1@0@ab@half");
    assert_eq!(world.save(&a, LEN), Saved::Stored);
    assert_eq!(
        world.try_load(&b, LEN).result.unwrap_err().kind(),
        ErrorKind::Invalid,
        "reported, not served"
    );
    // Another process, which met the other spelling first, is served nothing either.
    let other =
        World::over(Arc::clone(&world.server), |config| config.with_layout(Layout::Lmcache));
    assert!(
        matches!(other.try_load(&b, LEN).result, Ok(Loaded::Miss(_))),
        "its facts name another key"
    );
    assert_eq!(world.load(&a, LEN), hit());
}

#[test]
fn defect_10_the_index_is_back_after_a_restart() {
    let world = World::new();
    let keys: Vec<Key> = (0..20).map(|n| world.suite.key(n)).collect();
    world.suite.store(&keys, LEN);
    let again = World::over(Arc::clone(&world.server), |config| config);
    assert_eq!(again.used(), 20 * LEN as u64);
    let (found, asked) = again.asked(|| again.suite.lookup(&keys.into(), Mode::Each));
    assert!(found.iter().all(|presence| presence.is_hit()) && asked.is_empty());
}

#[test]
fn defect_11_eviction_is_not_one_batch_a_second() {
    let world = World::with(|mut config| {
        // Nothing is shed because this machine is slow.
        config.space_wait_max = Duration::from_secs(600);
        config.with_capacity(50 * LEN as u64)
    });
    let begun = Instant::now();
    (0..300).for_each(|n| assert_eq!(world.save(&world.suite.key(n), LEN), Saved::Stored));
    assert!(world.count("evicted") >= 240);
    // A batch of ten a second would take longer.
    assert!(begun.elapsed() < Duration::from_secs(120), "{:?} for 250 evictions", begun.elapsed());
}

#[test]
fn defect_12_usage_counts_what_others_wrote() {
    let world = World::new();
    let other = World::over(Arc::clone(&world.server), |config| config);
    other.suite.store(&[other.suite.key(1), other.suite.key(2)], LEN);
    let third = World::over(Arc::clone(&world.server), |config| config);
    assert_eq!(third.used(), 2 * LEN as u64);
    assert!(world.lookup(&world.suite.key(1)).is_hit());
    assert_eq!(world.used(), LEN as u64, "and one that is found is counted at once");
}

#[test]
fn defect_5_a_longer_object_of_another_program_is_no_hit() {
    let world = World::with(|config| config.with_layout(Layout::LmcacheMp));
    let key = world.full_key(1, LEN as u64);
    assert_eq!(world.save(&key, LEN), Saved::Stored);
    let name = world.objects()[0].0.clone();
    let bytes = world.server.object(&name).unwrap().to_vec();
    for len in [LEN + 1, LEN + 4096, LEN - 1] {
        let mut other = bytes.clone();
        other.resize(len, 0);
        world.server.put_object(&name, other);
        assert_eq!(
            World::over(Arc::clone(&world.server), |config| config.with_layout(Layout::LmcacheMp))
                .lookup(&key),
            Presence::Miss
        );
        assert!(matches!(world.load(&key, LEN), Loaded::Miss(_)), "{len} bytes");
    }
    world.server.put_object(&name, bytes);
    assert_eq!(world.load(&key, LEN), hit(), "of exactly its length, without facts");
}

#[test]
fn defect_6_of_a_batch_each_chunk_counts_for_itself_and_none_is_longer_than_it_was() {
    let world = World::new();
    let keys: Vec<Key> = (0..5).map(|n| world.suite.key(n)).collect();
    let refused = world.name(&keys[2]);
    world.server.script(
        Rule::next(Fault::Error(403, "AccessDenied"))
            .method("PUT")
            .containing(refused.leak())
            .times(1000),
    );
    let ops = keys.iter().map(|key| world.suite.save_op(key, LEN)).collect();
    let done = world.suite.tier.save(&world.suite.ctx(), ops).wait();
    let stored: Vec<bool> =
        done.iter().map(|done| matches!(done.result, Ok(Saved::Stored))).collect();
    assert_eq!(stored, [true, true, false, true, true]);
    assert!(world.objects().iter().all(|(_, bytes)| *bytes == LEN as u64));
    drop(done);
    let ops = keys.iter().map(|key| world.suite.load_op(key, LEN)).collect();
    let done = world.suite.tier.load(&world.suite.ctx(), ops).wait();
    assert_eq!(done.iter().filter(|done| matches!(done.result, Ok(Loaded::Hit { .. }))).count(), 4);
}

#[test]
fn defect_9_hashes_with_a_sign_and_short_ones_are_found_by_the_first_listing() {
    let world = World::with(|config| config.with_layout(Layout::Lmcache));
    let namespace = world.suite.key(1).namespace().clone();
    let hashes = ["-7271d3f93d77abe6", "0", "-1", "a", "7fffffffffffffff"];
    let keys = hashes.map(|hash| {
        Key::new(
            namespace.clone(),
            KeyId::from_engine_text(&format!("m@1@0@{hash}@bfloat16")).unwrap(),
        )
    });
    keys.iter().for_each(|key| assert_eq!(world.save(key, LEN), Saved::Stored));
    let again = World::over(Arc::clone(&world.server), |config| {
        config.with_layout(Layout::Lmcache).with_namespace(namespace)
    });
    assert_eq!(again.used(), (hashes.len() * LEN) as u64);
    let (found, asked) = again.asked(|| again.suite.lookup(&Arc::from(keys), Mode::Each));
    assert!(found.iter().all(|presence| presence.is_hit()) && asked.is_empty());
}
