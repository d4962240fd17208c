//! Chunks that are encoded in the bucket: saves, loads, lookups, starts, and nodes with different
//! settings.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;

use kvtier_core::{Load, Loaded, MissReason, Presence, Save, Saved, Tier};
use support::encoded::*;
use support::tier::*;

mod conformance {
    use kvtier_s3_tier::{S3Tier, TierConfig};
    use kvtier_testkit::conformance::Fixture;

    use super::support::encoded::*;
    use super::support::*;

    const CAPACITY: u64 = 16 << 20;

    fn make() -> Fixture {
        let server = server(|_| {});
        let config = TierConfig::new(config_of(endpoint(&server, "bucket")))
            .with_capacity(CAPACITY)
            .with_prefix("kv")
            .with_encoding(zstd_aes());
        Fixture::new(S3Tier::open(config).unwrap()).with_capacity(CAPACITY).with_keep(server)
    }

    kvtier_testkit::conformance!(make);
}

#[test]
fn chunks_come_back_from_any_pieces_into_any_pieces() {
    for encoding in [zstd(), zstd_aes()] {
        let world = World::with(|config| config.with_encoding(encoding));
        let mut raw_bytes = 0;
        let lens = [4097, 70_000, 1 << 20, (1 << 20) + 3];
        for (n, len) in lens.into_iter().enumerate() {
            let key = world.suite.key(n as u64);
            let raw = compressible(n as u64, len);
            let (front, back) = raw.split_at(len / 3);
            let from = vec![view(&world, front), view(&world, back)];
            let done = world.suite.save_with(Save { key: key.clone(), from });
            assert_eq!(done.result.unwrap(), Saved::Stored);
            raw_bytes += len as u64;
            assert_eq!(world.lookup(&key), Presence::Hit { len: len as u64 });
            assert_eq!(load_bytes(&world, &key, &[len]), Ok(raw.clone()));
            assert_eq!(load_bytes(&world, &key, &[1, len / 2, len]), Ok(raw), "longer memory");
            assert_eq!(load_bytes(&world, &key, &[len - 1]), Err(MissReason::Length));
            assert_eq!(load_bytes(&world, &key, &[len]).map(|raw| raw.len()), Ok(len));
        }
        assert!(world.in_bucket() < raw_bytes / 4, "{}", world.in_bucket());
        assert_eq!(world.used(), world.in_bucket());
        assert_eq!(world.count("encoded_stored_bytes"), world.in_bucket());
        assert_eq!(world.count("encoded_raw_bytes"), raw_bytes);
        assert_eq!((world.count("encoded_chunks"), world.count("decoded_chunks")), (4, 12));
        assert_eq!(
            (world.count("copied_bounce_bytes"), world.count("copied_encoded_bytes")),
            (0, 0)
        );
        let keys = world.suite.keys(0..4);
        world.suite.remove(&keys);
        assert_eq!((world.used(), world.in_bucket()), (0, 0));
    }
}

#[test]
fn what_no_encoding_makes_smaller_is_stored_as_it_is() {
    let world = World::with(|config| config.with_encoding(zstd()));
    let key = world.suite.key(0);
    assert_eq!(world.save(&key, 100_000), Saved::Stored);
    assert_eq!(world.load(&key, 100_000), Loaded::Hit { len: 100_000 });
    assert_eq!((world.in_bucket(), world.used()), (100_000, 100_000));
    assert_eq!((world.count("encode_refused_chunks"), world.count("decoded_chunks")), (1, 0));
}

#[test]
fn a_start_from_a_listing_learns_raw_lengths_by_one_head_each() {
    let first = World::with(|config| config.with_encoding(zstd_aes()));
    let key = first.suite.key(1);
    let raw = compressible(1, 300_000);
    store(&first, &key, &raw);
    let (server, stored) = (Arc::clone(&first.server), first.in_bucket());
    forget_own_objects(&first);

    let second = World::over(server, |config| config.with_encoding(zstd_aes()));
    assert_eq!(second.used(), stored);
    assert_eq!(second.tier.lookup_in_memory(std::slice::from_ref(&key)), [Presence::Unknown]);
    let (found, asked) = second.asked(|| [second.lookup(&key), second.lookup(&key)]);
    assert_eq!(found, [Presence::Hit { len: 300_000 }; 2]);
    assert_eq!(asked.len(), 1, "{asked:?}");
    assert_eq!(
        second.tier.lookup_in_memory(std::slice::from_ref(&key)),
        [Presence::Hit { len: 300_000 }]
    );
    let (loaded, asked) = second.asked(|| load_bytes(&second, &key, &[300_000]));
    assert_eq!((loaded, asked.len()), (Ok(raw), 1));
    assert_eq!((second.used(), second.count("copied_encoded_bytes")), (stored, 0));
}

#[test]
fn a_node_that_does_not_encode_learns_raw_lengths_by_loads() {
    let first = World::with(|config| config.with_encoding(zstd()));
    let key = first.suite.key(1);
    let raw = compressible(1, 300_000);
    store(&first, &key, &raw);
    let (server, stored) = (Arc::clone(&first.server), first.in_bucket());
    forget_own_objects(&first);

    let second = World::over(server, |config| config);
    let presence = second.tier.lookup_in_memory(std::slice::from_ref(&key));
    assert_eq!(presence, [Presence::Unknown], "a listing shows stored lengths only");
    let (loaded, asked) = second.asked(|| load_bytes(&second, &key, &[100, 300_000]));
    assert_eq!((loaded, asked.len()), (Ok(raw), 1));
    assert_eq!(second.lookup(&key), Presence::Hit { len: 300_000 });
    assert_eq!((second.used(), second.count("copied_encoded_bytes")), (stored, stored));
    // It is stored already, in another way than this node would.
    store_as(&second, &key, &compressible(1, 300_000), Saved::Present);
}

#[test]
fn an_object_longer_than_its_raw_bytes_is_read_once_more() {
    let first = World::with(|config| config.with_encoding(aes()));
    let key = first.suite.key(1);
    assert_eq!(first.save(&key, 50_000), Saved::Stored);
    assert!(first.in_bucket() > 50_000);
    let server = Arc::clone(&first.server);
    forget_own_objects(&first);

    let second = World::over(server, |config| config.with_encoding(aes()));
    let (loaded, asked) = second.asked(|| second.load(&key, 50_000));
    assert_eq!(loaded, Loaded::Hit { len: 50_000 });
    assert_eq!(asked.len(), 2, "{asked:?}");
    assert_eq!(second.asked(|| second.load(&key, 50_000)).1.len(), 1, "now its length is known");
    assert_eq!(second.count("copied_encoded_bytes"), 0);
}

#[test]
fn saves_with_less_memory_than_they_need_together_all_end() {
    let chunk = 200_000;
    // Memory for one chunk at a time, of each direction.
    let world = World::with(|config| config.with_encoding(zstd_aes()).with_encode_bytes(600_000));
    let ops = (0..12).map(|n| Save {
        key: world.suite.key(n),
        from: vec![view(&world, &compressible(n, chunk))],
    });
    let done = world.tier.save(&world.suite.ctx(), ops.collect()).wait();
    assert!(done.iter().all(|done| matches!(done.result, Ok(Saved::Stored))), "{done:?}");
    let ops =
        (0..12).map(|n| Load { key: world.suite.key(n), into: vec![world.suite.lease(chunk)] });
    let done = world.tier.load(&world.suite.ctx(), ops.collect()).wait();
    for (n, done) in done.iter().enumerate() {
        assert_eq!(*done.result.as_ref().unwrap(), Loaded::Hit { len: chunk as u64 });
        assert_eq!(done.op.into[0].as_host().unwrap(), compressible(n as u64, chunk));
    }
    let too_long = world.suite.save_with(world.suite.save_op(&world.suite.key(99), 400_000));
    let error = too_long.result.unwrap_err().to_string();
    assert!(error.contains("raise encode_bytes"), "{error}");
}

#[test]
fn the_cap_counts_stored_bytes() {
    // Sixteen times as much as the cap, which fits encoded.
    let cap = 1 << 20;
    let world = World::with(|config| config.with_encoding(zstd()).with_capacity(cap));
    let chunk = 1 << 19;
    for n in 0..32 {
        store(&world, &world.suite.key(n), &compressible(n, chunk));
    }
    assert_eq!(world.count("evicted"), 0);
    assert!((0..32).all(|n| load_bytes(&world, &world.suite.key(n), &[chunk]).is_ok()));
    assert_eq!(world.used(), world.in_bucket());
    // Chunks that do not become smaller take their place.
    (100..104).for_each(|n| assert_eq!(world.save(&world.suite.key(n), 200_000), Saved::Stored));
    world.suite.eventually("usage below the cap", || {
        world.used() <= cap && world.used() == world.in_bucket()
    });
}
