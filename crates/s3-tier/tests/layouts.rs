//! Names and objects as LMCache has them.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;

use kvtier_core::{
    Digest, ErrorKind, Key, Loaded, MissReason, Namespace, Observe, Presence, Saved,
};
use kvtier_key::{ChunkHash, KeyId, KvRank, ObjectKey};
use kvtier_s3_tier::{Layout, Verify};
use serde_json::Value;
use support::tier::World;

const LEN: usize = 5000;

fn cases(name: &str) -> Vec<Value> {
    let path = format!("{}/../testkit/vectors/{name}.json", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    serde_json::from_str::<Value>(&text).unwrap()["cases"].as_array().unwrap().clone()
}

fn namespace() -> Arc<Namespace> {
    Arc::new(Namespace::new("suite", Digest::default()))
}

fn key(id: impl Into<KeyId>) -> Key {
    Key::new(namespace(), id.into())
}

fn engine_key(text: &str) -> Key {
    key(KeyId::from_engine_text(text).unwrap())
}

fn object_key(model: &str, hash: &[u8]) -> Key {
    key(ObjectKey::new(model, KvRank(255), 0, ChunkHash::new(hash), "").unwrap())
}

fn mp() -> World {
    World::with(|config| config.with_layout(Layout::LmcacheMp).with_namespace(namespace()))
}

fn hex(text: &str) -> Vec<u8> {
    (0..text.len() / 2)
        .map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap())
        .collect()
}

fn unquoted(path: &str) -> String {
    let mut out = Vec::new();
    let bytes = path.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let quoted = bytes[at] == b'%';
        out.push(if quoted {
            u8::from_str_radix(&path[at + 1..at + 3], 16).unwrap()
        } else {
            bytes[at]
        });
        at += if quoted { 3 } else { 1 };
    }
    String::from_utf8(out).unwrap()
}

#[test]
fn objects_of_the_multi_process_mode_have_lmcaches_names() {
    let world = mp();
    let mut met = 0;
    for case in cases("object_keys") {
        let (fields, Some(ok)) = (&case["in"], case["out"].get("ok")) else { continue };
        let (Some(rank), Some(group)) =
            (fields["kv_rank"].as_i64(), fields["object_group_id"].as_u64())
        else {
            continue;
        };
        let hash = ChunkHash::new(&hex(fields["chunk_hash_hex"].as_str().unwrap()));
        let model = fields["model_name"].as_str().unwrap();
        let salt = fields["cache_salt"].as_str().unwrap();
        let Ok(id) =
            ObjectKey::new(model, KvRank(rank), u32::try_from(group).unwrap_or(0), hash, salt)
        else {
            continue;
        };
        let name = ok["s3_object_name"].as_str().unwrap();
        if u32::try_from(group).is_err()
            || name.len() > 1000
            || id.native_name().as_deref() != Ok(name)
        {
            continue;
        }
        let key = key(id);
        let saved = world.suite.save_with(world.suite.save_op(&key, 100)).result;
        // A name that LMCache itself would read as another key is refused.
        if ok["s3_parse_back"]["ok"] != *fields {
            continue;
        }
        assert_eq!(saved.unwrap(), Saved::Stored, "{name}");
        assert!(world.server.object(&format!("kv/{name}")).is_some(), "{name}");
        met += 1;
    }
    assert!(met > 10, "only {met} vectors met");
}

#[test]
fn objects_of_the_in_process_mode_have_lmcaches_names() {
    let world = World::with(|config| config.with_layout(Layout::Lmcache));
    let mut met = 0;
    for case in cases("keys_cache_engine") {
        let Some(ok) = case["out"].get("ok") else { continue };
        let (Some(text), Some(path)) = (ok["to_string"].as_str(), ok["s3_path"]["ok"].as_str())
        else {
            continue;
        };
        let Ok(id) = KeyId::from_engine_text(text) else { continue };
        // Hashes of bytes read as numbers.
        if !matches!(&id, KeyId::Engine(id) if id.text() == text) {
            continue;
        }
        let key = key(id);
        let saved = world.suite.save_with(world.suite.save_op(&key, 100)).result;
        let name = unquoted(path.trim_start_matches('/'));
        match saved {
            Ok(Saved::Stored) => {
                assert!(world.server.object(&format!("kv/{name}")).is_some(), "{name}")
            }
            Ok(Saved::Present) => {}
            other => assert!(other.is_err(), "{name}: {other:?}"),
        }
        met += usize::from(world.server.object(&format!("kv/{name}")).is_some());
    }
    assert!(met > 10, "only {met} vectors met");
}

#[test]
fn what_lmcache_wrote_is_served_at_exactly_its_length_and_counted() {
    let world = mp();
    let key = object_key("org/model", &[1; 32]);
    let name = format!("kv/org/model@000000ff@0@{}", "01".repeat(32));
    world.save(&key, LEN);
    let bytes = world.server.object(&name).unwrap().to_vec();
    world.server.put_object(&name, bytes.clone());
    let other = World::over(Arc::clone(&world.server), |config| {
        config.with_layout(Layout::LmcacheMp).with_namespace(namespace())
    });
    assert_eq!(other.used(), LEN as u64, "listed, without a request for it");
    assert_eq!(other.lookup(&key), Presence::Hit { len: LEN as u64 });
    assert_eq!(other.load(&key, LEN), Loaded::Hit { len: LEN as u64 });
    assert_eq!(other.count("unverified"), 1);
    assert_eq!(
        other.load(&key, LEN + 1),
        Loaded::Miss(MissReason::Length),
        "shorter than the memory: not a hit"
    );
    assert_eq!(other.load(&key, LEN - 1), Loaded::Miss(MissReason::Length));
    assert_eq!(other.load(&key, LEN), Loaded::Hit { len: LEN as u64 }, "it stays for its length");
    assert_eq!(other.count("corrupt_objects"), 0);
    world.server.put_object(&name, bytes[1..].to_vec());
    assert_eq!(other.load(&key, LEN), Loaded::Miss(MissReason::Length));
}

#[test]
fn strict_refuses_what_nothing_proves_until_a_save_brings_facts() {
    let world = World::with(|mut config| {
        config.verify = Verify::Strict;
        config.with_layout(Layout::LmcacheMp).with_namespace(namespace())
    });
    let key = object_key("m", &[7; 4]);
    world.server.put_object("kv/m@000000ff@0@07070707", vec![1; LEN]);
    assert_eq!(world.load(&key, LEN), Loaded::Miss(MissReason::Unverified));
    assert_eq!((world.lookup(&key), world.count("misses_unverified")), (Presence::Miss, 1));
    assert_eq!(world.save(&key, LEN), Saved::Stored);
    assert_eq!(world.load(&key, LEN), Loaded::Hit { len: LEN as u64 });
    assert_eq!(world.used(), LEN as u64);
}

#[test]
fn an_object_of_a_length_that_no_chunk_has_is_written_over() {
    let ns = Arc::new(
        Namespace::new("suite", Digest::default())
            .with_chunk_bytes(0, LEN as u64)
            .with_partial(false),
    );
    let world =
        World::with(|config| config.with_layout(Layout::LmcacheMp).with_namespace(Arc::clone(&ns)));
    let key = Key::new(ns, object_key("m", &[7; 4]).id().clone());
    for len in [0, LEN - 1, LEN + 1] {
        world.server.put_object("kv/m@000000ff@0@07070707", vec![1; len]);
        assert_eq!(world.lookup(&key), Presence::Miss, "{len}");
        assert_eq!(world.load(&key, LEN), Loaded::Miss(MissReason::Length), "{len}");
        assert_eq!(world.save(&key, LEN), Saved::Stored, "{len}");
        assert_eq!(world.load(&key, LEN), Loaded::Hit { len: LEN as u64 });
        world.suite.remove(&Arc::from([key.clone()]));
    }
}

#[test]
fn facts_win_over_the_foreign_layout_and_flips_are_found_there_too() {
    let world = mp();
    let key = object_key("m", &[9; 4]);
    world.save(&key, LEN);
    world.spoil("kv/m@000000ff@0@09090909", |bytes| bytes[LEN / 2] ^= 4);
    assert_eq!(world.load(&key, LEN), Loaded::Miss(MissReason::Corrupt));
    assert_eq!(world.save(&key, LEN), Saved::Stored);
    assert_eq!(world.load(&key, LEN), Loaded::Hit { len: LEN as u64 });
}

#[test]
fn names_of_three_fields_are_read_with_one_request_where_they_were_listed() {
    let writer = mp();
    let key = object_key("org/m", &[5; 8]);
    writer.save(&key, LEN);
    let bytes = writer.server.object("kv/org/m@000000ff@0@0505050505050505").unwrap().to_vec();
    writer.delete("kv/org/m@000000ff@0@0505050505050505");
    writer.server.put_object("kv/org/m@000000ff@0505050505050505", bytes);
    let world = World::over(Arc::clone(&writer.server), |config| {
        config.with_layout(Layout::LmcacheMp).with_namespace(namespace())
    });
    let (loaded, asked) = world.asked(|| world.load(&key, LEN));
    assert_eq!((loaded, asked.len()), (Loaded::Hit { len: LEN as u64 }, 1));
    assert_eq!(world.lookup(&key), Presence::Hit { len: LEN as u64 });
    assert_eq!(world.suite.remove(&Arc::from([key.clone()])).removed, 1);
    assert!(world.objects().is_empty(), "it is deleted under the name that it has");
}

#[test]
fn names_of_three_fields_are_looked_for_without_a_listing_if_configured() {
    let world = World::with(|mut config| {
        config.old_names = true;
        config.with_layout(Layout::LmcacheMp).with_capacity(0)
    });
    let key = object_key("m", &[5; 4]);
    assert_eq!(world.lookup(&key), Presence::Miss);
    world.save(&key, LEN);
    let bytes = world.server.object("kv/m@000000ff@0@05050505").unwrap().to_vec();
    world.delete("kv/m@000000ff@0@05050505");
    world.server.put_object("kv/m@000000ff@05050505", bytes);
    assert_eq!(world.load(&key, LEN), Loaded::Hit { len: LEN as u64 });
    assert_eq!(world.lookup(&key), Presence::Hit { len: LEN as u64 });
}

#[test]
fn keys_without_a_name_are_refused_and_so_are_other_namespaces() {
    let refused = |world: &World, key: &Key| {
        let saved = world.suite.save_with(world.suite.save_op(key, 10)).result.unwrap_err().kind();
        let loaded = world.try_load(key, 10).result.unwrap_err().kind();
        assert_eq!(saved, loaded);
        saved
    };
    let world = mp();
    assert_eq!(
        refused(&world, &engine_key("m@1@0@ab@half")),
        ErrorKind::Unsupported,
        "a key of the other mode"
    );
    let long = "p".repeat(1024 - 2 - 8 - 12);
    let world_long =
        World::with(|config| config.with_layout(Layout::LmcacheMp).with_prefix(long.as_str()));
    assert_eq!(
        refused(&world_long, &object_key("m", &[1; 32])),
        ErrorKind::Invalid,
        "a name longer than S3 takes"
    );
    let own = World::with(|config| config.with_prefix("q".repeat(1000)));
    assert_eq!(refused(&own, &object_key("m", &[1; 32])), ErrorKind::Invalid);
    let other = Key::new(
        Namespace::new("other", Digest::default()).into(),
        object_key("m", &[1; 4]).id().clone(),
    );
    assert_eq!(
        refused(&world, &other),
        ErrorKind::Invalid,
        "its chunks would have the names of ours"
    );
}

#[test]
fn listed_before_the_model_was_met_a_flat_name_counts_once() {
    let writer =
        World::with(|config| config.with_layout(Layout::Lmcache).with_namespace(namespace()));
    let key = engine_key("org/m@1@0@ab@half");
    writer.save(&key, LEN);
    assert!(writer.server.object("kv/org_m@1@0@ab@half").is_some());
    let world = World::over(Arc::clone(&writer.server), |config| {
        config.with_layout(Layout::Lmcache).with_namespace(namespace())
    });
    assert_eq!(world.used(), LEN as u64);
    assert_eq!(world.load(&key, LEN), Loaded::Hit { len: LEN as u64 });
    assert_eq!((world.used(), world.tier().usage().chunks), (LEN as u64, 1));
}

#[test]
fn partial_chunks_are_refused_where_the_namespace_says_so_and_where_the_first_save_taught_it() {
    let world = World::new();
    let declared = world.full_key(1, 4096);
    let partial =
        |key: &Key, len| world.suite.save_with(world.suite.save_op(key, len)).result.unwrap_err();
    let error = partial(&declared, 4095);
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("4096 bytes, this one has 4095"), "{error}");
    let ns = Arc::new(Namespace::new("learned", Digest::default()).with_partial(false));
    let [a, b, c] =
        [1u8, 2, 3].map(|n| Key::new(Arc::clone(&ns), object_key("m", &[n; 4]).id().clone()));
    assert_eq!(world.save(&a, 2000), Saved::Stored);
    assert_eq!(partial(&b, 1999).kind(), ErrorKind::Invalid);
    assert_eq!(world.save(&b, 2000), Saved::Stored);
    // A longer one shows that the first was partial.
    assert_eq!(world.save(&c, 2001), Saved::Stored);
    assert_eq!(partial(&a, 2000).kind(), ErrorKind::Invalid);
}

#[test]
fn objects_in_folders_are_no_chunks_of_the_in_process_mode() {
    let writer =
        World::with(|config| config.with_layout(Layout::Lmcache).with_namespace(namespace()));
    // Another tier's, whose prefix is longer than ours.
    writer.server.put_object("kv/b/m@1@0@ab@half", vec![1; LEN]);
    let world = World::over(Arc::clone(&writer.server), |config| {
        config.with_layout(Layout::Lmcache).with_namespace(namespace()).with_capacity(10)
    });
    let key = engine_key("b/m@1@0@ab@half");
    assert_eq!((world.used(), world.lookup(&key)), (0, Presence::Miss));
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert!(world.server.object("kv/b/m@1@0@ab@half").is_some(), "no cap of ours concerns it");
}

#[test]
fn a_chunk_with_both_names_is_deleted_under_both() {
    let writer = mp();
    let key = object_key("org/m", &[5; 8]);
    writer.save(&key, LEN);
    let bytes = writer.server.object("kv/org/m@000000ff@0@0505050505050505").unwrap().to_vec();
    writer.server.put_object("kv/org/m@000000ff@0505050505050505", bytes);
    let world = World::over(Arc::clone(&writer.server), |config| {
        config.with_layout(Layout::LmcacheMp).with_namespace(namespace())
    });
    assert_eq!(world.suite.remove(&Arc::from([key.clone()])).removed, 1);
    assert_eq!(world.objects(), []);
    assert_eq!(world.load(&key, LEN), Loaded::Miss(MissReason::Absent));
}

#[test]
fn a_chunk_that_was_known_by_its_older_name_is_found_by_the_newer() {
    let world = mp();
    let other = World::over(Arc::clone(&world.server), |mut config| {
        config.old_names = true;
        config.fresh_hit_max = std::time::Duration::ZERO;
        config.with_layout(Layout::LmcacheMp).with_namespace(namespace())
    });
    let key = object_key("m", &[5; 32]);
    let old = format!("kv/m@000000ff@{}", "05".repeat(32));
    let new = format!("kv/m@000000ff@0@{}", "05".repeat(32));
    world.save(&key, LEN);
    let bytes = world.server.object(&new).unwrap().to_vec();
    world.server.remove_object(&new);
    world.server.put_object(&old, bytes.clone());
    assert_eq!(
        other.load(&key, LEN),
        Loaded::Hit { len: LEN as u64 },
        "known by its older name now"
    );
    world.server.remove_object(&old);
    world.server.put_object(&new, bytes);
    assert!(other.lookup(&key).is_hit(), "asked for by both");
    world.server.put_object(&old, world.server.object(&new).unwrap().to_vec());
    assert_eq!(other.load(&key, LEN), Loaded::Hit { len: LEN as u64 });
    world.server.remove_object(&new);
    assert_eq!(other.load(&key, LEN), Loaded::Hit { len: LEN as u64 });
    assert_eq!(other.tier.usage().chunks, 1);
}

#[test]
fn an_object_that_is_damaged_under_one_of_two_names_is_no_error_and_spares_the_other() {
    let key = object_key("m", &[5; 32]);
    let old = format!("kv/m@000000ff@{}", "05".repeat(32));
    let new = format!("kv/m@000000ff@0@{}", "05".repeat(32));
    for (damaged, whole) in [(&new, Some(&old)), (&old, Some(&new)), (&new, None), (&old, None)] {
        let world = mp();
        assert_eq!(world.save(&key, LEN), Saved::Stored);
        let facts = world.runtime.block_on(world.outside.head(&new)).unwrap().unwrap();
        let bytes = world.server.object(&new).unwrap().to_vec();
        let facts = facts.meta("kvtier").map(str::to_owned);
        world.server.remove_object(&new);
        let mut spoilt = bytes.clone();
        spoilt[LEN / 2] ^= 1;
        world.write(damaged, &spoilt, facts.as_deref());
        whole.into_iter().for_each(|name| world.write(name, &bytes, facts.as_deref()));
        let again = World::over(Arc::clone(&world.server), |mut config| {
            config.old_names = true;
            config.with_layout(Layout::LmcacheMp).with_namespace(namespace())
        });
        let there = if whole.is_some() {
            Loaded::Hit { len: LEN as u64 }
        } else {
            Loaded::Miss(MissReason::Corrupt)
        };
        assert_eq!(again.load(&key, LEN), there, "{damaged} is damaged");
        assert_eq!(again.lookup(&key).is_hit(), whole.is_some());
        assert_eq!(again.load(&key, LEN), there);
        let saved = if whole.is_some() { Saved::Present } else { Saved::Stored };
        assert_eq!(again.save(&key, LEN), saved);
        assert_eq!(again.load(&key, LEN), Loaded::Hit { len: LEN as u64 });
    }
}

#[test]
fn an_undeletable_object_is_reported_without_its_salt() {
    let world = mp();
    let id =
        ObjectKey::new("locked", KvRank(255), 0, ChunkHash::new(&[6; 32]), "hush-hush").unwrap();
    let key = key(id);
    assert_eq!(world.save(&key, LEN), Saved::Stored);
    let error =
        world.suite.tier.remove(&world.suite.ctx(), Arc::from([key.clone()])).wait().unwrap_err();
    let text = format!("{error:?} {error} {:?}", world.status());
    assert!(
        text.contains("does not delete") && text.contains(&key.digest().to_hex()[..8]),
        "{text}"
    );
    assert!(!text.contains("hush"), "{text}");
}

#[test]
fn a_first_chunk_that_is_partial_does_not_keep_full_ones_out() {
    let world = World::new();
    let key = |n| {
        kvtier_testkit::conformance::Fixture::key_in(
            Namespace::new("suite", Digest::default()).with_partial(false),
            n,
        )
    };
    assert_eq!(
        world.save(&key(1), LEN / 2),
        Saved::Stored,
        "the length of a full chunk is unknown"
    );
    assert_eq!(world.save(&key(2), LEN), Saved::Stored);
    let refused = world.suite.save_with(world.suite.save_op(&key(3), LEN / 2)).result.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert!(refused.to_string().contains("save_unfull_chunk"), "{refused}");
    // After a restart a load teaches it again.
    let again = World::over(Arc::clone(&world.server), |config| config);
    assert_eq!(again.load(&key(2), LEN), Loaded::Hit { len: LEN as u64 });
    assert_eq!(
        again.suite.save_with(again.suite.save_op(&key(3), LEN / 2)).result.unwrap_err().kind(),
        ErrorKind::Invalid
    );
}

#[test]
fn salts_are_tenants_of_one_bucket_and_counted_and_listed_from_the_start() {
    let all = Arc::new(
        Namespace::new("", Digest::derive("layout", b"x"))
            .with_partial(false)
            .with_salts_as_tenants(),
    );
    let key = |salt: &str, n: u8| {
        let id = KeyId::from(
            ObjectKey::new("org/m", KvRank(255), 0, ChunkHash::new(&[n; 4]), salt).unwrap(),
        );
        Key::new(all.for_key(&id), id)
    };
    let with = |config: kvtier_s3_tier::TierConfig| {
        config.with_layout(Layout::LmcacheMp).with_namespace(Arc::clone(&all))
    };
    let world = World::with(with);
    for (n, salt) in (0..).zip(["", "alice", "bob", "bob"]) {
        assert_eq!(world.save(&key(salt, n), LEN), Saved::Stored, "{salt}");
    }
    assert_eq!(world.lookup(&key("alice", 0)), Presence::Miss, "another's");
    // What LMCache stored is its salt's too; the rest of the bucket has no tenant.
    world.server.put_object("kv/org/m@000000ff@0@ffffffff@alice", vec![7; LEN]);
    world.server.put_object("kv/readme.txt", vec![7; LEN]);
    let other = World::over(Arc::clone(&world.server), with);
    let by_tenant = || {
        let tenants = other.tier.usage().tenants.into_iter().filter(|t| t.chunks > 0);
        tenants.map(|t| (t.tenant, t.chunks)).collect::<std::collections::BTreeMap<_, _>>()
    };
    let expected = std::collections::BTreeMap::from([
        (String::new(), 1),
        ("alice".into(), 2),
        ("bob".into(), 2),
    ]);
    assert_eq!(by_tenant(), expected, "before any key was asked for");
    let page = other.tier.list_keys(&other.suite.ctx(), None).wait().unwrap();
    let names: Vec<String> = page.keys.iter().map(|(id, _)| spelled(id)).collect();
    let mut expected: Vec<String> =
        [("", 0), ("@alice", 1), ("@bob", 2), ("@bob", 3), ("@alice", 0xff)]
            .map(|(salt, n): (&str, u8)| {
                format!("org/m@000000ff@0@{}{salt}", format!("{n:02x}").repeat(4))
            })
            .into();
    expected.sort_unstable();
    assert_eq!((names, page.next), (expected, None), "in the order of the bucket");
    assert!(page.keys.iter().all(|(_, bytes)| *bytes == LEN as u64));
}

fn spelled(id: &KeyId) -> String {
    match id {
        KeyId::Object(id) => id.native_name().unwrap(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn in_layout_kvtier_a_bucket_cannot_list_its_keys() {
    let world = World::new();
    let listed = world.tier.list_keys(&world.suite.ctx(), None).wait();
    assert_eq!(listed.unwrap_err().kind(), ErrorKind::Unsupported);
    assert!(!world.tier.names_encode_keys());
}
