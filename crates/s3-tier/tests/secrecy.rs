//! Tenants' names (cache salts) and what they decide: no object has them, and two of them are never
//! taken for one.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kvtier_core::key::{ChunkHash, KeyId, KvRank, ObjectKey};
use kvtier_core::{Digest, Key, Namespace, Observe, Saved};
use kvtier_index::{Quotas, TenantKey};
use kvtier_s3_tier::{Evictor, TierConfig};
use kvtier_testkit::s3::{Fault, Rule, Server};
use support::tier::{World, plain_server, quick};

const LEN: usize = 10_000;
const SALT: &str = "user-42 secret:salt";
const KEY: &str = "kv/.kvtier/tenant-key";

/// A key as an engine makes it whose salts are tenants.
fn salted(salt: &str, n: u64) -> Key {
    let hash = ChunkHash::new(&n.to_be_bytes());
    let id = KeyId::from(ObjectKey::new("org/model", KvRank(0), 0, hash, salt).unwrap());
    let all =
        Arc::new(Namespace::new("", Digest([7; 32])).with_partial(false).with_salts_as_tenants());
    Key::new(all.for_key(&id), id)
}

fn node(server: &Arc<Server>, change: impl FnOnce(TierConfig) -> TierConfig) -> World {
    World::over(Arc::clone(server), |config| {
        let mut config = quick(config).with_capacity(100 * LEN as u64);
        config.sync.evictor = Evictor::Single;
        change(config)
    })
}

fn used_by(world: &World, tenant: &str) -> u64 {
    world
        .tier
        .usage()
        .tenants
        .iter()
        .find(|one| one.tenant == tenant)
        .map_or(0, |one| one.used_bytes)
}

/// What of the bucket, and of all that was sent to it, contains the text, be it in base64 or
/// escaped.
fn traces(server: &Server, text: &str) -> Vec<String> {
    let escaped = [text.replace(' ', "%20").replace(':', "%3A"), text.replace(' ', "%20")];
    let has = |bytes: &[u8]| {
        let text = [text].into_iter().chain(escaped.iter().map(String::as_str));
        text.into_iter()
            .any(|text| bytes.windows(text.len()).any(|window| window == text.as_bytes()))
    };
    // A tier may delete an object between the list of names and the look at it.
    let in_objects = server.keys("").into_iter().filter(|name| {
        has(name.as_bytes()) || server.object(name).is_some_and(|bytes| has(&bytes))
    });
    let in_requests = server.seen().into_iter().filter(|seen| {
        let values = seen.headers.iter().map(|(_, value)| value);
        has(seen.target.as_bytes())
            || values.into_iter().any(|value| {
                has(value.as_bytes())
                    || STANDARD.decode(value.as_bytes()).is_ok_and(|decoded| has(&decoded))
            })
    });
    in_objects.chain(in_requests.map(|seen| format!("{seen:?}"))).collect()
}

#[test]
fn no_object_no_header_and_no_error_has_a_salt() {
    let server = plain_server();
    let world =
        node(&server, |config| config.with_quotas(Quotas::new().with(SALT, 50 * LEN as u64)));
    (0..4).for_each(|n| assert_eq!(world.save(&salted(SALT, n), LEN), Saved::Stored));
    assert!(world.lookup(&salted(SALT, 1)).is_hit());
    world.suite.eventually("journal and snapshot are written", || {
        server.object("kv/.kvtier/snapshot/current").is_some()
            && !server.keys("kv/.kvtier/journal/").is_empty()
    });
    server.script(Rule::next(Fault::Error(403, "AccessDenied")).times(50));
    let failed = world.try_load(&salted(SALT, 2), LEN);
    let text = format!("{:?} {:?}", failed.result, world.status());
    assert!(!text.contains("secret"), "{text}");
    assert_eq!(traces(&server, SALT), [""; 0]);
    assert_eq!(used_by(&world, SALT), 4 * LEN as u64);
}

#[test]
fn salts_whose_digests_collide_in_32_bits_have_a_quota_each() {
    // The first four bytes of what made the numbers of earlier builds are the same.
    let pair = ["tenant-48313", "tenant-124327"];
    let number = |name: &str| Digest::derive("kvtier tenant", name.as_bytes()).0[..4].to_vec();
    assert_eq!(number(pair[0]), number(pair[1]));
    let server = plain_server();
    let quotas = || Quotas::new().with_others(10 * LEN as u64);
    let other = node(&server, |mut config| {
        config.sync.evictor = Evictor::Never;
        config.with_quotas(quotas())
    });
    (0..8).for_each(|n| assert_eq!(other.save(&salted(pair[0], n), LEN), Saved::Stored));
    other.suite.eventually("it was written", || other.count("journaled") >= 8);
    let world = node(&server, |config| config.with_quotas(quotas()));
    for n in 0..30 {
        world.suite.eventually("space", || world.save(&salted(pair[1], n), LEN) == Saved::Stored);
    }
    let there = |salt: &str| {
        (0..30).filter(|n| server.object(&world.name(&salted(salt, *n))).is_some()).count()
    };
    assert_eq!((there(pair[0]), there(pair[1]) <= 10), (8, true), "the victim's stay");
}

#[test]
fn names_that_an_earlier_build_left_are_replaced_by_the_node_that_evicts() {
    let server = plain_server();
    let first = node(&server, |config| config);
    assert_eq!(first.save(&salted(SALT, 1), LEN), Saved::Stored);
    first.suite.eventually("a snapshot", || server.object("kv/.kvtier/snapshot/current").is_some());
    support::tier::close(first);
    // As it was written before: the name in the manifest, and an object of its own.
    let manifest =
        String::from_utf8(server.object("kv/.kvtier/snapshot/current").unwrap().to_vec()).unwrap();
    let (body, _) = manifest.split_once("crc: ").unwrap();
    let body =
        format!("{}tenant: 7 user-42%20secret:salt\n", body.replace("format: 2", "format: 1"));
    let crc = kvtier_key::BlockSums::from_bytes(body.as_bytes()).whole();
    server
        .put_object("kv/.kvtier/snapshot/current", format!("{body}crc: {crc:08x}\n").into_bytes());
    server.put_object("kv/.kvtier/tenant/00000007", body.into_bytes());
    assert_eq!(traces(&server, SALT).len(), 2);
    let second = node(&server, |config| config);
    second.suite.eventually("both are gone", || traces(&server, SALT).is_empty());
    assert!(second.lookup(&salted(SALT, 1)).is_hit());
}

#[test]
fn a_key_that_is_lost_or_damaged_is_replaced_and_refuses_nothing() {
    let server = plain_server();
    let first = node(&server, |config| config);
    assert_eq!(first.save(&salted(SALT, 0), LEN), Saved::Stored);
    first.suite.eventually("the key is there", || server.object(KEY).is_some());
    support::tier::close(first);
    let mut last = server.object(KEY).unwrap();
    for (n, damage) in [(1, None), (2, Some(&b"junk"[..])), (3, Some(&[b'x'; 5000][..]))] {
        server.remove_object(KEY);
        damage.into_iter().for_each(|bytes| server.put_object(KEY, bytes.to_vec()));
        let world =
            node(&server, |config| config.with_quotas(Quotas::new().with(SALT, 50 * LEN as u64)));
        assert_eq!(world.save(&salted(SALT, n), LEN), Saved::Stored);
        let is_new = || {
            server.object(KEY).is_some_and(|now| now != last && TenantKey::decode(&now).is_some())
        };
        world.suite.eventually("there is another key", is_new);
        // Chunks are their tenant's again as they are used.
        world.suite.eventually("all are counted", || {
            (0..=n).for_each(|n| {
                assert!(matches!(
                    world.load(&salted(SALT, n), LEN),
                    kvtier_core::Loaded::Hit { .. }
                ))
            });
            used_by(&world, SALT) == (n + 1) * LEN as u64
        });
        last = server.object(KEY).unwrap();
        support::tier::close(world);
    }
}

#[test]
fn who_cannot_read_the_key_saves_all_the_same_and_has_it_as_soon_as_it_can() {
    let server = plain_server();
    let down = Rule::next(Fault::Error(403, "AccessDenied")).containing("/.kvtier/tenant-key");
    server.script(down.times(2));
    let world =
        node(&server, |config| config.with_quotas(Quotas::new().with(SALT, 50 * LEN as u64)));
    assert_eq!(world.save(&salted(SALT, 1), LEN), Saved::Stored);
    world.suite.eventually("the key is written in the end", || server.object(KEY).is_some());
    assert_eq!(used_by(&world, SALT), LEN as u64);
    // Where a store refuses conditions, it is written without.
    let server = plain_server();
    server.script(
        Rule::next(Fault::Error(501, "NotImplemented"))
            .method("PUT")
            .containing("/.kvtier/tenant-key"),
    );
    let world = node(&server, |config| config);
    assert_eq!(world.save(&salted(SALT, 1), LEN), Saved::Stored);
    support::tier::within(Duration::from_secs(600), "it is written", || {
        server.object(KEY).is_some()
    });
}
