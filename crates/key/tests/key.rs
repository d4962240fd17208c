//! A key's digest is its name on the media: it may never change, and no two keys may share one.
#![allow(clippy::unwrap_used)]

use std::collections::HashSet;
use std::sync::Arc;

use kvtier_key::{
    CacheEngineKey, ChunkHash, DType, Digest, EngineHash, Key, KeyId, KvRank, Namespace, ObjectKey,
    PyInt,
};

fn namespace() -> Arc<Namespace> {
    Arc::new(Namespace::new("tenant", Digest([9; 32])))
}

fn object(salt: &str) -> KeyId {
    ObjectKey::new("org/m", KvRank::pack(2, 1, 2, 1), 3, ChunkHash::new(&[0xab; 32]), salt)
        .unwrap()
        .into()
}

fn engine(hash: EngineHash) -> CacheEngineKey {
    CacheEngineKey::new("org/m", 2, 1, hash, DType::BFloat16).unwrap()
}

fn number(value: i64) -> EngineHash {
    EngineHash::Int(PyInt::from(value))
}

#[test]
fn digests_never_change() {
    let tagged = engine(number(-0x1234)).with_tags([("user", "alice"), ("env", "prod")]).unwrap();
    let pinned = [
        (object(""), "58b4dbecfb4a9ebdbbd7bb34d6219fd3ad97e45e954a936a810396bb948ff66a"),
        (object("salt"), "308edfbd588ba99d3ceb55e296a96dab7beee640c0e00d468cce2fd31c651cd0"),
        (tagged.clone().into(), "6ff8b740371585cba0ce276dddcd6aff630c9cde562686734e941162b47ffeb0"),
        (
            tagged.layer(7).into(),
            "7c38e5295622789e5f0e2e0ded00554af3ee23b86d70cfcd8cf533338016c1fd",
        ),
    ];
    for (id, digest) in pinned {
        assert_eq!(Key::new(namespace(), id.clone()).digest().to_hex(), digest, "{id:?}");
    }
}

#[test]
fn keys_that_differ_have_digests_that_differ() {
    let ids: Vec<KeyId> = vec![
        object(""),
        object("a"),
        object("b"),
        engine(number(0)).into(),
        engine(number(0x0102)).into(),
        engine(number(-0x0102)).into(),
        engine(EngineHash::Bytes(ChunkHash::new(&[1, 2]))).into(),
        engine(number(0)).layer(0).into(),
        engine(number(0)).layer(1).into(),
        engine(number(0)).with_worker(0).into(),
        engine(number(0)).with_tags([("a", "bc")]).unwrap().into(),
        engine(number(0)).with_tags([("ab", "c")]).unwrap().into(),
        engine(number(0)).with_tags([("a", ""), ("b", "c")]).unwrap().into(),
    ];
    let other = Arc::new(Namespace::new("other", Digest([9; 32])));
    let digests: HashSet<Digest> = [namespace(), other]
        .iter()
        .flat_map(|ns| ids.iter().map(|id| *Key::new(ns.clone(), id.clone()).digest()))
        .collect();
    assert_eq!(digests.len(), 2 * ids.len());
}

#[test]
fn the_salt_reaches_the_media_only_as_a_digest() {
    let bytes = Key::new(namespace(), object("my secret salt")).canonical();
    assert!(!bytes.windows(4).any(|window| window == b"salt"));
}

#[test]
fn of_equal_tags_the_last_value_counts_at_the_first_place() {
    let key = engine(number(1)).with_tags([("a", "1"), ("b", "2"), ("a", "3")]).unwrap();
    assert_eq!(key, engine(number(1)).with_tags([("a", "3"), ("b", "2")]).unwrap());
    assert!(engine(number(1)).with_tags((0..65).map(|i| (i.to_string(), ""))).is_err());
}
