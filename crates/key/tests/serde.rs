//! With feature `serde` every key comes back as it was, and what is no key is refused.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use kvtier_key::{
    CacheEngineKey, ChunkHash, DType, Digest, EngineHash, Key, KeyId, KvRank, LayerCacheEngineKey,
    Namespace, ObjectKey, PyInt,
};
use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

fn back<T: Serialize + DeserializeOwned>(value: &T) -> T {
    serde_json::from_str(&serde_json::to_string(value).unwrap()).unwrap()
}

fn hashes() -> impl Strategy<Value = ChunkHash> {
    proptest::collection::vec(any::<u8>(), 0..80).prop_map(|bytes| ChunkHash::new(&bytes))
}

fn engine_hashes() -> impl Strategy<Value = EngineHash> {
    let numbers = (any::<bool>(), proptest::collection::vec(any::<u8>(), 0..40));
    let numbers = numbers.prop_map(|(negative, bytes)| {
        EngineHash::Int(PyInt::from_be_bytes(negative, &bytes).unwrap())
    });
    prop_oneof![numbers, hashes().prop_map(EngineHash::Bytes)]
}

prop_compose! {
    fn objects()(
        model in "[^@]{0,40}", rank in any::<i64>(), group in any::<u32>(), hash in hashes(),
        salt in "[^@/\\\\\0]{0,40}",
    ) -> KeyId {
        ObjectKey::new(model, KvRank(rank), group, hash, salt).unwrap().into()
    }
}

prop_compose! {
    fn engines()(
        model in ".{0,40}", sizes in any::<(i64, i64)>(), hash in engine_hashes(), dtype in 0..14_usize,
        tags in proptest::collection::vec((".{0,9}", ".{0,9}"), 0..5), layer in proptest::option::of(any::<i64>()),
    ) -> KeyId {
        let dtype = DType::all().nth(dtype).unwrap();
        let key = CacheEngineKey::new(model, sizes.0, sizes.1, hash, dtype).unwrap().with_tags(tags).unwrap();
        layer.map_or_else(|| key.clone().into(), |layer| LayerCacheEngineKey { key: key.clone(), layer }.into())
    }
}

prop_compose! {
    fn namespaces()(
        tenant in ".{0,20}", layout in any::<[u8; 32]>(), known in any::<bool>(), partial in any::<bool>(),
        by_salt in any::<bool>(), sizes in proptest::collection::vec(any::<(u32, u64)>(), 0..4),
    ) -> Namespace {
        let ns = if known { Namespace::known_by(Digest(layout)) } else { Namespace::new(tenant, Digest(layout)) };
        let ns = sizes.into_iter().fold(ns.with_partial(partial), |ns, (group, n)| ns.with_chunk_bytes(group, n));
        if by_salt { ns.with_salts_as_tenants() } else { ns }
    }
}

proptest! {
    #[test]
    fn every_key_reads_back_unchanged(id in prop_oneof![objects(), engines()], ns in namespaces()) {
        prop_assert_eq!(&back(&id), &id);
        prop_assert_eq!(&back(&ns), &ns);
        let key = Key::new(Arc::new(ns.clone()), id.clone());
        let again = back(&key);
        prop_assert_eq!(again.digest(), key.digest());
        prop_assert_eq!((again.id(), &**again.namespace()), (&id, &ns));
    }
}

#[test]
fn the_forms_are_readable_and_stay() {
    let object =
        ObjectKey::new("org/m", KvRank(257), 3, ChunkHash::new(&[0xab, 1]), "salt").unwrap();
    let fields = json!({"model": "org/m", "rank": 257, "group": 3, "hash": "ab01", "salt": "salt"});
    assert_eq!(serde_json::to_value(KeyId::from(object)).unwrap(), json!({ "object": fields }));
    let hash = EngineHash::Int(PyInt::from(-255i64));
    let engine = CacheEngineKey::new("m", 2, 1, hash, DType::BFloat16)
        .unwrap()
        .with_tags([("a", "b")])
        .unwrap();
    let fields = json!({
        "model": "m", "world_size": 2, "worker_id": 1, "hash": {"int": "-255"}, "dtype": "bfloat16", "tags": [["a", "b"]],
    });
    assert_eq!(
        serde_json::to_value(KeyId::from(engine.layer(7))).unwrap(),
        json!({"layer": {"key": fields, "layer": 7}})
    );
}

#[test]
fn what_is_no_key_is_refused() {
    let object = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut fields = json!({"model": "m", "rank": 1, "group": 0, "hash": "ab", "salt": "s"});
        change(&mut fields);
        serde_json::from_value::<ObjectKey>(fields)
    };
    assert!(object(&|_| {}).is_ok());
    for (field, value) in [
        ("model", json!("a@b")),
        ("model", json!("m".repeat(513))),
        ("salt", json!("a/b")),
        ("hash", json!("abc")),
        ("hash", json!("zz")),
        ("group", json!(-1)),
        ("group", json!(1u64 << 32)),
        ("another", json!(1)),
    ] {
        assert!(object(&|fields| fields[field] = value.clone()).is_err(), "{field}: {value}");
    }
    let refused = object(&|fields| fields["salt"] = json!("my@secret")).unwrap_err().to_string();
    assert!(!refused.contains("secret"), "{refused}");
    for text in ["\"\"", "\"-\"", "\"1e5\"", "7"] {
        assert!(serde_json::from_str::<PyInt>(text).is_err(), "{text}");
    }
    assert!(serde_json::from_value::<Digest>(json!("ab")).is_err());
    assert!(serde_json::from_value::<DType>(json!("complex")).is_err());
}
