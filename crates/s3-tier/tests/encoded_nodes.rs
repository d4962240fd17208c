//! Encoded chunks between nodes with different settings, and objects that others replace; what tools
//! without a tier make of them.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use kvtier_codec::{Aes256Gcm, Keyring, MasterKey, Stage, TierEncoding};
use kvtier_core::{Event, Listener, MissReason, Observe, Presence, Save, Saved, Tier};
use kvtier_key::{BlockSums, Facts};
use kvtier_mem::Lease;
use kvtier_s3::{Get, Object};
use kvtier_s3_tier::inspect::{self, Damage, StoredObject, UndecodedCause, Verified};
use kvtier_testkit::s3::{Fault, Rule};
use support::encoded::*;
use support::tier::*;

const LEN: usize = 100_000;

#[test]
fn journals_and_snapshots_bring_raw_lengths_and_listings_keep_them() {
    let server = plain_server();
    let a = World::over(Arc::clone(&server), |config| quick(config).with_encoding(zstd()));
    let b = World::over(Arc::clone(&server), quick);
    let keys: Vec<_> = (0..4).map(|n| a.suite.key(n)).collect();
    for (n, key) in keys.iter().enumerate() {
        store(&a, key, &compressible(n as u64, LEN));
    }
    let is_known = |world: &World| {
        let found = world.tier.lookup_in_memory(&keys);
        found.iter().all(|presence| *presence == Presence::Hit { len: LEN as u64 })
    };
    // A listing may show them first, with the lengths of the objects.
    b.suite.eventually("raw lengths by the journal", || is_known(&b));
    assert_eq!(b.used(), a.in_bucket());
    let sweeps = b.count("sweeps");
    b.suite.eventually("listings", || b.count("sweeps") > sweeps + 1);
    assert!(is_known(&a) && is_known(&b), "they keep raw lengths");
    let written = || a.count("snapshots") + b.count("snapshots");
    let before = written();
    assert_eq!(load_bytes(&b, &keys[3], &[LEN]), Ok(compressible(3, LEN)));
    assert_eq!(b.count("copied_encoded_bytes"), 0, "it expected an encoded object");
    b.suite.eventually("a snapshot", || written() > before);
    close(a);
    close(b);

    let c = World::over(server, |config| config.with_encoding(zstd()));
    assert!(is_known(&c), "{:?}", c.tier.lookup_in_memory(&keys));
    assert_eq!(c.used(), c.in_bucket());
    c.suite.remove(&Arc::from(keys));
    assert_eq!((c.used(), c.in_bucket()), (0, 0));
}

#[test]
fn an_object_that_another_node_stores_in_another_way_is_read_as_it_is_now() {
    let world = World::with(|config| config.with_encoding(zstd()));
    let (key, raw) = (world.suite.key(1), compressible(1, LEN));
    store(&world, &key, &raw);
    let name = world.name(&key);
    let (encoded, facts) = (world.server.object(&name).unwrap(), facts_in_bucket(&world, &name));
    let plain = Facts::plain(facts.key, facts.namespace, BlockSums::from_bytes(&raw));
    for _ in 0..2 {
        // Longer than the memory that this node takes for it.
        world.write(&name, &raw, Some(&text(&plain)));
        let (loaded, asked) = world.asked(|| load_bytes(&world, &key, &[LEN]));
        assert_eq!((loaded, asked.len()), (Ok(raw.clone()), 2));
        assert_eq!((world.used(), world.lookup(&key)), (LEN as u64, hit()));
        // Encoded, where this node expects the raw bytes.
        world.write(&name, &encoded, Some(&text(&facts)));
        let (loaded, asked) = world.asked(|| load_bytes(&world, &key, &[LEN]));
        assert_eq!((loaded, asked.len()), (Ok(raw.clone()), 1));
        assert_eq!((world.used(), world.lookup(&key)), (encoded.len() as u64, hit()));
    }
    assert_eq!(world.count("copied_encoded_bytes"), 2 * encoded.len() as u64);
    // In clear and shorter than the object was: it fits the memory for encoded bytes.
    let short = &raw[..100];
    let facts = Facts::plain(facts.key, facts.namespace, BlockSums::from_bytes(short));
    world.write(&name, short, Some(&text(&facts)));
    assert_eq!(load_bytes(&world, &key, &[LEN]), Ok(short.to_vec()));
}

#[test]
fn a_save_encrypts_what_a_journal_shows_in_clear() {
    let server = plain_server();
    let key_of = |world: &World, n| world.suite.key(n);
    let plain = World::over(Arc::clone(&server), quick);
    store(&plain, &key_of(&plain, 1), &compressible(1, LEN));
    close(plain);
    let compresses = World::over(Arc::clone(&server), |config| quick(config).with_encoding(zstd()));
    store(&compresses, &key_of(&compresses, 2), &compressible(2, LEN));
    close(compresses);

    let world = World::over(server, |config| quick(config).with_encoding(zstd_aes()));
    let keys = [1, 2].map(|n| key_of(&world, n));
    let is_known = || world.tier.lookup_in_memory(&keys) == [hit(), hit()];
    world.suite.eventually("raw lengths by the journals", is_known);
    let [clear, compressed] = &keys;
    store(&world, clear, &compressible(1, LEN));
    store_as(&world, clear, &compressible(1, LEN), Saved::Present);
    assert_eq!(load_bytes(&world, clear, &[LEN]), Ok(compressible(1, LEN)));
    // Of one that was compressed no length says that it is in clear. A load does.
    store_as(&world, compressed, &compressible(2, LEN), Saved::Present);
    assert_eq!(load_bytes(&world, compressed, &[LEN]), Err(MissReason::Codec));
    store(&world, compressed, &compressible(2, LEN));
    assert_eq!(load_bytes(&world, compressed, &[LEN]), Ok(compressible(2, LEN)));
    assert_eq!(world.used(), world.in_bucket());
}

/// A node with less memory for decoding than a chunk of another node needs.
#[test]
fn a_chunk_that_is_too_large_to_be_decoded_here_is_a_miss_that_does_not_last() {
    let world = World::with(|config| config.with_encoding(aes()));
    let (key, raw) = (world.suite.key(1), compressible(1, LEN));
    store(&world, &key, &raw);
    let small = World::over(Arc::clone(&world.server), |config| {
        config.with_encoding(aes()).with_encode_bytes(LEN)
    });
    for loads in 1..=3 {
        let (loaded, asked) = small.asked(|| load_bytes(&small, &key, &[LEN]));
        assert_eq!(loaded, Err(MissReason::TooLarge));
        assert_eq!(small.count("misses_too_large"), loads);
        // Once its length is known, a HEAD is enough.
        let gets = asked.iter().filter(|request| request.method == "GET").count();
        assert_eq!(gets, usize::from(loads == 1), "{asked:?}");
    }
    // Loads have half of it.
    let said = format!("more than the {} that it may have; raise encode_bytes", LEN / 2);
    assert!(says(&small, &said), "{:?}", small.status());
    assert_eq!(small.count("corrupt_objects"), 0);
    // The object is replaced by one that fits: the next load hits.
    let short = compressible(2, LEN / 4);
    world.suite.remove(&Arc::from([key.clone()]));
    store(&world, &key, &short);
    assert_eq!(load_bytes(&small, &key, &[LEN]), Ok(short));
    assert_eq!(small.count("misses_too_large"), 3);
}

fn hit() -> Presence {
    Presence::Hit { len: LEN as u64 }
}

#[test]
fn long_encoded_objects_are_loaded_by_ranges() {
    let (len, part) = (14 << 20, 5 << 20);
    let world = World::with(|mut config| {
        (config.ranges_above_bytes, config.multipart_above_bytes) = (1 << 20, 6 << 20);
        config.part_bytes = part;
        config.with_encoding(aes())
    });
    let (key, raw) = (world.suite.key(1), compressible(1, len));
    store(&world, &key, &raw);
    assert_eq!(load_bytes(&world, &key, &[len / 2, len]), Ok(raw));
    assert_eq!((world.count("loads_in_ranges"), world.count("saves_in_parts")), (1, 1));
}

/// Keys 1 and 2, of which number `current` encrypts.
fn with_keys(current: u32) -> Arc<TierEncoding> {
    let ring = Arc::new(Keyring::new());
    for id in [1, 2] {
        ring.insert(MasterKey::new(id, &[id as u8; 32]).unwrap());
    }
    let stage: Arc<dyn Stage> = Arc::new(Aes256Gcm::new(ring, current));
    encoding(vec![stage.clone()], Some(stage))
}

fn get(world: &World, name: &str) -> (Object, Vec<u8>) {
    let mut lease = Lease::from_owner(vec![0; 1 << 20]);
    let got = world.runtime.block_on(world.outside.get(name, &mut lease, &Get::at_most()));
    (got.unwrap().unwrap(), lease.as_host().unwrap().to_vec())
}

#[test]
fn tools_verify_decode_and_reencode_objects() {
    let world = World::with(|config| quick(config).with_encoding(with_keys(1)));
    let (key, raw) = (world.suite.key(1), compressible(1, LEN));
    store(&world, &key, &raw);
    let name = world.name(&key);
    let rest = name.strip_prefix("kv/").unwrap();
    let (object, bytes) = get(&world, &name);

    let keyless = TierEncoding::default();
    let Ok(Verified::Stored(why)) = inspect::check(rest, &object, &bytes, &keyless) else {
        panic!("the stored bytes are right")
    };
    assert!(
        why.cause == UndecodedCause::KeyMissing && why.key_id == 1 && why.reason.contains("id 1"),
        "{why:?}"
    );
    assert_eq!(inspect::check(rest, &object, &bytes, &with_keys(2)), Ok(Verified::Raw));
    assert_eq!(inspect::decode(rest, &object, &bytes, &with_keys(2)), Ok(Ok(raw.clone())));
    // Another secret under the same id is no damage.
    let ring = Arc::new(Keyring::new());
    ring.insert(MasterKey::new(1, &[9; 32]).unwrap());
    let other = encoding(vec![], Some(Arc::new(Aes256Gcm::new(ring, 1))));
    match inspect::check(rest, &object, &bytes, &other) {
        Ok(Verified::Stored(why)) => assert_eq!(why.cause, UndecodedCause::WrongKey),
        other => panic!("{other:?}"),
    }
    let mut flipped = bytes.clone();
    flipped[9] ^= 1;
    assert_eq!(inspect::check(rest, &object, &flipped, &keyless), Err(Damage::Bytes));
    assert_eq!(inspect::check(rest, &object, &bytes[1..], &keyless), Err(Damage::Length));

    // Rotation, and back to clear.
    let stored = StoredObject { rest, object: &object, bytes: &bytes };
    let reencode = |new: &TierEncoding| inspect::reencode(stored, &key, &with_keys(1), new);
    assert!(reencode(&with_keys(1)).unwrap().unwrap().is_none(), "it is so already");
    let rotated = reencode(&with_keys(2)).unwrap().unwrap().unwrap();
    assert_eq!(rotated.facts.key_id, 2);
    let clear = reencode(&keyless).unwrap().unwrap().unwrap();
    assert!(clear.facts.is_plain() && clear.bytes == raw);
    assert!(inspect::reencode(stored, &key, &keyless, &keyless).unwrap().is_err(), "no key");
    world.write(&name, &rotated.bytes, Some(&text(&rotated.facts)));
    assert_eq!(load_bytes(&world, &key, &[LEN]), Ok(raw));

    // Lengths without a request for each object.
    let lengths = || {
        let found = world.runtime.block_on(inspect::last_uses(&world.outside, "kv/")).unwrap();
        let found = found.lengths.get(key.digest()).copied();
        found.map(|lengths| (lengths.raw, lengths.stored))
    };
    let expected = Some((LEN as u64, bytes.len() as u64));
    world.suite.eventually("a journal or snapshot", || lengths() == expected);
}

#[derive(Debug, Default)]
struct Lens(Mutex<Vec<u64>>);

impl Listener for Lens {
    fn on_events(&self, events: &[Event]) {
        let lens = events.iter().filter_map(|event| match event {
            Event::Stored { len, .. } => Some(*len),
            _ => None,
        });
        self.0.lock().unwrap().extend(lens);
    }
}

/// A listing may show the object of a save before the save has its answer.
#[test]
fn a_listing_does_not_report_what_is_being_saved() {
    let world = World::with(|mut config| {
        config.client.stall_max = Duration::from_secs(600);
        quick(config).with_encoding(zstd())
    });
    let (key, raw) = (world.suite.key(1), compressible(1, LEN));
    store(&world, &key, &raw);
    let name = world.name(&key);
    let (bytes, facts) = (world.server.object(&name).unwrap(), facts_in_bucket(&world, &name));
    world.suite.remove(&Arc::from([key.clone()]));
    let received = Arc::new(Lens::default());
    world.tier.listen(received.clone());
    world.server.script(Rule::next(Fault::Hang).method("PUT").containing(name.clone().leak()));
    let from = vec![view(&world, &raw)];
    let saving = world.tier.save(&world.suite.ctx(), vec![Save { key, from }]);
    // The bucket has the object, and the save no answer.
    world.suite.eventually("it is being saved", || world.server.stalled() == 1);
    world.write(&name, &bytes, Some(&text(&facts)));
    let sweeps = world.count("sweeps");
    world.suite.eventually("listings", || world.count("sweeps") > sweeps + 1);
    assert_eq!(*received.0.lock().unwrap(), [], "before the answer");
    world.server.release();
    assert!(matches!(saving.wait()[0].result, Ok(Saved::Stored)));
    world.suite.eventually("an event", || !received.0.lock().unwrap().is_empty());
    assert_eq!(*received.0.lock().unwrap(), [LEN as u64]);
}
