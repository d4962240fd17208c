//! What to draw in property tests.

use std::sync::Arc;

use kvtier_core::{Digest, Key, Namespace};
use kvtier_key::{ChunkHash, KvRank, ObjectKey};
use proptest::prelude::*;

/// Namespaces of a few tenants and layouts, some of which know their chunk size.
pub fn namespaces() -> impl Strategy<Value = Namespace> {
    let layout = prop_oneof![Just(Digest::default()), any::<[u8; 32]>().prop_map(Digest)];
    let size = prop::option::of(1u64..1 << 20);
    ("[a-z]{0,8}", layout, size, any::<bool>()).prop_map(|(tenant, layout, size, partial)| {
        let ns = Namespace::new(tenant, layout).with_partial(partial);
        size.map_or(ns.clone(), |bytes| ns.with_chunk_bytes(0, bytes))
    })
}

/// Object keys that [`ObjectKey::new`] takes: any model, rank, group, hash and salt.
pub fn object_keys() -> impl Strategy<Value = ObjectKey> {
    let hash = prop::collection::vec(any::<u8>(), 0..64);
    ("[^@]{0,40}", any::<i64>(), 0u32..4, hash, "[^@/\\\\\0]{0,20}").prop_map(
        |(model, rank, group, hash, salt)| {
            ObjectKey::new(model, KvRank(rank), group, ChunkHash::new(&hash), salt)
                .expect("drawn by the rules")
        },
    )
}

/// Keys in a namespace.
pub fn keys(ns: Arc<Namespace>) -> impl Strategy<Value = Key> {
    object_keys().prop_map(move |id| Key::new(Arc::clone(&ns), id.into()))
}

/// Chunk sizes up to `max` bytes (at least 1): near pages, tiny, and anything.
pub fn sizes(max: usize) -> impl Strategy<Value = usize> {
    let pages = (1..=max.div_ceil(4096), 0usize..3).prop_map(|(pages, off)| pages * 4096 + off - 1);
    prop_oneof![1usize..=16, pages, 1..=max].prop_map(move |len| len.clamp(1, max))
}
